"""The numbers of all batches in one file beside the pages, `trend-data.js`: columns, so that it stays small.

It is a script of one assignment, since a page that is opened as a file may load scripts but no JSON. The report adds its batches to what is
there; only if the file is missing, or not to be understood, is it made anew from the tables.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from include.config.store import Store, read_text
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.silence_words import WARNING, notices
from spark_jobs.tables.ledger import (
    LANDED,
    LIVE,
    PAIRED,
    PLANNED,
    PUBLISHED,
    REPLAY,
    REWIND,
    STEPS,
    TO_BATCH,
    LedgerRow,
)

FILE = "trend-data.js"
# A month of batches every five minutes; older ones are in the tables.
KEPT = 10_000
_FORMAT, _BEGIN, _END = 1, "trend=", ";\n"
_KINDS = (LIVE, REPLAY, REWIND)
_COLUMNS = ("batch", "at", "kind", "state", "settings", "to", "said")


class Trend:
    """Columns of equal length, by batch_id: `batch`, `at` (W, epoch seconds), `kind`, `state`, `settings` (which of the config
    hashes), `to` (a rewind's target), `said` (what began or ended with it, in words), and one of each metric, null where a batch has none. `now`: what
    the newest live batch warns of. `removed`: the last batch that is missing because it was removed for its age; 0 if none is.
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.values: dict[str, list[float | None]] = {}
        self.settings: list[str] = []
        self.now: list[str] = []
        self.removed = 0

    @classmethod
    def load(cls, pages: Store, pipeline: str) -> Trend | None:
        """What the file among the pages says; None if there is none, or none of this form."""
        try:
            if (text := read_text(pages, FILE)) is None:
                return None
            found = json.loads(text.removeprefix(_BEGIN).removesuffix(_END))
            trend = cls(pipeline)
            if (found["format"], found["pipeline"]) != (_FORMAT, pipeline):
                return None
            trend.columns = {name: list(found[name]) for name in _COLUMNS}
            trend.values = {name: list(each) for name, each in found["values"].items()}
            trend.settings, trend.now = list(found["hashes"]), list(found["now"])
            # Files of before have none.
            trend.removed = int(found.get("removed", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        lengths = {len(column) for column in (*trend.columns.values(), *trend.values.values())}
        return trend if len(lengths) == 1 else None

    def add(self, batches: list[Batch]) -> None:
        """Adds the batches; one that is there already, from a report that died, is replaced. The oldest beyond KEPT go."""
        for batch in sorted(batches, key=lambda each: each.steps[PAIRED].batch_id):
            self._make_room(batch.steps[PAIRED].batch_id)
            self._append(batch)
        for column in (*self.columns.values(), *self.values.values()):
            del column[:-KEPT]
        self.values = {name: column for name, column in self.values.items() if any(value is not None for value in column)}

    def _make_room(self, batch_id: int) -> None:
        there = self.columns["batch"]
        while there and there[-1] >= batch_id:
            for column in (*self.columns.values(), *self.values.values()):
                column.pop()

    def _append(self, batch: Batch) -> None:
        paired, length = batch.steps[PAIRED], len(self.columns["batch"])
        if paired.config_hash not in self.settings:
            self.settings.append(paired.config_hash)
        found = notices(paired.pipeline, batch.metrics)
        if paired.kind == LIVE:
            self.now = [notice.text for notice in found if notice.style == WARNING]
        row = (
            paired.batch_id,
            round(paired.wall_time / 1000, 1),
            _KINDS.index(paired.kind),
            batch.state,
            self.settings.index(paired.config_hash),
            paired.counts.get(TO_BATCH),
            "; ".join(notice.text for notice in found if notice.is_news) or None,
        )
        for name, value in zip(_COLUMNS, row, strict=True):
            self.columns[name].append(value)
        known = {name: value for name, value in batch.metrics.items() if ":" not in name} | ledger_values(batch.steps)
        for name in sorted({*known, *self.values}):
            self.values.setdefault(name, [None] * length).append(_short(known.get(name)))

    def newest(self) -> dict[str, float]:
        """The numbers of the newest batch that has them."""
        return {name: column[-1] for name, column in sorted(self.values.items()) if column and column[-1] is not None}

    def text(self) -> str:
        """What is in the file."""
        head = {
            "format": _FORMAT,
            "pipeline": self.pipeline,
            "hashes": self.settings,
            "now": self.now,
            "removed": self.removed,
        }
        return _BEGIN + json.dumps({**head, **self.columns, "values": self.values}, separators=(",", ":")) + _END


def ledger_values(steps: dict[str, LedgerRow]) -> Metrics:
    """What the ledger tells of a batch beside its counts: how long its steps took, and how far its clock is behind, in seconds."""
    found = {f"{step}_seconds": took(steps[step]) for step in STEPS if step in steps}
    paired = steps.get(LANDED, steps[PAIRED])
    if paired.clock is not None:
        found["clock_lag_seconds"] = (paired.wall_time - paired.clock) / 1000
    if PUBLISHED in steps and PLANNED in steps:
        found["delay_seconds"] = _between(steps[PLANNED].started_at, steps[PUBLISHED].finished_at)
    return {name: value for name, value in found.items() if value is not None}


def took(row: LedgerRow) -> float | None:
    """Seconds between begin and end of a step; None if it has no end yet."""
    return _between(row.started_at, row.finished_at)


def _between(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else round((end - start).total_seconds(), 3)


def _short(value: float | None) -> float | None:
    """Without digits that nobody reads."""
    if value is None:
        return None
    return int(value) if float(value).is_integer() else round(value, 6)
