"""From a job's line to the page that says what to do: the index of docs/runbooks, read when a task has failed."""

from __future__ import annotations

import re
from pathlib import Path

from include.config.project import ROOT

_FOLDER = ROOT / "docs" / "runbooks"
_ROW = re.compile(r"\| `(.+?)`.*? \| \[.*\]\((.+\.md)\) \|")


def runbook(line: str, folder: Path = _FOLDER) -> str | None:
    """The page of the start that fits the line and says most, as a path in the project; None if there is none."""
    index = folder / "README.md"
    rows = (
        [found.groups() for found in map(_ROW.match, index.read_text("utf-8").splitlines()) if found]
        if index.is_file()
        else []
    )
    fitting = [(start, page) for start, page in rows if _fits(start, line)]
    # The index has starts such as `…: …: …`, too, which fit what others say better.
    return f"docs/runbooks/{max(fitting, key=lambda row: len(row[0].replace('…', '')))[1]}" if fitting else None


def _fits(start: str, line: str) -> bool:
    """Whether the line begins so, anything standing for each ellipsis."""
    first, *others = start.split("…")
    if not line.startswith(first):
        return False
    at = len(first)
    for part in others:
        # The first place that fits leaves most for the parts behind it, so none is looked for twice.
        place = line.find(part, at)
        if place < 0:
            return False
        at = place + len(part)
    return True
