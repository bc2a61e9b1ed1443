"""The state of a pipeline that lasts beyond a batch: `state.json` beside its quality pages. The report writes it, Airflow's pages read it.

Times are epoch seconds. Problems stay until a batch heals them; a person may acknowledge one, and it then no longer counts for the verdict.
Only the report writes `state.json`. What anybody else says of a problem is a file of its own (`problem_marks`), so no writer can undo another's
words; `read_state` puts them together.
"""

from __future__ import annotations

import time
from typing import Final

from pydantic import Field

from include.config.problem_marks import (
    Acknowledgement,
    AcknowledgementMark,
    FindingMark,
    HealMark,
    Marks,
    Part,
    ProblemRecord,
    Severity,
    check_name,
    drop_mark,
    read_marks,
    write_mark,
)
from include.config.store import Store, read_text, write_text

FILE = "state.json"
# What metrics.prom and the metrics of the parts are.
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# The numbers of the newest report beside it, as OpenMetrics.
METRICS_FILE = "metrics.prom"
# The windows over which counts are added up, by name, in hours.
WINDOWS = {"1h": 1, "24h": 24, "7d": 168}
HEALTHY: Final = "healthy"
WARNING: Final = "warning"
FAILED: Final = "failed"


class Problem(ProblemRecord):
    """`name`: stable, the check's metric. `newest`: number of the newest batch that showed it, at `last`. `calm`: of a ratio, the compounds of
    later batches that were within its bound. `is_finding`: a command found it, such as reconcile; no batch heals it.
    """

    name: str
    acknowledged: Acknowledgement | None = None
    newest: int = 0
    calm: int = 0
    is_finding: bool = False


class Counts(Part):
    """Counts over the batches of a window, or of an hour."""

    landed: int = 0
    pair: int = 0
    left_only: int = 0
    right_only: int = 0
    rejected: int = 0
    late: int = 0
    late_healable: int = 0


class Lag(Part):
    """What waits. `unread`: records on the input topics that no batch has landed; `oldest_unread`, `oldest_open`: the time of the oldest such
    record and of the oldest open event, None where there is none.
    """

    unread: int = 0
    oldest_unread: float | None = None
    oldest_open: float | None = None


class State(Part):
    """`at`, `batch`: time and number of the newest reported batch. `windows`: by the names of WINDOWS, up to `at`; `hours`: the last 24, oldest first.
    `news`: the sentences about what began or ended with the newest report. `remarks`: what could not be judged of the newest batch; it is shown
    and counts for nothing.
    """

    pipeline: str
    at: float
    batch: int
    problems: tuple[Problem, ...] = ()
    windows: dict[str, Counts] = Field(default_factory=dict)
    hours: tuple[Counts, ...] = ()
    lag: Lag = Lag()
    news: tuple[str, ...] = ()
    remarks: tuple[Problem, ...] = ()

    @property
    def open_problems(self) -> list[Problem]:
        """Those that nobody has acknowledged, failed ones first."""
        return sorted(
            (each for each in self.problems if each.acknowledged is None), key=lambda each: each.severity != FAILED
        )

    @property
    def verdict(self) -> str:
        """HEALTHY, WARNING or FAILED: the worst of the problems that nobody has acknowledged."""
        return next((problem.severity for problem in self.open_problems), HEALTHY)

    @property
    def in_short(self) -> str:
        """The verdict, after which batch, and why, by the names of the problems.

        >>> State(pipeline="calls", at=0, batch=7).in_short
        'healthy after batch 7'
        """
        found = [f"{each.name}: {each.severity} since batch {each.batch}" for each in self.open_problems]
        return f"{self.verdict} after batch {self.batch}" + (f" ({', '.join(found)})" if found else "")


def read_state(pages: Store) -> State | None:
    """The state with all that was said of its problems since the last report; None if there is none yet, or none of this form."""
    state = stored_state(pages)
    return None if state is None else with_marks(state, read_marks(pages))


def stored_state(pages: Store) -> State | None:
    """The state as the last report left it; None if there is none of this form."""
    try:
        text = read_text(pages, FILE)
        return None if text is None else State.model_validate_json(text)
    except ValueError:
        # What is not UTF-8 is no state either; ValidationError is a ValueError.
        return None


def with_marks(state: State, marks: Marks) -> State:
    """The state with these findings, heals and acknowledgements."""
    kept = [each for each in state.problems if not each.is_finding and not _is_healed(each, marks.healed)]
    kept += [
        Problem(name=name, is_finding=True, newest=found.batch, **found.model_dump()) for name, found in marks.found.items()
    ]
    problems = tuple(_acknowledged(each, marks.acknowledged.get(each.name)) for each in kept)
    return state.model_copy(update={"problems": problems})


def _is_healed(problem: Problem, healed: dict[str, HealMark]) -> bool:
    return problem.name in healed and problem.newest <= healed[problem.name].batch


def _acknowledged(problem: Problem, mark: AcknowledgementMark | None) -> Problem:
    """An acknowledgement is of the problem that began with one batch, as bad as it was then."""
    if mark is None:
        return problem
    holds = mark.batch == problem.batch and not (problem.severity == FAILED and mark.severity == WARNING)
    said = Acknowledgement(by=mark.by, at=mark.at, note=mark.note) if holds else None
    return problem.model_copy(update={"acknowledged": said})


def write_state(pages: Store, state: State) -> None:
    """Writes the state in place of the one before."""
    write_text(pages, FILE, state.model_dump_json())


def acknowledge(pages: Store, name: str, by: str, note: str) -> Problem:
    """Notes that somebody has taken the problem over, and returns it. Raises ValueError with one line if there is no such problem."""
    state = read_state(pages)
    problems = {} if state is None else {each.name: each for each in state.problems}
    if name not in problems:
        there = ", ".join(problems) or "none"
        raise ValueError(f"there is no problem {name!r} to acknowledge; the pipeline has: {there}")
    if not by.strip() or not note.strip():
        raise ValueError("an acknowledgement needs the name of a person (--by) and what they say (--note)")
    problem, now = problems[name], time.time()
    mark = AcknowledgementMark(by=by.strip(), at=now, note=note.strip(), batch=problem.batch, severity=problem.severity)
    write_mark(pages, name, mark)
    return _acknowledged(problem, mark)


def add_finding(pages: Store, name: str, severity: Severity, text: str, runbook: str = "") -> None:
    """A problem that a command found outside the report, until `heal`. `name`: letters, digits and _; `text`: one sentence without a full stop."""
    check_name(name)
    before, state, now = read_marks(pages).found.get(name), stored_state(pages), time.time()
    batch, since = (before.batch, before.since) if before else (state.batch if state else 0, now)
    write_mark(pages, name, FindingMark(severity=severity, text=text, runbook=runbook, batch=batch, since=since, last=now))


def heal(pages: Store, *names: str, through: int | None = None) -> None:
    """Ends findings; and problems of checks as far as batches up to `through` (inclusive) showed them, by default all that are reported."""
    for name in names:
        check_name(name)
    state, marks = stored_state(pages), read_marks(pages)
    through = (state.batch if state else 0) if through is None else through
    of_checks = {each.name for each in (state.problems if state else ()) if not each.is_finding}
    for name in names:
        if name in marks.found:
            drop_mark(pages, name, FindingMark)
        if name in of_checks:
            before = marks.healed.get(name, HealMark())
            write_mark(pages, name, before.model_copy(update={"batch": max(through, before.batch)}))
