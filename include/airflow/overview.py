"""The page over all pipelines: which are healthy, what is wrong with the others, which stand still, and whether the servers live that they need."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Template
from markupsafe import Markup

from include.airflow.overdue import as_of, paused
from include.airflow.parts import parts
from include.config.health import FAILED, HEALTHY, WARNING, State, read_state
from include.config.health_panel import panel
from include.config.page_templates import TEMPLATES, page_environment
from include.config.store import Store

# The worst first; a pipeline without a state cannot be judged.
UNKNOWN = "unknown"
_ORDER = (FAILED, WARNING, UNKNOWN, HEALTHY)
_WORDS = {FAILED: "failed", WARNING: "with a warning", UNKNOWN: "not reported yet", HEALTHY: "healthy"}
_READERS = 8
_HERE = Path(__file__).resolve().parent / "templates"


class _Entry(NamedTuple):
    pipeline: str
    verdict: str
    panel: Markup
    paused: bool


def overview(names: Sequence[str], pages_of: Callable[[str], Store]) -> str:
    """The page over these pipelines, at an address that ends with a slash. `pages_of`: where the quality pages of a pipeline are."""
    now, resting = time.time(), paused(names)
    with ThreadPoolExecutor(_READERS) as beside:
        states = beside.map(lambda name: read_state(pages_of(name)), names)
        found = [_entry(name, state, now, name in resting) for name, state in zip(names, states, strict=True)]
    found.sort(key=lambda entry: (_ORDER.index(entry.verdict), entry.pipeline))
    verdicts = [entry.verdict for entry in found]
    counts = [f"{verdicts.count(each)} {_WORDS[each]}" for each in _ORDER if each in verdicts]
    return _template().render(entries=found, counts=", ".join(counts), words=_WORDS, parts=parts())


def overview_style() -> str:
    """What the page looks like: as the reports do."""
    files = (TEMPLATES / "colors.css", TEMPLATES / "look.css", _HERE / "overview.css")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def _entry(name: str, state: State | None, now: float, is_paused: bool) -> _Entry:
    if state is None:
        return _Entry(name, UNKNOWN, Markup(""), is_paused)
    state = as_of(state, is_paused, now)
    links = [(f"{name}/index.html", "report of the newest batch"), (f"{name}/trend.html", "all batches")]
    return _Entry(name, state.verdict, panel(state, links=links, now=now, is_paused=is_paused), is_paused)


@cache
def _template() -> Template:
    return page_environment(_HERE).get_template("overview.html")
