"""Which batch a pipeline can go back to, and what it starts from then."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import Partition
from spark_jobs.tables.ledger import (
    PAIRED,
    PLANNED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_RAW,
    Ledger,
    LedgerRow,
    OffsetRange,
    removed_through,
)
from spark_jobs.tables.records import REWIND, Corrected, RewindPlan, TopicIds
from spark_jobs.tables.warehouse import OPEN, Warehouse


class Target(NamedTuple):
    """Where a rewind goes back to. `base`: the `paired` row of batch `to_batch`, None for 0, the time before the first batch.

    `given_up`: the `planned` rows of all later batches. `last_paired` and `published`: the largest batch_ids with these steps.
    `before`: the `planned` rows of the batches from `corrected_from` on that an earlier rewind is still correcting. `removed`: the
    last batch whose raw rows were given up for their age, 0 for none; `compounds_removed`: the same of its compounds.
    """

    to_batch: int
    base: LedgerRow | None
    given_up: list[LedgerRow]
    last_paired: int
    published: int
    before: list[LedgerRow]
    removed: int = 0
    compounds_removed: int = 0

    @property
    def newest(self) -> int:
        """The largest batch_id that was ever planned."""
        return self.given_up[-1].batch_id

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of the input topics, as the last plan has them."""
        return self.given_up[-1].plan.topic_ids

    @property
    def open_version(self) -> int:
        """The version of open_events as it was after the batch."""
        return (self.base or self.given_up[0]).versions[OPEN]

    @property
    def open_after(self) -> int:
        """The number of events that the batch left open."""
        return self.base.paired.open_after if self.base else 0


def find_target(warehouse: Warehouse, ledger: Ledger, to_batch: int) -> Target:
    """Raises NeedsOperator if the pipeline cannot go back to that batch, or need not."""
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
    unsaid = removed_through(removals, REMOVED_COMPOUNDS)
    return Target(to_batch, base, given_up, known[PAIRED], known[PUBLISHED], before, removed, unsaid)


def plan_of(warehouse: Warehouse, target: Target) -> LedgerRow:
    """The plan of the rewind, a batch of its own with the next batch_id."""
    pipeline, now, batch_id = warehouse.pipeline, datetime.now(UTC), target.newest + 1
    before = target.base.plan.corrected if target.base else None
    return LedgerRow(
        batch_id=batch_id,
        step=PLANNED,
        plan=RewindPlan(
            open_before=target.open_after,
            topic_ids=target.topic_ids,
            corrected=Corrected(before.first if before else target.to_batch + 1, batch_id),
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
    """Empty ranges, where the next batch reads on; `end_offset` is as far as any batch has read (exclusive)."""
    known = {(at.topic, at.partition): at for at in target.base.offsets} if target.base else {}
    ends: dict[Partition, tuple[int, int]] = {}
    for row in [*target.before, *target.given_up]:
        for at in row.offsets:
            place = (at.topic, at.partition)
            # A partition that is newer than the batch is read again from where it was begun, and what was lost before that is lost again.
            known.setdefault(place, at._replace(until_offset=at.from_offset - at.lost, max_ts=None))
            end = (at.end_offset if row.kind == REWIND else at.until_offset, at.epoch)
            ends[place] = max(ends.get(place, end), end)
    found = []
    for place, at in sorted(known.items()):
        end_offset, epoch = max(ends.get(place, (0, -1)), (at.until_offset, at.epoch))
        found.append(at.behind()._replace(end_offset=end_offset, epoch=epoch))
    return tuple(found)


def unfinished(steps: dict[str, LedgerRow], to_batch: int) -> LedgerRow | None:
    """The plan of the last batch if that is a rewind to this batch, which may have been killed."""
    planned = steps.get(PLANNED)
    same = planned is not None and isinstance(planned.plan, RewindPlan) and planned.plan.to_batch == to_batch
    return planned if same else None
