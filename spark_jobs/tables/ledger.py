"""The ledger: one row a step of every batch. What it says is what happened; every job begins by reading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.warehouse import LEDGER, Condition, Warehouse

PLANNED, LANDED, PAIRED, PUBLISHED, REPORTED = STEPS = ("planned", "landed", "paired", "published", "reported")
# Before the first message of a batch is sent: where the output partitions end, so that what is sent from then on can be found again.
PUBLISHING = "publishing"
# Not every batch comes to these: rows are given up for their age, those of the batch and of all before it; of the ledger and the metrics
# those of all before it, so that its own are the first that are left.
REMOVED_RAW, REMOVED_REJECTED, REMOVED_COMPOUNDS, REMOVED_LEDGER = REMOVALS = (
    *("removed_raw", "removed_rejected", "removed_compounds"),
    "removed_ledger",
)
# Counts of these steps: rows that go with the step, rows that ever went, and the first batch whose rows go with it.
REMOVED, REMOVED_EVER, FIRST_REMOVED = "removed", "removed_ever", "first_batch"
_IN_ORDER = (PLANNED, LANDED, PAIRED, PUBLISHING, PUBLISHED, REPORTED, *REMOVALS)
LIVE, REPLAY, REWIND = "live", "replay", "rewind"
TO_BATCH = "to_batch"
# Of the pipeline's first batch: how many offsets before those that it found were gone from the topics by then.
GONE_AT_START = "gone_at_start"
# Carried by `removed_raw` rows and by plans of replays after them: the largest timestamp of an event that was ever removed.
REMOVED_UNTIL = "removed_until"
# Seldom does a step lag further behind than the first of these, and hardly ever further than the second.
_RECENT = (1, 20)


class OffsetRange(NamedTuple):
    """What a batch reads of one partition: from_offset inclusive, until_offset exclusive. `end_offset`: the read_committed end
    asked for after W. `max_ts`: largest accepted timestamp landed from the partition so far (epoch ms; None: none yet).
    `lost`: records before from_offset that the broker no longer had and the operator gave up. `began`: the first offset that the
    partition had when the pipeline planned its first batch; the same in all batches. `cut`: how many offsets, from `cut_from` on, the log
    once had at its end and then no more, given up likewise. `epoch`: the leader epoch of end_offset, -1 if the broker did not tell.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    end_offset: int
    max_ts: int | None = None
    lost: int = 0
    began: int = 0
    cut_from: int = 0
    cut: int = 0
    epoch: int = -1

    @property
    def planned(self) -> int:
        """Offsets in the range."""
        return self.until_offset - self.from_offset

    def behind(self) -> OffsetRange:
        """The empty range behind this one, of a batch that reads nothing."""
        return self._replace(from_offset=self.until_offset, lost=0, cut_from=0, cut=0)


class Rewind(NamedTuple):
    """A rewind as it was planned: the batches between `to_batch` and `batch_id`, both exclusive, are void."""

    batch_id: int
    to_batch: int

    def voids(self, batch_id: int) -> bool:
        """Whether this rewind gave the batch up."""
        return self.to_batch < batch_id < self.batch_id


def rewinds_among(rows: Iterable[LedgerRow]) -> list[Rewind]:
    """The rewinds planned in these rows, by batch_id."""
    return sorted(Rewind(row.batch_id, row.counts[TO_BATCH]) for row in rows if (row.kind, row.step) == (REWIND, PLANNED))


@dataclass(frozen=True)
class LedgerRow:
    """One step of one batch. `wall_time` is W, `clock` the batch's clock (None: minus infinity), both epoch ms."""

    batch_id: int
    kind: str
    step: str
    offsets: tuple[OffsetRange, ...]
    wall_time: int
    clock: int | None
    config: str
    config_hash: str
    started_at: datetime
    counts: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    finished_at: datetime | None = None

    @property
    def pipeline(self) -> Pipeline:
        """The settings the batch was planned with; a batch is finished with these, whatever the file says by now."""
        return Pipeline.from_json(self.config)

    def next_step(self, step: str, started_at: datetime, **changes: Any) -> LedgerRow:
        """The row of a later step of the same batch."""
        return replace(self, step=step, started_at=started_at, **changes)


_COLUMNS = tuple(each.name for each in fields(LedgerRow))


class Ledger:
    """Reads and appends ledger rows of one pipeline."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse

    def last_batch(self) -> dict[str, LedgerRow]:
        """Step -> row of the batch with the largest id; empty before the first plan."""
        return {row.step: row for row in self._checked(self.warehouse.newest_rows(LEDGER, 0))}

    def last_ids(self) -> dict[str, int]:
        """Step -> the largest batch_id for which it is recorded; 0 for a step that never was."""
        found = dict.fromkeys(STEPS, 0)
        for before in (*_RECENT, None):
            wanted = ["batch_id", "step"]
            recent = (
                self.warehouse.newest_rows(LEDGER, before, wanted)
                if before
                else self.warehouse.small_rows(LEDGER, 1, columns=wanted)
            )
            for row in recent:
                if row["step"] in found:
                    found[row["step"]] = max(found[row["step"]], row["batch_id"])
            if all(found.values()) or min((row["batch_id"] for row in recent), default=1) == 1:
                break
        return found

    def rows(self, first: int, last: int | None = None) -> list[LedgerRow]:
        """All rows of the batches first..last, both inclusive, by batch and step; `last` None: up to the newest."""
        return self._checked(self.warehouse.small_rows(LEDGER, first, last))

    def where(self, condition: Condition) -> list[LedgerRow]:
        """The rows that fit, by batch and step."""
        found = [_from_row(row) for row in self.warehouse.found(LEDGER, list(_COLUMNS), condition)]
        return sorted(found, key=lambda row: (row.batch_id, _IN_ORDER.index(row.step)))

    def rewinds(self) -> list[Rewind]:
        """Every rewind that was ever planned, by batch_id."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "kind", "step"])
        ids = [row["batch_id"] for row in known if (row["kind"], row["step"]) == (REWIND, PLANNED)]
        return rewinds_among(row for batch_id in ids for row in self.rows(batch_id, batch_id))

    def settings(self) -> list[Pipeline]:
        """All settings that batches were planned with, each once."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["config"])
        return [Pipeline.from_json(text) for text in sorted({row["config"] for row in known})]

    def removals(self) -> dict[str, LedgerRow]:
        """The last row of each of REMOVALS that there is, by step: what is given up for its age, and up to which batch."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step"])
        last: dict[str, int] = {}
        for row in known:
            if row["step"] in REMOVALS:
                last[row["step"]] = max(row["batch_id"], last.get(row["step"], 0))
        return {step: row for step, batch_id in last.items() for row in self.rows(batch_id, batch_id) if row.step == step}

    def _checked(self, found: list[dict[str, Any]]) -> list[LedgerRow]:
        rows = [_from_row(row) for row in found]
        for row in rows[:1]:
            self._check_identity(row)
        return sorted(rows, key=lambda row: (row.batch_id, _IN_ORDER.index(row.step)))

    def _check_identity(self, row: LedgerRow) -> None:
        ran_with, now = row.pipeline.identity, self.warehouse.pipeline.identity
        if ran_with != now:
            raise NeedsOperator(
                f"pipeline {self.warehouse.pipeline.name}: its tables were made with topics, payloads and key {ran_with}, the file "
                f"now says {now}: put it back, or give the changed pipeline a file name of its own, and so its own tables"
            )

    def plan(self, plan: LedgerRow) -> LedgerRow:
        """Writes the plan of a batch before any work on it, and gives the row that is in the table: that one counts."""
        self.append(plan)
        written = next(row for row in self.rows(plan.batch_id, plan.batch_id) if row.step == PLANNED)
        # Two live plans may differ in what they read; either will do. Of the others the operator said what is wanted.
        if written.kind != plan.kind or (plan.kind != LIVE and written.counts != plan.counts):
            raise JobProblem(
                f"batch {plan.batch_id} was planned by another job meanwhile, nothing was changed: run this again"
            )
        return written

    def append(self, *rows: LedgerRow, among: str = "") -> None:
        """Records one step of one or more batches in one commit, fenced by the largest batch_id. Repeats do nothing.

        `among`: the same step with another text is no repetition.

        Of two planners with one batch_id only one writes, so a plan is read again before it is used. Later steps follow from
        the plan and the tables; whoever repeats them would write the same.
        """
        step, batch_id = rows[-1].step, max(row.batch_id for row in rows)
        now = datetime.now(UTC)
        found = [_to_row(replace(row, finished_at=now)) for row in rows]
        commit_rows(self.warehouse, LEDGER, found, step, batch_id, among)


def _to_row(row: LedgerRow) -> dict[str, Any]:
    return {**vars(row), "offsets": [offsets._asdict() for offsets in row.offsets]}


def _from_row(row: dict[str, Any]) -> LedgerRow:
    # Maps come as dicts from Spark and as pairs from Arrow.
    return LedgerRow(
        batch_id=row["batch_id"],
        kind=row["kind"],
        step=row["step"],
        offsets=tuple(OffsetRange(**offsets) for offsets in row["offsets"]),
        wall_time=row["wall_time"],
        clock=row["clock"],
        config=row["config"],
        config_hash=row["config_hash"],
        started_at=row["started_at"],
        counts=dict(row["counts"]),
        versions=dict(row["versions"]),
        finished_at=row["finished_at"],
    )


def removed_through(removals: Mapping[str, LedgerRow], step: str) -> int:
    """The last batch whose rows are given up for their age by this one of REMOVALS; 0 if none are."""
    if step not in removals:
        return 0
    return removals[step].batch_id - (step == REMOVED_LEDGER)


def counting(rows: list[LedgerRow]) -> list[dict[str, LedgerRow]]:
    """The paired batches among these, as rows by step, without those that a rewind gave up: their rows are gone from the tables."""
    rewinds = rewinds_among(rows)
    steps: dict[int, dict[str, LedgerRow]] = {}
    for row in rows:
        if not any(rewind.voids(row.batch_id) for rewind in rewinds):
            steps.setdefault(row.batch_id, {})[row.step] = row
    return [found for _, found in sorted(steps.items()) if PAIRED in found]
