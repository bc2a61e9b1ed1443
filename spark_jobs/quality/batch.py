"""A batch as the report carries it from the ledger to the pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.config.setting_changes import Change, changed_settings
from spark_jobs.kafka.ranges import new_topics
from spark_jobs.quality.numbers import FAILED, PASSED, Breakdown, Metrics
from spark_jobs.quality.suite import Verdict
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, LedgerRow, landing_of
from spark_jobs.tables.records import LIVE, REWIND, LandedCounts, PairedCounts
from spark_jobs.tables.schemas import METRICS
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

Steps = dict[str, LedgerRow]


@dataclass(frozen=True)
class Batch:
    """`at`: wall time W of its plan, epoch ms. `steps`: its ledger rows by step, empty where only its metrics were read. `metrics`,
    `breakdowns`, `changes` (settings that differ from those of the batch before) and `new_topics` (that it did not read) are empty until the batch
    is measured, `state` (PASSED, WARNED or FAILED) and `verdict` are None until it is judged; the tables keep the state, not the verdict.
    """

    batch_id: int
    at: int
    steps: Steps = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    breakdowns: Sequence[Breakdown] = ()
    changes: Sequence[Change] = ()
    new_topics: Sequence[str] = ()
    state: int | None = None
    verdict: Verdict | None = None

    @classmethod
    def of(cls, steps: Steps, metrics: Metrics | None = None, state: int | None = None) -> Batch:
        """A paired batch by its ledger rows."""
        return cls(steps[PAIRED].batch_id, steps[PAIRED].wall_time, steps, metrics or {}, state=state)

    @property
    def planned(self) -> LedgerRow:
        return self.steps[PLANNED]

    @property
    def landed(self) -> LedgerRow:
        """Its `landed` row; the `paired` one of a rewind or replay, which lands nothing."""
        return self.steps.get(LANDED, self.paired)

    @property
    def paired(self) -> LedgerRow:
        return self.steps[PAIRED]

    @property
    def is_live(self) -> bool:
        """Neither a rewind nor a replay."""
        return self.paired.kind == LIVE if self.steps else bool(self.metrics["live"])

    @property
    def counted_ids(self) -> range:
        """The batches whose rows are counted with it: itself; a rewind answers for those that it gave up, which must have no rows."""
        first = self.paired.rewind.to_batch + 1 if self.paired.kind == REWIND else self.batch_id
        return range(first, self.batch_id + 1)

    def goes_on_from(self, previous: int) -> int:
        """The batch whose state it continues: the previous one; of a rewind its target. 0: none."""
        return self.paired.rewind.to_batch if self.paired.kind == REWIND else previous

    def changed_since(self, previous: Batch | None) -> list[Change]:
        """The settings in the plan of this batch that differ from those in the plan of the previous one; none for the first batch."""
        if previous is None or previous.paired.config_hash == self.paired.config_hash:
            return []
        return changed_settings(previous.paired.pipeline, self.paired.pipeline)

    def topics_since(self, previous: Batch | None) -> list[str]:
        """The input topics that the previous batch did not know; none for the first batch."""
        return [] if previous is None else new_topics(self.paired.offsets, previous.paired.offsets)

    @property
    def landing(self) -> LandedCounts:
        """The counts of its landing; zeros for a rewind or replay."""
        return landing_of(self.steps)

    @property
    def pairing(self) -> PairedCounts:
        return self.paired.paired


def stored_batches(warehouse: Warehouse, first: int, last: int) -> list[Batch]:
    """The reported batches first..last, both inclusive, by batch_id, as quality_metrics has them."""
    return _stored(warehouse.small_rows(METRICS, first, last))


def chosen_batches(warehouse: Tables, batch_ids: Collection[int]) -> list[Batch]:
    """As `stored_batches`: those of these batches that are reported."""
    if not batch_ids:
        return []
    columns = ["batch_id", "metrics", "breakdowns", "success"]
    return _stored(warehouse.select_rows(METRICS, columns, lambda row: row("batch_id").isin(list(batch_ids))))


def _stored(rows: Iterable[dict[str, Any]]) -> list[Batch]:
    found = []
    for row in rows:
        metrics = dict(row["metrics"])
        breakdowns = [Breakdown(**each) for each in row["breakdowns"]]
        state = PASSED if row["success"] else FAILED
        found.append(Batch(row["batch_id"], int(metrics["wall_time"]), metrics=metrics, breakdowns=breakdowns, state=state))
    return sorted(found, key=lambda batch: batch.batch_id)
