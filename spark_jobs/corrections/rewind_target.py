"""The target of a rewind: which batch a pipeline can go back to, and from what it continues then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import Partition
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    PAIRED,
    PLANNED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_RAW,
    LedgerRow,
    OffsetRange,
    removed_through,
)
from spark_jobs.tables.records import REWIND, CorrectedBatches, RewindPlan, TopicIds
from spark_jobs.tables.schemas import OPEN, REJECTED, raw_table
from spark_jobs.tables.tables import TableProblem, Tables
from spark_jobs.tables.warehouse import Warehouse


class Target(NamedTuple):
    """The batch that a rewind goes back to; 0: the time before the first batch."""

    to_batch: int
    # The `paired` row of the batch, None for 0.
    base: LedgerRow | None
    # The `planned` rows of all later batches.
    given_up: list[LedgerRow]
    # The largest batch_ids with these steps.
    last_paired: int
    published: int
    # The `planned` rows of the batches up to `to_batch` that an earlier rewind still corrects.
    before: list[LedgerRow]
    # The last batches whose raw rows, and whose compounds, were removed for their age; 0 for none.
    removed: int = 0
    compounds_removed: int = 0

    @property
    def newest(self) -> int:
        """The largest batch_id that was ever planned."""
        return self.given_up[-1].batch_id

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of the input topics, from the last plan."""
        return self.given_up[-1].plan.topic_ids

    @property
    def open_version(self) -> int:
        """The version of open_events after the batch."""
        return (self.base or self.given_up[0]).versions[OPEN]

    @property
    def open_after(self) -> int:
        """The number of events that the batch left open."""
        return self.base.paired.open_after if self.base else 0


def find_target(warehouse: Tables, ledger: Ledger, to_batch: int) -> Target:
    """The target; raises NeedsOperator if the pipeline cannot go back to that batch, or need not."""
    name, known = warehouse.pipeline.name, ledger.last_ids()
    newest = known[PLANNED]
    if not 0 <= to_batch <= newest:
        raise NeedsOperator(
            f"there is no batch {to_batch} in the ledger of pipeline {name}, which knows of 1 to {newest}: name one of "
            "them, or 0 for the time before the first"
        )
    for rewind in ledger.rewinds():
        if rewind.voids(to_batch):
            raise NeedsOperator(
                f"batch {to_batch} is void, rewind {rewind.batch_id} went back to batch {rewind.to_batch}: name batch "
                f"{rewind.to_batch} or one from {rewind.batch_id} on"
            )
    removals = ledger.removals()
    removed = removed_through(removals, REMOVED_RAW)
    if to_batch < removed:
        raise NeedsOperator(
            f"the raw rows of batch {removed} and of all before it were removed for their age, so nothing can go on from batch {to_batch}: "
            f"name batch {removed} or a later one"
        )
    if to_batch < (erased := ledger.last_erasure()):
        raise NeedsOperator(
            f"batch {erased} has erased rows of batch {to_batch} or of batches before it, so nothing can go back to it: name batch {erased} or "
            "a later one"
        )
    rows = ledger.rows(to_batch)
    base = next((row for row in rows if (row.batch_id, row.step) == (to_batch, PAIRED)), None)
    if to_batch and base is None:
        raise NeedsOperator(
            f"batch {to_batch} is not paired, so nothing can go on from it: name batch {known[PAIRED]}, the last that is, or an "
            "earlier one"
        )
    if to_batch == newest:
        raise NeedsOperator(
            f"batch {to_batch} is the last of pipeline {name}, there is nothing to take back: name an earlier one"
        )
    first = base.plan.corrected.first if base and base.plan.corrected else to_batch
    before = [row for row in (ledger.rows(first, to_batch) if first < to_batch else []) if row.step == PLANNED]
    given_up = [row for row in rows if row.step == PLANNED and row.batch_id > to_batch]
    compounds_removed = removed_through(removals, REMOVED_COMPOUNDS)
    return Target(to_batch, base, given_up, known[PAIRED], known[PUBLISHED], before, removed, compounds_removed)


def plan_rewind(warehouse: Tables, target: Target) -> LedgerRow:
    """The plan of the rewind, a batch with the next batch_id."""
    pipeline, now, batch_id = warehouse.pipeline, datetime.now(UTC), target.newest + 1
    before = target.base.plan.corrected if target.base else None
    return LedgerRow(
        batch_id=batch_id,
        step=PLANNED,
        plan=RewindPlan(
            open_before=target.open_after,
            topic_ids=target.topic_ids,
            corrected=CorrectedBatches(before.first if before else target.to_batch + 1, batch_id),
            to_batch=target.to_batch,
        ),
        offsets=starting_ranges(target),
        wall_time=int(now.timestamp() * 1000),
        clock=target.base.clock if target.base else None,
        versions={OPEN: target.open_version},
        config=pipeline.to_json(),
        config_hash=pipeline.config_hash,
        started_at=now,
    )


def starting_ranges(target: Target) -> tuple[OffsetRange, ...]:
    """Empty ranges from which the next batch continues; `end_offset` is how far any batch has read (exclusive)."""
    known = {at.place: at for at in target.base.offsets} if target.base else {}
    ends: dict[Partition, tuple[int, int]] = {}
    for row in [*target.before, *target.given_up]:
        for at in row.offsets:
            place = at.place
            # A partition that is newer than the batch is read again from its begin; records lost before that are lost again.
            known.setdefault(place, at._replace(until_offset=at.from_offset - at.lost, max_ts=None))
            end = (at.end_offset if row.kind == REWIND else at.until_offset, at.epoch)
            ends[place] = max(ends.get(place, end), end)
    ranges = []
    for place, at in sorted(known.items()):
        end_offset, epoch = max(ends.get(place, (0, -1)), (at.until_offset, at.epoch))
        ranges.append(at.behind()._replace(end_offset=end_offset, epoch=epoch))
    return tuple(ranges)


def unfinished_rewind(steps: dict[str, LedgerRow], to_batch: int) -> LedgerRow | None:
    """The plan of the last batch if it is a rewind to this batch, finished or not."""
    planned = steps.get(PLANNED)
    return planned if planned and planned.kind == REWIND and planned.rewind.to_batch == to_batch else None


def appended_tables(warehouse: Tables) -> list[str]:
    """The tables from which a rewind removes the rows of later batches."""
    return [*(raw_table(side) for side in warehouse.pipeline.sides), REJECTED]


def rows_after(warehouse: Warehouse, table: str, batch_id: int, what: str) -> DataFrame:
    """One row, with `what` in the column of that name, for each row of batches > `batch_id`."""
    rows = warehouse.read(table, ["batch_id"], where=lambda column: column("batch_id") > batch_id)
    return rows.select(F.lit(what).alias("what"))


def count_each(frames: Iterable[DataFrame]) -> Counter[str]:
    """How many rows of all frames have each value of `what`."""
    counted = reduce(DataFrame.unionAll, frames).groupBy("what").count().collect()
    return Counter({row["what"]: row["count"] for row in counted})


def check_open_events(warehouse: Warehouse, to_batch: int, version: int, expected: int) -> None:
    """Raises NeedsOperator if open_events cannot be read as batch `to_batch` left it."""
    try:
        with warehouse.translate_table_errors(OPEN):
            # All columns: the log does not say whether the files are there and whole.
            rows = warehouse.read(OPEN, version=version)
            row = rows.agg(F.count("*").alias("events"), F.max(F.xxhash64(*rows.columns)).alias("read")).first()
        events = row["events"] if row else 0
    except (TableProblem, NeedsOperator) as problem:
        if not isinstance(problem, TableProblem) and "is missing" not in str(problem):
            raise
        raise NeedsOperator(
            f"open_events as it was after batch {to_batch} (version {version}) cannot be read any more ({problem}): was it vacuumed? "
            "go back to a later batch"
        ) from None
    if events != expected:
        raise NeedsOperator(
            f"open_events as it was after batch {to_batch} (version {version}) holds {events} events, but the batch left {expected}: "
            "was the table changed by hand? go back to another batch"
        )
