"""A story as a page that needs nothing but itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from markupsafe import Markup, escape

from spark_jobs.quality.rendering import render

# How a sentence begins -> its style.
_STYLES = {
    "paired with": "passed",
    "alone": "warning",
    "rejected": "warning",
    "the tables say otherwise": "critical",
}


def page(lines: Iterable[str]) -> str:
    """The lines of a story as HTML. Blank lines divide them into sections; the first line of a section is its heading."""
    blocks = [list(block) for is_blank, block in groupby(lines, key=lambda line: not line) if not is_blank]
    (title, *rest), *sections = blocks
    return render(
        "story.html",
        name=title.partition(":")[0],
        about=title.partition(": ")[2],
        lines=rest,
        sections=[(heading, sentences) for heading, *sentences in sections],
        ticked=_ticked,
        style_of=lambda sentence: next((style for start, style in _STYLES.items() if sentence.startswith(start)), None),
    )


def _ticked(sentence: str) -> Markup:
    """What stands between ticks is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))
