"""Every command in the documents: each block is run by a test that tests/docs_commands.md names, and each option is one of its command."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.doc_blocks import bash_blocks
from tests.helpers.timeline import ROOT
from tests.unit.test_docs import DOCUMENTS, names

ROWS = re.findall(r"^\| (\S+\.md) \| (.+?) \| (\S+\.py)::(\w+) \|$", (ROOT / "tests" / "docs_commands.md").read_text(), re.M)
BLOCKS = [(name, block) for path, name in zip(DOCUMENTS, names(DOCUMENTS), strict=True) for block in bash_blocks(path)]
SHARED = ("spark_jobs/job/arguments.py", "spark_jobs/job/run.py")
COMMAND = re.compile(r"(?:python -m ((?:include|spark_jobs)\.[\w.]+)|spark_jobs/(\w+)\.py)((?:(?!python -m|[|`\n]).|\\\n)*)")


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(BLOCKS)])
def test_a_block_has_one_row(page, block):
    assert len([words for of, words, _, _ in ROWS if of == page and words in block]) == 1, block


@pytest.mark.parametrize(("page", "words", "file", "test"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_a_row_has_one_block_and_a_test(page, words, file, test):
    assert len([block for of, block in BLOCKS if of == page and words in block]) == 1
    assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.M)


@cache
def options(file: Path) -> frozenset[str]:
    """What stands first in the calls of add_argument in a program, and in what all programs share."""
    trees = [ast.parse(path.read_text()) for path in (file, *(ROOT / each for each in SHARED))]
    texts = {
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(text for text in texts if re.fullmatch(r"--[a-z-]+", text)) | {"--help"}


# Decisions and the changelog also tell of programs as they were.
NOW = [path for path in DOCUMENTS if path.parent.name != "decisions" and path.name != "CHANGELOG.md"]


@pytest.mark.parametrize("document", NOW, ids=names(NOW))
def test_every_option_is_one_of_its_command(document):
    for module, job, rest in COMMAND.findall(document.read_text()):
        file = ROOT / f"{module.replace('.', '/')}.py" if module else ROOT / "spark_jobs" / f"{job}.py"
        known = options(file) | (
            options(ROOT / "spark_jobs" / file.name) if (ROOT / "spark_jobs" / file.name).is_file() else frozenset()
        )
        given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest))
        assert given <= known, f"{file.name} has no {', '.join(given - known)}"
