"""The state of a pipeline that lasts beyond a batch: `state.json` beside its quality pages. The report writes it, Airflow's pages read it.

Times are epoch seconds. Problems stay until a batch heals them; a person may acknowledge one, and it then no longer counts for the verdict.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from include.config.store import Store, read_text, write_text

FILE = "state.json"
# The windows over which counts are added up, by name, in hours.
WINDOWS = {"1h": 1, "24h": 24, "7d": 168}
HEALTHY, WARNING, FAILED = "healthy", "warning", "failed"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Acknowledgement(_Part):
    """Who has taken a problem over, when, and what they say of it."""

    by: str
    at: float
    note: str


class Problem(_Part):
    """`name`: stable, the check's metric; `text`: one sentence without a full stop. `batch`, `since`: where it began; `last`: the newest batch
    that showed it. `runbook`: a path in the project, empty if there is none.
    """

    name: str
    severity: Literal["warning", "failed"]
    text: str
    batch: int
    since: float
    last: float
    runbook: str = ""
    acknowledged: Acknowledgement | None = None


class Counts(_Part):
    """Counts over the batches of a window, or of an hour."""

    landed: int = 0
    pair: int = 0
    left_only: int = 0
    right_only: int = 0
    rejected: int = 0
    late: int = 0
    late_healable: int = 0


class Lag(_Part):
    """What waits. `unread`: records on the input topics that no batch has landed; `oldest_unread`, `oldest_open`: the time of the oldest such
    record and of the oldest open event, None where there is none.
    """

    unread: int = 0
    oldest_unread: float | None = None
    oldest_open: float | None = None


class State(_Part):
    """`at`, `batch`: time and number of the newest reported batch. `windows`: by the names of WINDOWS, up to `at`; `hours`: the last 24, oldest first."""

    pipeline: str
    at: float
    batch: int
    problems: tuple[Problem, ...] = ()
    windows: dict[str, Counts] = {}
    hours: tuple[Counts, ...] = ()
    lag: Lag = Lag()

    @property
    def verdict(self) -> str:
        """HEALTHY, WARNING or FAILED: the worst of the problems that nobody has acknowledged."""
        open_ones = {problem.severity for problem in self.problems if problem.acknowledged is None}
        return FAILED if FAILED in open_ones else WARNING if open_ones else HEALTHY


def read_state(pages: Store) -> State | None:
    """The state; None if there is none yet, or none of this form."""
    text = read_text(pages, FILE)
    try:
        return None if text is None else State.model_validate_json(text)
    except ValidationError:
        return None


def write_state(pages: Store, state: State) -> None:
    """Writes the state in place of the one before."""
    write_text(pages, FILE, state.model_dump_json())
