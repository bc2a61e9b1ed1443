"""What a watch has seen: samples, runs, and what was started and killed beside them. All times are seconds since the watch began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.load.samples import Sample


class Run(NamedTuple):
    """A run of a DAG. `began`, `ended`: None: not yet."""

    dag_id: str
    kind: str
    state: str
    began: float | None
    ended: float | None

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it has not ended."""
        return None if self.began is None or self.ended is None else self.ended - self.began


class Kill(NamedTuple):
    """A kill -9. `recovered`: seconds until a live run that began later had succeeded; None: it did not in time."""

    at: float
    what: str
    recovered: float | None


@dataclass
class Seen:
    """`rate`: records a second that are to be sent now. `runs`: by DAG and run id. `beside`: (second, what was started)."""

    live_dag: str
    rate: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    beside: list[tuple[float, str]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    # Whether the lag came back after the last kill.
    came_back: bool = False

    def since(self, begin: float, end: float = float("inf")) -> list[Sample]:
        """The samples of these seconds, both inclusive."""
        return [each for each in self.samples if begin <= each.at <= end]

    def live_runs(self) -> list[Run]:
        """The live runs that have begun, in that order."""
        known = [run for run in self.runs.values() if run.dag_id == self.live_dag and run.began is not None]
        return sorted(known, key=lambda run: run.began or 0.0)

    def succeeded_since(self, at: float) -> bool:
        """Whether a live run that began later has succeeded."""
        return any((run.began or 0.0) > at and run.state == "success" for run in self.live_runs())

    def minutes(self, sample: Sample) -> float:
        """The unread records in minutes of the traffic; 0 while nothing is known or sent."""
        return (sample.unread or 0) / self.rate / 60 if self.rate else 0.0
