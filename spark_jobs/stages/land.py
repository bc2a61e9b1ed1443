"""Landing: plans a batch in the ledger, reads exactly its offsets, and appends every record as it came, with its parsed fields.

Workers read spans of offsets, parse them, and write files of the raw table; the driver gets the names of the files and commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pyarrow as pa

from include.config.pipeline import Pipeline, Side
from spark_jobs.faults.fault_points import fault_point
from spark_jobs.faults.problems import NeedsOperator, warn
from spark_jobs.formats.decoding import Parser, event_parser
from spark_jobs.formats.registry import Registry, registry_settings
from spark_jobs.kafka.clusters import by_cluster, settings_of
from spark_jobs.kafka.input_topics import ask_inputs, find_topics, show_landed
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.kafka.open_transactions import held_partitions, total_held
from spark_jobs.kafka.ranges import (
    LandedSpan,
    cut_below,
    first_offsets,
    has_lost,
    landed_beyond,
    new_topics,
    plan_ranges,
    ranges_left,
)
from spark_jobs.kafka.records import BAD_HEADER, RECORD, Share, Span, read_shares, shares, translate_read_errors
from spark_jobs.kafka.settings import Settings
from spark_jobs.rules.clock import PartitionProgress, batch_clock
from spark_jobs.rules.compounds import source_columns
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.rules.parsed_columns import Columns, problems_with_headers
from spark_jobs.rules.times import likelier_unit
from spark_jobs.spark.workers import release_memory, work_on
from spark_jobs.stages.landed_counts import LandedRows, advance, count, landed_counts
from spark_jobs.stages.revisions import revised_records
from spark_jobs.tables.commit import commit, is_committed
from spark_jobs.tables.integrity import check_ledger, table_versions
from spark_jobs.tables.known_schemas import SCHEMAS, KnownSchemas
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PLANNED, LedgerRow, OffsetRange
from spark_jobs.tables.outbox import pending_corrections
from spark_jobs.tables.parquet_files import NEW_FILE, FilePlace, NewFile, merge_into_row_groups, write_file
from spark_jobs.tables.records import LivePlan, TopicIds
from spark_jobs.tables.schemas import OPEN, raw_table
from spark_jobs.tables.warehouse import Warehouse

# Open transactions longer than this are reported; shorter ones are usual.
_OPEN_FOR_LONG_MS = 60_000
_YEAR_MS = 31_556_952_000


def plan_batch(
    warehouse: Warehouse, ledger: Ledger, last: LedgerRow | None, max_records: int, accepted_losses: Collection[str] = ()
) -> LedgerRow:
    """Writes the plan of the next batch before any work on it, and returns the row that is in the table.

    `last`: the result of `finish_batch`. `accepted_losses`: lost ranges that the operator gives up.
    """
    started = datetime.now(UTC)
    pipeline = warehouse.pipeline
    check_ledger(warehouse, last)
    previous = {known.place: known for known in last.offsets} if last else {}
    topics = find_topics(pipeline, (topic for topic, _ in previous))
    now = ask_inputs(pipeline, topics, last.topic_ids if last else {}, previous.values())
    if beyond := landed_beyond([known.behind() for known in previous.values()], now):
        raise cut_below(ledger, beyond)
    ranges = plan_ranges(previous, now, max_records, accepted_losses)
    began = first_offsets(ranges, joined := new_topics(ranges, previous.values()))
    if last:
        _refuse_own_outputs(ledger, joined)
    for topic in joined if last else ():
        print(f"topic {topic} is new: it is read from its first offset on")
    for (topic, number), first in began.items():
        print(f"{topic}-{number} began at {first}: older records were gone before this pipeline")
    plan = LedgerRow(
        batch_id=last.batch_id + 1 if last else 1,
        step=PLANNED,
        plan=LivePlan(
            open_before=last.paired.open_after if last else 0,
            topic_ids=TopicIds.of(topics, now.ids),
            corrected=pending_corrections(warehouse, ledger, last),
            gone_at_start=sum(began.values()),
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


def _refuse_own_outputs(ledger: Ledger, joined: Collection[str]) -> None:
    """Raises NeedsOperator for a new topic to which earlier settings published: a pattern may match it once they no longer name it."""
    outputs = {topic for each in ledger.settings() for topic in each.output_topics} if joined else set[str]()
    if own := sorted(outputs.intersection(joined)):
        raise NeedsOperator(
            f"topic {own[0]} has compounds or rejected records of this pipeline, which would be read as its events: correct topic_pattern in "
            "the pipeline's file, or delete the topic"
        )


def land_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, accepted_losses: Collection[str] = ()) -> LedgerRow:
    """Appends the planned offsets to the raw tables, counts the rows there, and records them with the batch's clock.

    Records that the broker has lost since the plan are refused like any lost range, or left out if `accepted_losses` names them.
    """
    started = datetime.now(UTC)
    pipeline = planned.pipeline
    # The readers would try for long to reach a broker that is down, and not name it.
    ranges, now = _remaining_ranges(warehouse, ledger, planned, accepted_losses)
    try:
        with ThreadPoolExecutor(max_workers=2) as pool:
            # list() waits for both and raises the first error.
            list(pool.map(lambda side: append_raw(warehouse, planned, ranges, side), pipeline.sides))
    except Exception:
        # If the broker went down meanwhile, or lost records, this says so in one line.
        _remaining_ranges(warehouse, ledger, planned, accepted_losses)
        raise
    rows = landed_counts(warehouse, planned)
    offsets = tuple(advance(known, rows) for known in ranges)
    counts = count(planned, offsets, rows, _warn_of_held(warehouse.pipeline, now), revised_records(warehouse, planned))
    for side in pipeline.sides:
        _warn_of_unit(side, pipeline.times(side).format, rows, planned.wall_time)
    # The setting of the file counts, not that of the plan: changing it is the operator's remedy.
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
        show_landed(warehouse.pipeline, warehouse.pipeline.consumer_group, offsets)
    return landed


def _warn_of_held(pipeline: Pipeline, now: TopicsNow) -> tuple[int, int | None]:
    """The offsets of all topics behind open transactions, for the counts; logs those open for longer than usual, with the remedy."""
    clusters = by_cluster(pipeline, now.ids)
    held = [at for settings, topics in clusters for at in held_partitions(settings, now, topics)]
    for at in held:
        if at.since is None or at.since < now.wall_time - _OPEN_FOR_LONG_MS:
            warn(
                f"{at}: {at.waiting} offsets from there on wait for the end of another producer's transaction, open{at.opened()}; "
                f"it ends by its timeout, or, if that producer is gone, by {at.remedy()}"
            )
    return total_held(held)


def _warn_of_unit(side: Side, form: str | None, rows: list[LandedRows], wall_time: int) -> None:
    """Logs that the times of a side would be about now by another unit, with the remedy."""
    latest = max((row.max_ts for row in rows if side.has(row.topic) and row.max_ts is not None), default=None)
    if latest is not None and (unit := likelier_unit(form, latest, wall_time)):
        # The year 56000 has no name in Python.
        year = 1970 + latest // _YEAR_MS
        warn(f"times of {side.input} lie around the year {year}: they look like {unit}; set timestamp_format: {unit}")


def _remaining_ranges(
    warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, accepted_losses: Collection[str]
) -> tuple[tuple[OffsetRange, ...], TopicsNow]:
    """The planned ranges without records that the broker has lost since and the operator gave up, and the topics as they are now.

    Raises BrokerProblem and NeedsOperator.
    """
    now = ask_inputs(warehouse.pipeline, planned.topics, planned.topic_ids, planned.offsets)
    if beyond := landed_beyond(planned.offsets, now):
        raise cut_below(ledger, beyond)
    landed: dict[Partition, LandedSpan] = {}
    if any(has_lost(known, now) for known in planned.offsets):
        # A job that died may have landed the records before they were lost.
        for row in landed_counts(warehouse, planned):
            known = landed.get((row.topic, row.partition), LandedSpan(row.first, row.last))
            landed[row.topic, row.partition] = LandedSpan(min(row.first, known.first), max(row.last, known.last))
    return ranges_left(planned.offsets, now, landed, accepted_losses), now


def append_raw(warehouse: Warehouse, planned: LedgerRow, ranges: Iterable[OffsetRange], side: Side) -> None:
    """Appends the records of one side in the ranges to its raw table, once for the batch.

    Raises errors of the broker and of the tables.
    """
    spans = {at.place: Span(at.from_offset, at.until_offset) for at in ranges if side.has(at.topic) and at.planned}
    pipeline, table = planned.pipeline, raw_table(side)
    if not spans:
        return
    if is_committed(warehouse, table, table, planned.batch_id):
        # The commit is skipped like any repetition, but the records are not read again: the broker may no longer have them.
        return commit(warehouse, table, [], table, planned.batch_id)
    place, parts = warehouse.place_for_files(table), shares(spans)
    parse = _side_parser(warehouse, planned, side)
    # All topics of a side are on one cluster.
    settings = settings_of(warehouse.pipeline, parts[0][0].topic)
    land_part = _part_lander(settings, place, pipeline, side, parse, planned.batch_id)

    def append() -> None:
        offsets = sum(span.until - span.first for span in spans.values())
        written = work_on(lambda: warehouse.spark, parts, land_part, NEW_FILE, offsets)
        commit(warehouse, table, NewFile.all_of(written), table, planned.batch_id)

    translate_read_errors(append, warehouse.pipeline, {topic for topic, _ in spans})


def _side_parser(warehouse: Warehouse, planned: LedgerRow, side: Side) -> Callable[[], Parser]:
    """A function that makes the parser of a side in a worker. Raises NeedsOperator if the settings of a registry cannot be used."""
    pipeline, latest_ts = planned.pipeline, planned.wall_time + planned.pipeline.max_future_ms
    uses_registry = side.needs_registry
    settings = registry_settings() if uses_registry else {}
    schemas = warehouse.store(SCHEMAS)

    def parser() -> Parser:
        registry = Registry(settings, KnownSchemas(schemas)) if uses_registry else None
        return event_parser(pipeline, side, latest_ts, registry)

    return parser


def _part_lander(
    settings: Settings, place: FilePlace, pipeline: Pipeline, side: Side, parser: Callable[[], Parser], batch_id: int
) -> Callable[[tuple[Share, ...]], Iterator[pa.RecordBatch]]:
    """A function that reads the shares of a part, writes their records into a file, and returns that (`NEW_FILE`)."""

    def raw_rows(records: pa.RecordBatch, parse: Parser) -> pa.RecordBatch:
        parsed = parse(Columns(records["value"], records["record_timestamp"], records["key"], records["headers"]))
        columns = {name: records[name] for name in RECORD} | dict(zip(pipeline.key, parsed.key, strict=True))
        problem = problems_with_headers(parsed.problem, records[BAD_HEADER])
        columns |= {"ts": parsed.ts, "payload": parsed.payload, "problem": problem}
        columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.int64()), records.num_rows)
        if pipeline.has_compounds:
            columns |= source_columns(side, records["headers"])
        return pa.record_batch([columns[field.name].cast(field.type) for field in place.schema], schema=place.schema)

    def all_rows(part: tuple[Share, ...]) -> Iterator[pa.RecordBatch]:
        parse = parser()
        for records in read_shares(settings, part):
            yield raw_rows(records, parse)
            fault_point("records_read")

    def land_part(part: tuple[Share, ...]) -> Iterator[pa.RecordBatch]:
        release_memory()
        # None of the offsets may have a record left.
        if file := write_file(place.store, merge_into_row_groups(all_rows(part))):
            fault_point("raw_file_complete")
            yield file.as_row()

    return land_part
