"""A batch as the report carries it from the ledger to the pages. No other file of this room reads the counts of a ledger row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_jobs.quality.numbers import FAILED, PASSED, Breakdown, Metrics
from spark_jobs.quality.suite import Verdict
from spark_jobs.tables.ledger import LANDED, LIVE, PAIRED, PLANNED, REWIND, TO_BATCH, LedgerRow
from spark_jobs.tables.warehouse import METRICS, Warehouse

Steps = dict[str, LedgerRow]
_END = "end_"


@dataclass(frozen=True)
class Batch:
    """`at`: wall time W of its plan, epoch ms. `steps`: its ledger rows by step, empty where only its metrics were read. `metrics` and
    `breakdowns` are empty until the batch is measured, `state` (PASSED, WARNED or FAILED) and `verdict` are None until it is judged; the
    tables keep the state, not the verdict.
    """

    batch_id: int
    at: int
    steps: Steps = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    breakdowns: Sequence[Breakdown] = ()
    state: int | None = None
    verdict: Verdict | None = None

    @classmethod
    def of(cls, steps: Steps, metrics: Metrics | None = None, state: int | None = None) -> Batch:
        """A paired batch by its ledger rows."""
        return cls(steps[PAIRED].batch_id, steps[PAIRED].wall_time, steps, metrics or {}, state=state)

    @property
    def planned(self) -> LedgerRow:
        """Its plan."""
        return self.steps[PLANNED]

    @property
    def landed(self) -> LedgerRow:
        """Its `landed` row; the `paired` one of a rewind or replay, which lands nothing."""
        return self.steps.get(LANDED, self.paired)

    @property
    def paired(self) -> LedgerRow:
        """Its `paired` row."""
        return self.steps[PAIRED]

    @property
    def is_live(self) -> bool:
        """Neither a rewind nor a replay. Metrics of earlier versions say it only by their corrections."""
        if self.steps:
            return self.paired.kind == LIVE
        return bool(self.metrics.get("live", not self.metrics.get("corrections", 0.0)))

    @property
    def counted_ids(self) -> range:
        """The batches whose rows are counted with it: itself; a rewind answers for those that it gave up, which must have no rows."""
        first = count_of(self.paired, TO_BATCH) + 1 if self.paired.kind == REWIND else self.batch_id
        return range(first, self.batch_id + 1)

    def goes_on_from(self, previous: int) -> int:
        """The batch whose state it continues: the previous one; of a rewind its target. 0: none."""
        return count_of(self.paired, TO_BATCH) if self.paired.kind == REWIND else previous

    def count(self, step: str, name: str) -> int:
        """A count of one of its steps; 0 where the step has none of this name, or is not recorded."""
        return count_of(self.steps[step], name) if step in self.steps else 0


def count_of(row: LedgerRow, name: str) -> int:
    """A count of a ledger row; 0 if it has none of this name."""
    return row.counts.get(name, 0)


def topic_id_of(published: LedgerRow) -> tuple[int, int]:
    """The id of the output topic that the batch was sent to, in two halves."""
    return count_of(published, "topic_id_high"), count_of(published, "topic_id_low")


def ends_of(published: LedgerRow | None) -> dict[int, int]:
    """Output partition -> its end (exclusive) when the batch was published; empty without a row."""
    counts = published.counts if published else {}
    return {int(name.removeprefix(_END)): end for name, end in counts.items() if name.startswith(_END)}


def stored_batches(warehouse: Warehouse, first: int, last: int) -> list[Batch]:
    """The reported batches first..last, both inclusive, by batch_id, as quality_metrics has them."""
    found = []
    for row in warehouse.small_rows(METRICS, first, last):
        metrics = dict(row["metrics"])
        at = metrics.get("wall_time", row["judged_at"].timestamp() * 1000)
        breakdowns = [Breakdown(**each) for each in row.get("breakdowns") or ()]
        state = PASSED if row.get("success") else FAILED
        found.append(Batch(row["batch_id"], int(at), metrics=metrics, breakdowns=breakdowns, state=state))
    return sorted(found, key=lambda batch: batch.batch_id)


def total(batches: Iterable[Batch], step: str, name: str) -> int:
    """A count, summed over batches."""
    return sum(batch.count(step, name) for batch in batches)
