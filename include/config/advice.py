"""What a failed or warned check means and what to do about it, by the name of its metric: from the runbooks, else in words of its own.

A page shows it where the problem is said, so that nobody has to look for a path first.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from include.config.project import ROOT

_MEANING = "**What it means.** "
# Of a row about a check: its metric, what differs, what to look for.
_CELLS = 3


class Advice(NamedTuple):
    """`title`: of the runbook, empty without one. `meaning`, `steps`: as HTML; empty where nothing is known."""

    title: str
    meaning: Markup
    steps: Markup
    runbook: str


# Of checks that have no runbook: what they mean, and what to do.
_WORDS = {
    "delivery_not_judged": (
        "Whether all compounds are on the output topic could not be compared. Nothing says that one is missing.",
        "Run `reconcile`: it compares what the topic still has. Retention that is longer than the time between two reports lets the next one "
        "compare everything.",
    ),
    "dead_letters_not_judged": (
        "Whether all rejected records are on the rejected topic could not be compared. Nothing says that one is missing.",
        "The rows of `rejected_events` are complete. Retention that is longer than the time between two reports lets the next one compare "
        "everything.",
    ),
}


@lru_cache(maxsize=256)
def advice(metric: str, runbook: str) -> Advice:
    """What is known of the check; `runbook`: a path in the project, or empty. A runbook that is not there is named only."""
    page = ROOT / runbook if runbook.startswith("docs/runbooks/") and ".." not in runbook else None
    if page is not None and page.is_file():
        return _of_page(page, runbook, metric)
    meaning, steps = _WORDS.get(metric, ("", ""))
    return Advice("", as_html(meaning), as_html(steps), runbook)


def _of_page(page: Path, runbook: str, metric: str) -> Advice:
    """The meaning is the row that the runbook has for the check, or else its first paragraph about it."""
    title, _, text = page.read_text(encoding="utf-8").partition("\n")
    meaning, _, steps = text[max(text.find(_MEANING), 0) :].removeprefix(_MEANING).strip().partition("\n\n")
    stem = metric.removesuffix("_left").removesuffix("_right")
    starts = tuple(f"| `{name}`" for name in (stem, f"{stem}_left"))
    row = next((line for line in steps.splitlines() if line.startswith(starts)), "")
    if len(cells := [cell.strip() for cell in row.strip("| ").split(" | ")]) == _CELLS:
        steps = f"{meaning}\n\n{steps}"
        meaning = f"What differs: {cells[1]}. **Look for** {cells[2]}."
    return Advice(title.removeprefix("# "), as_html(meaning), as_html(steps), runbook)


def as_html(text: str) -> Markup:
    """Markdown of ours as HTML. Its links lead to files that are not beside the pages, so only their words are kept."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    for token in tokens:
        if token.children:
            token.children = [each for each in token.children if not _is_link(each)]
        elif token.tag in ("h1", "h2", "h3"):
            token.tag = "h4"
    return Markup(reader.renderer.render(tokens, reader.options, {}))


def _is_link(token: Token) -> bool:
    return token.type in ("link_open", "link_close")
