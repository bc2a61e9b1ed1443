"""The whole pipeline held against the broker and the tables: nothing is lost, nothing is there twice."""

from __future__ import annotations

from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.acls import grant_command, on_topic
from spark_jobs.kafka.input_topics import check_ids
from spark_jobs.kafka.messages import message_columns
from spark_jobs.kafka.offsets import TopicsNow, ask_broker, wait_for_markers
from spark_jobs.kafka.open_transactions import Unreadable, check_readable, unreadable_problem
from spark_jobs.kafka.output_topic import Cleanup, OutputTopic, cleanup_of, output_topic
from spark_jobs.kafka.records import Span, read_records, translate_read_errors
from spark_jobs.kafka.settings import Settings, kafka_settings
from spark_jobs.quality import planned_offsets as planned
from spark_jobs.quality import record_outcomes as inputs
from spark_jobs.quality import sent_compounds as outputs
from spark_jobs.quality.aged import Aged, find_aged
from spark_jobs.quality.delivery import ends_of
from spark_jobs.quality.findings import SHOWN, Finding, Offenders, offenders_of
from spark_jobs.spark.session import expect_rows
from spark_jobs.tables.ledger import (
    LANDED,
    PAIRED,
    PLANNED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_LEDGER,
    REMOVED_RAW,
    Ledger,
    LedgerRow,
    Rewind,
    removed_through,
)
from spark_jobs.tables.records import LIVE
from spark_jobs.tables.warehouse import COMPOUNDS, LEDGER, OPEN, Warehouse, declared_schema

Counts = dict[str, int]
_REMOVED, _REMOVED_SEEN = (
    "records removed from the raw tables for their age",
    "… that have an outcome or are on the input topics",
)
_GONE, _GONE_SEEN = "compounds removed for their age", "… messages where theirs were"
# Of the batches whose outcomes are gone, those that later batches had still to decide.
_WAITED, _WAITED_SEEN = "events that waited when outcomes before went for their age", "… that have an outcome"


_UNKNOWABLE = "… not on it, and not judgeable"


class Answer(NamedTuple):
    """What was compared, as (what, how many), and who does not fit. `unknowable`: why something cannot be judged; empty if all can.
    `unchecked`: what cannot be compared any more, in a sentence.
    """

    horizon: int
    counts: Counts
    offenders: list[Offenders]
    unknowable: str = ""
    unchecked: str = ""


class _Started(NamedTuple):
    """Everything that is fixed at the start. `horizon`: the last published batch; `ledger`: the rows up to it. `paired`: the row of
    the last batch up to it that no rewind gave up, the last of those (`counting`) that answer for the input. `aged`: what was given
    up for its age.
    """

    horizon: int
    paired: LedgerRow
    ledger: DataFrame
    counting: DataFrame
    rewinds: list[Rewind]
    aged: Aged
    topics: TopicsNow
    output: OutputTopic
    cleanup: Cleanup


def reconcile(warehouse: Warehouse) -> Answer:
    """Compares everything up to the last published batch; raises JobProblem if something cannot be read."""
    started = _start(warehouse)
    if started is None:
        return Answer(0, {"published batches": 0}, [])
    return translate_read_errors(lambda: _compare(warehouse, started), warehouse.pipeline.topics)


def _compare(warehouse: Warehouse, started: _Started) -> Answer:
    ranges = planned.planned_ranges(started.counting)
    # While a rewind is not published, the tables are behind the horizon already.
    landed_until = started.paired.batch_id
    aged = started.aged
    kept = F.col("batch_id") > aged.raw
    # Rows that are about to be removed may still be there.
    raw = inputs.raw_rows(warehouse, aged.raw, landed_until)
    offsets, lost, gone = _offsets(ranges)
    expect_rows(warehouse.spark, offsets)
    open_version = started.paired.versions[OPEN]
    void = planned.is_void(started.rewinds)
    claims = inputs.outcomes(warehouse, started.ledger, void, aged.unchecked, landed_until, open_version)
    records = read_records(warehouse.spark, _input_spans(ranges, started), False, [*inputs.PLACE, "key", "value"])
    places = inputs.by_place(raw, claims, records).withColumns(
        {"removed": inputs.was_removed(aged.removals.get(REMOVED_RAW)), "unchecked": inputs.was_removed(aged.undecided)}
    )
    places = places.persist(StorageLevel.DISK_ONLY)
    compounds, absent = _compounds(warehouse, started)
    try:
        offenders = offenders_of(
            [
                planned.check_contiguous(ranges, aged.begins),
                planned.check_steps(started.ledger, started.rewinds),
                *planned.check_landed(started.counting, ranges.where(kept), raw),
                planned.check_removed(started.counting, aged),
                inputs.check_places(places),
                outputs.check_compounds(absent, warehouse.pipeline, aged.ends),
            ]
        )
        counts = _batches(started) | {
            "offsets planned": offsets,
            "records given up (lost ranges)": lost + aged.summed("lost"),
            "records that were gone when the pipeline began": gone,
        }
        counts |= _count(warehouse, started, places, absent)
    finally:
        places.unpersist()
        compounds.unpersist()
    unknowable = _why(warehouse.pipeline.output_topic, started.cleanup) if counts[_UNKNOWABLE] else ""
    return Answer(started.horizon, counts, _without_collapsed(offenders, counts), unknowable, aged.told() or "")


def _why(topic: str, cleanup: Cleanup) -> str:
    if cleanup.compacted is None:
        return (
            f"whether {topic} is compacted cannot be seen; for the user to see it: "
            f"{grant_command(kafka_settings(), on_topic('DescribeConfigs', topic))}"
        )
    return (
        f"{topic} is compacted, and tombstones that may have taken the last message of a key are gone themselves after its "
        f"delete.retention.ms of {cleanup.tombstones_ms:,}"
    )


def _without_collapsed(offenders: list[Offenders], counts: Counts) -> list[Offenders]:
    """Collapsed events are in no table but the raw ones, and nowhere once these are removed, so only their number can be compared."""
    seen = {found.finding: found.number for found in offenders}
    unseen = counts[_REMOVED] - counts[_REMOVED_SEEN] + counts[_WAITED] - counts[_WAITED_SEEN]
    if seen.get(Finding.NO_OUTCOME, 0) + unseen == counts["collapsed"]:
        return [found for found in offenders if found.finding is not Finding.NO_OUTCOME]
    if unseen:
        told = f"{unseen} records whose raw rows were removed are on no topic and in no table; {counts['collapsed']} events are collapsed"
        offenders = [*offenders, Offenders(Finding.REMOVED_WITHOUT_OUTCOME, unseen, [told])]
    return offenders


def _start(warehouse: Warehouse) -> _Started | None:
    """The ledger first, the ends then, the other tables last: so everything that the ends include is in the tables."""
    ledger = Ledger(warehouse)
    horizon = ledger.last_ids()[PUBLISHED]
    if not horizon:
        return None
    rewinds = ledger.rewinds()
    last = horizon
    while found := [rewind.to_batch for rewind in rewinds if rewind.voids(last)]:
        last = min(found)
    if not last:
        # All that is published was given up, and the rewind is about to be published.
        return None
    steps = {row.step: row for row in ledger.rows(last, last)}
    columns = ["batch_id", "kind", "step", "offsets", "counts", "output", "finished_at"]
    begins = removed_through(ledger.removals(), REMOVED_LEDGER) + 1
    declared = declared_schema(warehouse.pipeline, LEDGER)
    schema = StructType([declared[name] for name in columns])
    rows = warehouse.spark.createDataFrame(warehouse.rows_between(LEDGER, begins, horizon, columns), schema)
    counting = rows.where((F.col("batch_id") <= last) & ~planned.is_void(rewinds))
    settings, pipeline = kafka_settings(), warehouse.pipeline
    output = output_topic(settings, pipeline.output_topic, operation="Read")
    wait_for_markers(settings, pipeline.output_topic)
    topics = ask_broker(settings, [*(side.topic for side in pipeline.sides), pipeline.output_topic])
    _check_readable(ledger, horizon, settings, pipeline.output_topic, topics)
    check_ids(pipeline, steps[PLANNED].plan.topic_ids, topics)
    aged = find_aged(ledger, output.topic_id)
    cleanup = cleanup_of(settings, pipeline.output_topic)
    return _Started(horizon, steps[PAIRED], rows, counting, rewinds, aged, topics, output, cleanup)


def _check_readable(ledger: Ledger, horizon: int, settings: Settings, name: str, topics: TopicsNow) -> None:
    """Raises JobProblem where what was published lies behind the open transaction of another producer: it would seem not to be sent."""
    published = next(row for row in ledger.rows(horizon, horizon) if row.step == PUBLISHED)
    if published.output_state.topic_id != topics.ids[name]:
        return
    try:
        check_readable(topics, {(name, number): end for number, end in ends_of(published).items()})
    except Unreadable as problem:
        raise unreadable_problem(settings, problem) from None


def _batches(started: _Started) -> Counts:
    """Published batches that answer for the input, and how many others there are up to the horizon."""
    live = started.counting.where((F.col("step") == PAIRED) & (F.col("kind") == LIVE)).count()
    rewinds = sum(rewind.batch_id <= started.horizon for rewind in started.rewinds)
    void = sum(
        any(rewind.voids(batch) for rewind in started.rewinds) for batch in range(started.aged.begins, started.horizon + 1)
    )
    gone = {"batches removed from the ledger for their age": started.aged.begins - 1} if started.aged.begins > 1 else {}
    return {**gone, "published batches": live, "rewinds": rewinds, "void batches": void}


def _offsets(ranges: DataFrame) -> tuple[int, int, int]:
    """Offsets planned, records given up, and offsets before those with which the partitions began for the pipeline."""
    planned, lost = F.col("until_offset") - F.col("from_offset"), F.col("lost") + F.col("cut")
    began = ranges.groupBy("topic", "partition").agg(F.max("began").alias("began")).agg(F.sum("began")).first()
    total = ranges.agg(F.sum(planned), F.sum(lost)).first()
    return ((total[0] or 0), (total[1] or 0), (began[0] or 0)) if total and began else (0, 0, 0)


def _input_spans(ranges: DataFrame, started: _Started) -> dict[tuple[str, int], Span]:
    """Of every input partition what was planned up to the horizon, as far as the broker still has it."""
    rows = ranges.groupBy("topic", "partition").agg(
        F.min("from_offset").alias("first"), F.max("until_offset").alias("until")
    )
    spans = {}
    for row in rows.collect():
        place = (row["topic"], row["partition"])
        if place in started.topics.end:
            spans[place] = Span(
                max(row["first"], started.topics.earliest[place]), min(row["until"], started.topics.end[place])
            )
    return spans


def _compounds(warehouse: Warehouse, started: _Started) -> tuple[DataFrame, DataFrame]:
    """Compounds and messages side by side: as persisted, and with why a message may be absent."""
    topic = warehouse.pipeline.output_topic
    spans = {
        place: Span(first, started.topics.end[place])
        for place, first in started.topics.earliest.items()
        if place[0] == topic
    }
    published = outputs.published_batches(started.ledger, started.output)
    records = read_records(warehouse.spark, spans, False, ["partition", "offset", "key", "value", "headers"])
    kept = warehouse.read(
        COMPOUNDS,
        message_columns(warehouse.pipeline),
        where=lambda column: column("batch_id") > started.aged.compounds,
    )
    expected = outputs.expected_messages(kept, warehouse.pipeline, published)
    compounds = outputs.by_compound(expected, records).persist(StorageLevel.DISK_ONLY)
    seen = compounds.where((F.col("compounds") > 0) & (F.col("messages") > 0))
    first = {
        row["partition"]: row["first"] for row in seen.groupBy("partition").agg(F.min("batch_id").alias("first")).collect()
    }
    # Asked for once more: what retention removed while the topic was read is not lost either.
    earliest = ask_broker(kafka_settings(), [topic]).earliest
    truncated = {number: first.get(number) for (_, number), offset in earliest.items() if offset > 0}
    absent = outputs.with_absence(compounds, published, started.horizon, truncated)
    return compounds, outputs.with_compaction(absent, started.cleanup)


def _count(warehouse: Warehouse, started: _Started, places: DataFrame, compounds: DataFrame) -> Counts:
    """What became of the records and of the compounds, in the order of the report."""

    def how_many(rows: DataFrame, **conditions: str) -> Counts:
        found = rows.agg(
            *(F.count(F.when(F.expr(condition), True)).alias(name) for name, condition in conditions.items())
        ).first()
        return {name: found[name] if found else 0 for name in conditions}

    aged = started.aged
    later = started.counting.where(F.col("batch_id") > aged.unchecked)
    removed = later.where((F.col("step") == LANDED) & (F.col("batch_id") <= aged.raw))
    landed = how_many(
        places,
        landed="raw > 0",
        compounds="compound_events > 0",
        rejected="rejected_events > 0",
        open="open_events > 0",
        topic_gone="raw > 0 and records = 0",
        removed="removed and not unchecked and (outcomes > 0 or records > 0)",
        waited="unchecked and outcomes > 0",
    )
    sent = how_many(
        compounds.withColumns({"ours": outputs.is_ours(warehouse.pipeline), "old": outputs.of_gone_compounds(aged.ends)}),
        due="due",
        on_topic="due and messages > 0",
        removed="due and messages = 0 and gone",
        replaced="replaced and not gone and not unknowable",
        unknowable="unknowable",
        later="compounds > 0 and batch_id > " + str(started.horizon) + " and messages > 0",
        strange="compounds = 0 and not ours",
        old="old and ours",
    )
    waited = {_WAITED: aged.waiting, _WAITED_SEEN: landed["waited"]}
    compounds_gone = {_GONE: aged.gone(REMOVED_COMPOUNDS), _GONE_SEEN: sent["old"]}
    return {
        "records landed": landed["landed"],
        "… in compound_events": landed["compounds"],
        "… in rejected_events": landed["rejected"],
        "… in open_events": landed["open"],
        "collapsed": _sum(later.where(F.col("step") == PAIRED), "collapsed"),
        "… no longer on the input topics": landed["topic_gone"],
        _REMOVED: _sum(removed, "landed"),
        _REMOVED_SEEN: landed["removed"],
        **waited,
        "compounds to be published": sent["due"],
        "… on the output topic": sent["on_topic"],
        "… no longer on it (retention, or another topic)": sent["removed"],
        "… no longer on it (a later message of the key, on a compacted topic)": sent["replaced"],
        _UNKNOWABLE: sent["unknowable"],
        **compounds_gone,
        "messages of later batches": sent["later"],
        "messages of others": sent["strange"],
    }


def _sum(rows: DataFrame, name: str) -> int:
    """The sum of a count of these rows of the ledger."""
    total = rows.agg(F.sum(F.try_element_at("counts", F.lit(name))).alias("total")).first()
    return (total and total["total"]) or 0


def told(name: str, topic: str, answer: Answer) -> str:
    """The report: counts, offenders; ends with one sentence if there are none."""
    width = max(len(what) for what in answer.counts)
    lines = [f"{what:<{width}}  {count:>12,}" for what, count in answer.counts.items()]
    for found in answer.offenders:
        lines += ["", f"{found.number:,} {found.finding}:", *(f"    {what}" for what in found.first)]
        lines += [f"    … and {found.number - SHOWN:,} more"] if found.number > SHOWN else []
    if answer.unchecked:
        lines += ["", f"{name}: {answer.unchecked}."]
    if not answer.horizon:
        lines += ["", f"{name}: nothing is published yet, so there is nothing to compare."]
    elif answer.unknowable:
        lines += ["", f"{name}: {answer.counts[_UNKNOWABLE]:,} compounds are not judgeable, because {answer.unknowable}."]
    elif not answer.offenders:
        landed, on_topic = answer.counts["records landed"], answer.counts["… on the output topic"]
        lines += [
            "",
            f"{name}: all {landed:,} records of {answer.counts['published batches']:,} batches have exactly one outcome, and all {on_topic:,} compounds "
            f"that {topic} can still have are on it exactly once.",
        ]
    return "\n".join(lines)


def fail_if_any(name: str, offenders: list[Offenders]) -> None:
    """Raises NeedsOperator with the number of offenders of each kind."""
    if offenders:
        kinds = "; ".join(f"{found.number:,} {found.finding}" for found in offenders)
        raise NeedsOperator(f"pipeline {name} does not add up: {kinds}; the first of each are listed above")
