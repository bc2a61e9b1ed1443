"""The story as a page that needs nothing but itself."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from itertools import groupby

from spark_jobs.quality.style import STYLE

# How a sentence begins -> what it is to the eye.
_CLASSES = {
    "paired with": "passed",
    "alone": "warning",
    "rejected": "warning",
    "the tables say otherwise": "critical",
}


def page(lines: Iterable[str]) -> str:
    """The lines of a story as HTML: what a blank line divides are sections, their first line is the heading."""
    blocks = [list(block) for blank, block in groupby(lines, key=lambda line: not line) if not blank]
    (title, *rest), *sections = blocks
    name = html.escape(title.partition(":")[0])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>{STYLE}</style></head><body>
<h1>{name}</h1><p>{_text(title.partition(": ")[2])}</p>
{_list(rest)}{"".join(_section(*section) for section in sections)}</body></html>
"""


def _section(heading: str, *sentences: str) -> str:
    # A sentence that stands alone is no heading.
    return f"<h2>{_text(heading)}</h2>\n{_list(sentences)}" if sentences else f"<p>{_text(heading)}</p>\n"


def _list(sentences: Iterable[str]) -> str:
    items = "".join(f"<li{_class(sentence.strip())}>{_text(sentence.strip())}</li>\n" for sentence in sentences)
    return f"<ul>\n{items}</ul>\n" if items else ""


def _class(sentence: str) -> str:
    name = next((name for start, name in _CLASSES.items() if sentence.startswith(start)), None)
    return f' class="{name}"' if name else ""


def _text(sentence: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(sentence))
