"""Land: plan a batch in the ledger, read exactly its offsets, append every record as it came with what it says.

    land_events --pipeline include/pipelines/calls.yaml [--warehouse URI] [--max-records N] [--accept-lost-range RANGES]

Begins by finishing a batch that was planned earlier but not paired; then plans its own.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from spark_jobs.broker.lag_group import show_landed
from spark_jobs.broker.offsets import Partition, ask_broker
from spark_jobs.broker.ranges import plan_ranges, ranges_left
from spark_jobs.broker.settings import kafka_settings
from spark_jobs.broker.topic_ids import checked_ids
from spark_jobs.job import Counts, job_parser, run_job
from spark_jobs.landed import advance, count, is_of, landed_counts
from spark_jobs.landing import append_raw
from spark_jobs.pair_events import pair_batch
from spark_jobs.pairing.clock import PartitionProgress, batch_clock
from spark_jobs.pairing.conservation import BrokenInvariant
from spark_jobs.replaying.work import finish_replay
from spark_jobs.rewinding.revisions import still_to_come
from spark_jobs.rewinding.undo import finish_rewind
from spark_jobs.session import expect_rows
from spark_jobs.storage.agreement import check_ledger, check_tables, newest_row, table_versions
from spark_jobs.storage.ledger import LANDED, LIVE, PAIRED, PLANNED, REPLAY, REWIND, Ledger, LedgerRow, OffsetRange
from spark_jobs.storage.tables import LEDGER, OPEN, Warehouse, raw_table


def main(warehouse: Warehouse, max_records: int, accepted_losses: Collection[str] = ()) -> Counts:
    """Finishes an unfinished batch as it was planned, then plans and lands the next one; gives its counts.

    `accepted_losses`: lost ranges that the operator gives up, as the job has named them.
    """
    if not warehouse.exists(LEDGER):
        warehouse.create_missing()
    ledger = Ledger(warehouse)
    last = finish_batch(warehouse, ledger, accepted_losses)
    planned = plan_batch(warehouse, ledger, last, max_records, accepted_losses)
    return {"batch_id": planned.batch_id, **land_batch(warehouse, ledger, planned, accepted_losses).counts}


def finish_batch(warehouse: Warehouse, ledger: Ledger, accepted_losses: Collection[str] = ()) -> LedgerRow | None:
    """Does what the last batch still lacks; gives its `paired` row with the counts of its plan beside its own, None before the
    first batch.
    """
    steps = ledger.last_batch()
    check_tables(warehouse, newest_row(steps))
    if not steps:
        return None
    planned, paired = steps[PLANNED], steps.get(PAIRED)
    if paired is None and planned.kind == REWIND:
        paired = finish_rewind(warehouse, ledger, planned)
    elif paired is None and planned.kind == REPLAY:
        paired = finish_replay(warehouse, ledger, planned)
    elif paired is None:
        landed = steps.get(LANDED) or land_batch(warehouse, ledger, planned, accepted_losses)
        paired = pair_batch(warehouse, ledger, planned, landed)
    # Only the plan says which topics it was made with.
    return replace(paired, counts=planned.counts | paired.counts)


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
    now = ask_broker(kafka_settings(), [side.topic for side in pipeline.sides])
    ids = checked_ids(pipeline, last.counts if last else {}, now)
    plan = LedgerRow(
        batch_id=last.batch_id + 1 if last else 1,
        kind=LIVE,
        step=PLANNED,
        offsets=tuple(plan_ranges(previous, now, max_records, accepted_losses)),
        wall_time=now.wall_time,
        # The plan holds all that a batch starts from: the previous clock, and the open events as they are now.
        clock=last.clock if last else None,
        counts={"open_before": last.counts["open_after"] if last else 0, **ids, **still_to_come(warehouse, ledger, last)},
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
    ranges = _still_there(warehouse, planned, accepted_losses)
    try:
        with ThreadPoolExecutor(max_workers=2) as both:
            # list() waits for both and raises what either raised.
            list(both.map(lambda side: append_raw(warehouse, planned, ranges, side), pipeline.sides))
    except Exception:
        # If the broker went away meanwhile, or lost something, this says so in one line.
        _still_there(warehouse, planned, accepted_losses)
        raise
    found = landed_counts(warehouse, planned)
    offsets = tuple(advance(known, [row for row in found if is_of(row, known)]) for known in ranges)
    counts = count(pipeline, planned.batch_id, offsets, found)
    # This setting is the operator's way out, so the file's counts, not the plan's.
    if counts["offset_gaps"] and warehouse.pipeline.offset_gaps == "fail":
        raise BrokenInvariant(
            f"batch {planned.batch_id}: {counts['offset_gaps']} planned offsets hold no record (offset_gaps: fail)"
        )
    progress = [PartitionProgress(known.until_offset == known.end_offset, known.max_ts) for known in offsets]
    clock = batch_clock(progress, planned.wall_time, planned.clock, pipeline.clock)
    versions = planned.versions | table_versions(warehouse, [raw_table(side) for side in pipeline.sides])
    landed = planned.next_step(LANDED, started, offsets=offsets, clock=clock, counts=counts, versions=versions)
    ledger.append(landed)
    if warehouse.pipeline.consumer_group:
        show_landed(kafka_settings(), warehouse.pipeline.consumer_group, offsets)
    return landed


def _still_there(warehouse: Warehouse, planned: LedgerRow, accepted_losses: Collection[str]) -> tuple[OffsetRange, ...]:
    """The planned ranges, less what the broker has lost since and the operator gave up. Raises BrokerProblem and NeedsOperator."""
    now = ask_broker(kafka_settings(), [side.topic for side in planned.pipeline.sides])
    checked_ids(planned.pipeline, planned.counts, now)
    landed_from: dict[Partition, int] = {}
    if any(now.earliest.get((known.topic, known.partition), 0) > known.from_offset for known in planned.offsets):
        # A job that died may have landed it before it was lost.
        for row in landed_counts(warehouse, planned):
            place = (row["topic"], row["partition"])
            landed_from[place] = min(row["first"], landed_from.get(place, row["first"]))
    return ranges_left(planned.offsets, now, landed_from, accepted_losses)


if __name__ == "__main__":
    parser = job_parser("land_events", __doc__)
    parser.add_argument(
        "--max-records", type=int, help="at most so many records in this batch (default: the pipeline's setting)"
    )
    parser.add_argument(
        "--accept-lost-range",
        action="append",
        default=[],
        metavar="TOPIC-PARTITION:FIRST-UNTIL",
        help="go on without these records, which the broker no longer has; several with spaces between, or repeat",
    )
    given = parser.parse_args()
    if given.max_records is not None and given.max_records < 1:
        parser.error("--max-records must be at least 1")
    limit = given.max_records or given.pipeline.max_records_per_batch
    losses = " ".join(given.accept_lost_range).split()
    run_job("land_events", given, lambda warehouse: main(warehouse, limit, losses))
