"""Landing: a batch is planned in the ledger, exactly its offsets are read, and every record is appended as it came, with what it says."""

from __future__ import annotations

import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from spark_jobs.kafka.input_topics import ask_inputs, check_ids, commit_landed_offsets
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.kafka.open_transactions import held_partitions, total_held
from spark_jobs.kafka.ranges import (
    LandedSpan,
    cut_below,
    first_offsets,
    has_lost,
    landed_beyond,
    plan_ranges,
    ranges_left,
)
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.rules.clock import PartitionProgress, batch_clock
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.session import expect_rows
from spark_jobs.stages.landed_counts import advance, count, is_of, landed_counts
from spark_jobs.stages.landing import append_raw
from spark_jobs.tables.agreement import check_ledger, table_versions
from spark_jobs.tables.ledger import (
    LANDED,
    PLANNED,
    Ledger,
    LedgerRow,
    OffsetRange,
)
from spark_jobs.tables.outbox import still_to_correct
from spark_jobs.tables.records import LivePlan
from spark_jobs.tables.warehouse import OPEN, Warehouse, raw_table

# A transaction that takes longer is told; a shorter one is nothing unusual.
_OPEN_FOR_LONG_MS = 60_000


def plan_batch(
    warehouse: Warehouse, ledger: Ledger, last: LedgerRow | None, max_records: int, accepted_losses: Collection[str] = ()
) -> LedgerRow:
    """Writes the plan of the next batch before any work on it, and gives the row that is in the table.

    `last`: what `finish_batch` gave.
    """
    started = datetime.now(UTC)
    pipeline = warehouse.pipeline
    check_ledger(warehouse, last)
    previous = {(known.topic, known.partition): known for known in last.offsets} if last else {}
    now = ask_inputs(pipeline, last.plan.topic_ids if last else None, previous.values())
    if beyond := landed_beyond([known.behind() for known in previous.values()], now):
        raise cut_below(ledger, beyond)
    ranges = plan_ranges(previous, now, max_records, accepted_losses)
    if not last:
        for (topic, number), first in first_offsets(ranges).items():
            print(f"{topic}-{number} began at {first}: older records were gone before this pipeline")
    plan = LedgerRow(
        batch_id=last.batch_id + 1 if last else 1,
        step=PLANNED,
        plan=LivePlan(
            open_before=last.paired.open_after if last else 0,
            topic_ids=check_ids(pipeline, None, now),
            corrected=still_to_correct(warehouse, ledger, last),
            gone_at_start=0 if last else sum(first_offsets(ranges).values()),
        ),
        offsets=tuple(ranges),
        wall_time=now.wall_time,
        # The plan holds all that a batch starts from: the previous clock, and the open events as they are now.
        clock=last.clock if last else None,
        versions=last.versions if last else {OPEN: warehouse.version(OPEN)},
        config=pipeline.to_json(),
        config_hash=pipeline.config_hash,
        started_at=started,
    )
    return ledger.plan(plan)


def land_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, accepted_losses: Collection[str] = ()) -> LedgerRow:
    """Appends the planned offsets to the raw tables, reads back what is there, and records it with the batch's clock.

    What the broker has lost since the plan is refused like any lost range; once it is accepted the batch is landed without it.
    """
    started = datetime.now(UTC)
    pipeline = planned.pipeline
    expect_rows(warehouse.spark, sum(known.planned for known in planned.offsets))
    # Whoever reads would try for long to reach a broker that is away, and not say which.
    now = _ask(planned)
    ranges = _still_there(warehouse, ledger, planned, accepted_losses, now)
    try:
        with ThreadPoolExecutor(max_workers=2) as both:
            # list() waits for both and raises what either raised.
            list(both.map(lambda side: append_raw(warehouse, planned, ranges, side), pipeline.sides))
    except Exception:
        # If the broker went away meanwhile, or lost something, this says so in one line.
        _still_there(warehouse, ledger, planned, accepted_losses, _ask(planned))
        raise
    found = landed_counts(warehouse, planned)
    offsets = tuple(advance(known, [row for row in found if is_of(row, known)]) for known in ranges)
    gone = planned.plan.gone_at_start if isinstance(planned.plan, LivePlan) else 0
    counts = count(pipeline, planned.batch_id, offsets, found, _warn_of_held(now), gone)
    # This setting is the operator's way out, so the file's counts, not the plan's.
    if counts.offset_gaps and warehouse.pipeline.offset_gaps == "fail":
        raise BrokenInvariant(
            f"batch {planned.batch_id}: {counts.offset_gaps} planned offsets hold no record (offset_gaps: fail)"
        )
    progress = [PartitionProgress(known.until_offset == known.end_offset, known.max_ts) for known in offsets]
    clock = batch_clock(progress, planned.wall_time, planned.clock, pipeline.clock)
    versions = planned.versions | table_versions(warehouse, [raw_table(side) for side in pipeline.sides])
    landed = planned.next_step(LANDED, started, counts, offsets=offsets, clock=clock, versions=versions)
    ledger.append(landed)
    if warehouse.pipeline.consumer_group:
        commit_landed_offsets(kafka_settings(), warehouse.pipeline.consumer_group, offsets)
    return landed


def _ask(planned: LedgerRow) -> TopicsNow:
    """What the broker holds of both topics. Raises BrokerProblem, and NeedsOperator where they are others than were planned."""
    return ask_inputs(planned.pipeline, planned.plan.topic_ids, planned.offsets)


def _warn_of_held(now: TopicsNow) -> tuple[int, int | None]:
    """What of both topics nobody could read yet, for the counts; in the log, with the remedy, where that is so for longer than usual."""
    held = held_partitions(kafka_settings(), now)
    for at in held:
        if at.since is None or at.since < now.wall_time - _OPEN_FOR_LONG_MS:
            print(
                f"warning: {at}: {at.waiting} offsets from there on wait for the end of another producer's transaction, open{at.opened()}; "
                f"it ends by its timeout, or, if that producer is gone, by {at.remedy()}",
                file=sys.stderr,
            )
    return total_held(held)


def _still_there(
    warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, accepted_losses: Collection[str], now: TopicsNow
) -> tuple[OffsetRange, ...]:
    """The planned ranges, less what the broker has lost since and the operator gave up. Raises NeedsOperator."""
    if beyond := landed_beyond(planned.offsets, now):
        raise cut_below(ledger, beyond)
    landed: dict[Partition, LandedSpan] = {}
    if any(has_lost(known, now) for known in planned.offsets):
        # A job that died may have landed it before it was lost.
        for row in landed_counts(warehouse, planned):
            place = (row["topic"], row["partition"])
            known = landed.get(place, LandedSpan(row["first"], row["last"]))
            landed[place] = LandedSpan(min(row["first"], known.first), max(row["last"], known.last))
    return ranges_left(planned.offsets, now, landed, accepted_losses)
