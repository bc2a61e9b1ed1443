"""The numbers of all batches in one file beside the pages, `trend-data.js`: columns, so that the file stays small.

The file is a script of one assignment, because a page that is opened as a file can load scripts but no JSON. The report adds its batches to
it, and makes it anew from the tables only if it is missing or unreadable.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from include.config.health import Counts
from include.config.store import Store, read_text
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.silence import WARNING, notices
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, STEPS, LedgerRow
from spark_jobs.tables.records import ERASURE, LIVE, REPLAY, REWIND

FILE = "trend-data.js"
# A month of batches every five minutes; older ones are in the tables.
KEPT = 10_000
KINDS = (LIVE, REPLAY, REWIND, ERASURE)
# Field of Counts -> metric. Of these metrics there is a sum over all batches.
METRIC_OF = {name: "rejected_late" if name == "late" else name for name in Counts.model_fields}
_FORMAT, _BEGIN, _END = 1, "trend=", ";\n"
_COLUMNS = ("batch", "at", "kind", "state", "settings", "to", "said")


@dataclass
class Trend:
    """Columns of equal length, by batch_id: `batch`, `at` (W, epoch seconds), `kind`, `state`, `settings` (index of the config hash), `to`
    (a rewind's target), `said` (what began or ended with the batch, in words), and one of each metric, null where a batch has none. `now`:
    the warnings of the newest live batch. `removed`: the last batch that was removed for its age; 0 if none was. `dropped`: the sums of METRIC_OF's
    metrics over batches that were here and are no more.
    """

    pipeline: str
    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})
    values: dict[str, list[float | None]] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)
    now: list[str] = field(default_factory=list)
    removed: int = 0
    dropped: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, pages: Store, pipeline: str) -> Trend | None:
        """The trend in the file; None if there is no file, or none of this format."""
        try:
            if (text := read_text(pages, FILE)) is None:
                return None
            found = json.loads(text.removeprefix(_BEGIN).removesuffix(_END))
            if (found["format"], found["pipeline"]) != (_FORMAT, pipeline):
                return None
            columns = {name: list(found[name]) for name in _COLUMNS}
            values = {name: list(each) for name, each in found["values"].items()}
            trend = cls(pipeline, columns, values, list(found["hashes"]), list(found["now"]), int(found.get("removed", 0)))
            trend.dropped = dict(found.get("dropped", {}))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return trend if len({len(column) for column in trend._all()}) == 1 else None

    def _all(self) -> list[list[Any]]:
        return [*self.columns.values(), *self.values.values()]

    def add(self, batches: list[Batch]) -> None:
        """Adds the batches, in place of those that a report which died has left, and removes the oldest beyond KEPT."""
        for batch in sorted(batches, key=lambda each: each.batch_id):
            while self.columns["batch"] and self.columns["batch"][-1] >= batch.batch_id:
                for column in self._all():
                    column.pop()
            self._append(batch)
        for name in METRIC_OF.values():
            if gone := sum(value or 0 for value in self.values.get(name, [])[:-KEPT]):
                self.dropped[name] = self.dropped.get(name, 0) + gone
        for column in self._all():
            del column[:-KEPT]
        self.values = {name: column for name, column in self.values.items() if any(value is not None for value in column)}

    def _append(self, batch: Batch) -> None:
        paired, length = batch.paired, len(self.columns["batch"])
        if paired.config_hash not in self.settings:
            self.settings.append(paired.config_hash)
        found = notices(paired.pipeline, batch.metrics)
        if paired.kind == LIVE:
            self.now = [notice.text for notice in found if notice.style == WARNING]
        row = {
            "batch": paired.batch_id,
            "at": round(paired.wall_time / 1000, 1),
            "kind": KINDS.index(paired.kind),
            "state": batch.state,
            "settings": self.settings.index(paired.config_hash),
            "to": paired.rewind.to_batch if paired.kind == REWIND else None,
            "said": "; ".join(notice.text for notice in found if notice.is_news) or None,
        }
        for name, value in row.items():
            self.columns[name].append(value)
        numbers = {name: value for name, value in batch.metrics.items() if ":" not in name} | ledger_values(batch.steps)
        for name in sorted({*numbers, *self.values}):
            self.values.setdefault(name, [None] * length).append(_short(numbers.get(name)))

    def newest(self) -> dict[str, float]:
        """The numbers of the newest batch that has them."""
        return {name: column[-1] for name, column in sorted(self.values.items()) if column and column[-1] is not None}

    def totals(self) -> dict[str, float]:
        """The sums of METRIC_OF's metrics over all batches since the file was made anew the last time, those that were dropped since included."""
        return {
            name: self.dropped.get(name, 0) + sum(value or 0 for value in self.values.get(name, []))
            for name in METRIC_OF.values()
        }

    def text(self) -> str:
        head = {
            "format": _FORMAT,
            "pipeline": self.pipeline,
            "hashes": self.settings,
            "now": self.now,
            "removed": self.removed,
            "dropped": self.dropped,
        }
        return _BEGIN + json.dumps({**head, **self.columns, "values": self.values}, separators=(",", ":")) + _END


def ledger_values(steps: dict[str, LedgerRow]) -> Metrics:
    """What the ledger adds to a batch's counts: how long its steps took, and how far its clock is behind, in seconds."""
    found = {f"{step}_seconds": took(steps[step]) for step in STEPS if step in steps}
    clocked = steps.get(LANDED, steps[PAIRED])
    if clocked.clock is not None:
        found["clock_lag_seconds"] = (clocked.wall_time - clocked.clock) / 1000
    if PUBLISHED in steps and PLANNED in steps:
        found["delay_seconds"] = _between(steps[PLANNED].started_at, steps[PUBLISHED].finished_at)
    return {name: value for name, value in found.items() if value is not None}


def took(row: LedgerRow) -> float | None:
    """Seconds between begin and end of a step; None if it has not ended."""
    return _between(row.started_at, row.finished_at)


def _between(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else round((end - start).total_seconds(), 3)


def _short(value: float | None) -> float | None:
    if value is None:
        return None
    return int(value) if float(value).is_integer() else round(value, 6)
