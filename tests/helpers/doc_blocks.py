"""The blocks of commands in a document, as a reader copies them."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

# Blocks of runbooks (`bash mend`) are of tests/integration/test_runbooks.py.
_BASH = re.compile(r"^ *```bash(?! mend)[^\n]*\n(.*?)^ *```$", re.M | re.S)


def bash_blocks(document: Path) -> list[str]:
    """All of them, in their order, without the indentation of the list they may stand in."""
    return [dedent(text) for text in _BASH.findall(document.read_text())]


def block_with(document: Path, words: str) -> str:
    """The only one that has these words."""
    (found,) = (block for block in bash_blocks(document) if words in block)
    return found
