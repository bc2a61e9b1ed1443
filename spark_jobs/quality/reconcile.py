"""The whole pipeline held against the broker and the tables: nothing is lost, nothing is there twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.health import FAILED, add_finding, heal
from include.config.pipeline import Pipeline
from include.config.store import pages_store
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.acls import grant_command, on_topic
from spark_jobs.kafka.clusters import ask_topics
from spark_jobs.kafka.offsets import Partition
from spark_jobs.kafka.output_topic import Cleanup
from spark_jobs.kafka.records import Span, translate_read_errors
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.checks import SHOWN, Finding, Offenders, count_where, offenders_of
from spark_jobs.quality.current_pages import write_current
from spark_jobs.quality.dead_letters import check_dead_letters, counts_of_dead_letters
from spark_jobs.quality.foreign_changes import FOREIGN_CHANGES
from spark_jobs.quality.landed_records import OUTCOMES, by_place, check_places, joined_spans, outcomes, raw_rows, was_removed
from spark_jobs.quality.reconcile_scope import Output, Scope, find_scope
from spark_jobs.quality.sent_compounds import (
    by_compound,
    check_compounds,
    is_ours,
    of_removed_compounds,
    with_absence,
    with_compaction,
)
from spark_jobs.quality.suite import LAWS
from spark_jobs.tables.ledger_rows import REMOVED_COMPOUNDS, REMOVED_RAW, REMOVED_REJECTED, removed_through
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

Counts = dict[str, int]
# What the report prints. The first three are used in its last sentence, the others to judge what cannot be compared one by one.
_BATCHES, _LANDED, _ON_TOPIC = "published batches", "records landed", "… on the output topic"
_COLLAPSED = "collapsed"
# Shown only where something was erased.
_ERASED, _ERASED_OPEN = "records erased", "… while they were open"
_REMOVED = "records removed from the raw tables for their age"
_REMOVED_SEEN = "… that have an outcome or are on the input topics"
# Of the batches whose outcomes are gone, those that later batches had still to decide.
_WAITED, _WAITED_SEEN = "events that waited when outcomes before went for their age", "… that have an outcome"
_UNKNOWABLE = "… not on it, and not judgeable"


class Answer(NamedTuple):
    """What was compared, and the offenders. `unknowable`: why something cannot be judged; `unchecked`: what cannot be compared any more; or empty."""

    horizon: int
    counts: Counts
    offenders: list[Offenders]
    unknowable: str = ""
    unchecked: str = ""
    others: tuple[str, ...] = ()  # topics beside the output topic


def reconcile(warehouse: Warehouse) -> Answer:
    """Compares everything up to the last published batch; raises JobProblem if something cannot be read."""
    scope = find_scope(warehouse)
    if scope is None:
        return Answer(0, {_BATCHES: 0}, [])
    return translate_read_errors(lambda: _compare(warehouse, scope), warehouse.pipeline, scope.topics.ids)


def _compare(warehouse: Warehouse, scope: Scope) -> Answer:
    ledger, removed = scope.ledger, scope.removed
    # While a rewind is not published, the tables are behind the horizon already.
    wrong = list(ledger.checked(raw_rows(warehouse, removed.raw, ledger.last), removed))
    letters = [
        check_dead_letters(warehouse, topic, sent, scope.topics, removed_through(removed.removals, REMOVED_REJECTED))
        for topic, sent in ledger.sent_rejected.items()
        if topic not in scope.gone
    ]
    wrong += [offence for each in letters for offence in each.offences]
    void = [batch_id for batch_id in range(removed.first_in_ledger, scope.horizon + 1) if ledger.is_void(batch_id)]
    claims = outcomes(warehouse, ledger.corrections, void, removed.unchecked, ledger.last, scope.open_version)
    gone = {"removed": was_removed(removed.removals.get(REMOVED_RAW)), "unchecked": was_removed(removed.last_outcomes)}
    places = by_place(warehouse, _input_spans(scope), claims, removed.raw, ledger.last).withColumns(gone)
    places = places.persist(StorageLevel.DISK_ONLY)
    compared = [(each, *_compounds(warehouse, scope, each)) for each in scope.outputs]
    try:
        checked = (
            check_compounds(compounds, scope.inputs, each.ends, "" if each.route.is_main else each.route.topic)
            for each, _, compounds in compared
        )
        offenders = offenders_of(wrong, [check_places(places), *checked])
        counts = _batches(scope, len(void)) | {
            "offsets planned": sum(at.planned for at in ledger.ranges),
            "records given up (lost ranges)": sum(at.lost + at.cut for at in ledger.ranges) + removed.from_ledger("lost"),
            "records that were gone when the pipeline began": ledger.began(),
        }
        counts |= _records(scope, places)
        of_topics = [_messages(warehouse, scope, each, compounds) for each, _, compounds in compared]
        counts |= {name: sum(found[name] for found in of_topics) for name in of_topics[0]}
        counts |= counts_of_dead_letters(letters)
    finally:
        places.unpersist()
        for _, persisted, _ in compared:
            persisted.unpersist()
    why = (
        _why(warehouse.pipeline, each.route.topic, each.cleanup)
        for each, found in zip(scope.outputs, of_topics, strict=True)
        if found[_UNKNOWABLE]
    )
    others = tuple(each.route.topic for each in scope.outputs[1:])
    unchecked = [
        removed.sentence(),
        *(f"what was published to {topic} was not checked, for that is gone" for topic in scope.gone),
    ]
    offenders = [*without_collapsed(offenders, counts), *_erased_otherwise(scope, counts[_ERASED])]
    counts = {what: number for what, number in counts.items() if number or what not in (_ERASED, _ERASED_OPEN)}
    said = "; ".join(filter(None, unchecked))
    return Answer(scope.horizon, counts, offenders, "; ".join(why), said, others)


def _erased_otherwise(scope: Scope, found: int) -> list[Offenders]:
    """Emptied raw rows are those that the ledger counts, or fewer: they are removed for their age like others."""
    counted = sum(batch.emptied for batch in scope.ledger.batches.values())
    # The ledger's own rows are removed last of all.
    if scope.removed.first_in_ledger > 1 or scope.erasing or found == counted or (scope.removed.raw and found < counted):
        return []
    return [Offenders(Finding.ERASED_NOT_COUNTED, 1, [f"{found} raw rows are emptied, {counted} were erased"])]


def _why(pipeline: Pipeline, topic: str, cleanup: Cleanup) -> str:
    if cleanup.compacted is None:
        remedy = grant_command(kafka_settings(pipeline.output_connection), on_topic("DescribeConfigs", topic))
        return f"whether {topic} is compacted cannot be seen; for the user to see it: {remedy}"
    return (
        f"{topic} is compacted, and tombstones that may have taken the last message of a key are gone themselves after its "
        f"delete.retention.ms of {cleanup.tombstones_ms:,}"
    )


def without_collapsed(offenders: list[Offenders], counts: Counts) -> list[Offenders]:
    """Collapsed events, and those erased while open, are in no table but the raw ones, and nowhere once these are removed, so only their
    number can be compared.
    """
    seen = {found.finding: found.number for found in offenders}
    unseen = counts[_REMOVED] - counts[_REMOVED_SEEN] + counts[_WAITED] - counts[_WAITED_SEEN]
    if seen.get(Finding.NO_OUTCOME, 0) + unseen == counts[_COLLAPSED] + counts.get(_ERASED_OPEN, 0):
        return [found for found in offenders if found.finding is not Finding.NO_OUTCOME]
    if unseen:
        what = f"{unseen} records whose raw rows were removed are on no topic and in no table; {counts[_COLLAPSED]} events are collapsed"
        offenders = [*offenders, Offenders(Finding.REMOVED_WITHOUT_OUTCOME, unseen, [what])]
    return offenders


def _batches(scope: Scope, void: int) -> Counts:
    """Published batches that answer for the input, and how many others there are up to the horizon."""
    live = sum(batch.is_live and batch.is_paired for batch in scope.ledger.batches.values())
    rewinds = sum(rewind.batch_id <= scope.horizon for rewind in scope.ledger.rewinds)
    gone = scope.removed.first_in_ledger - 1
    removed = {"batches removed from the ledger for their age": gone} if gone else {}
    return {**removed, _BATCHES: live, "rewinds": rewinds, "void batches": void}


def _input_spans(scope: Scope) -> dict[Partition, Span]:
    """Of every input partition what was planned up to the horizon, as far as the broker still has it."""
    earliest, end = scope.topics.earliest, scope.topics.end
    return {
        place: Span(max(span.first, earliest[place]), min(span.until, end[place]))
        for place, span in joined_spans(scope.ledger.ranges).items()
        if place in end
    }


def _compounds(warehouse: Warehouse, scope: Scope, output: Output) -> tuple[DataFrame, DataFrame]:
    """Compounds and messages of a topic side by side: as persisted, and with why a message may be absent."""
    topic, sent = output.route.topic, output.sent
    spans = {
        place: Span(first, scope.topics.end[place]) for place, first in scope.topics.earliest.items() if place[0] == topic
    }
    compared = by_compound(warehouse, output.route, sent, spans, after=scope.removed.compounds)
    compared = compared.persist(StorageLevel.DISK_ONLY)
    seen = compared.where((F.col("compounds") > 0) & (F.col("messages") > 0)).groupBy("partition")
    first = {row["partition"]: row["first"] for row in seen.agg(F.min("batch_id").alias("first")).collect()}
    # Asked for once more: what retention removed while the topic was read is not lost either.
    earliest = ask_topics(warehouse.pipeline, [topic]).earliest
    truncated = {number: first.get(number) for (_, number), offset in earliest.items() if offset > 0}
    absent = with_absence(compared, sent, output.topic_id, scope.horizon, truncated)
    return compared, with_compaction(absent, output.cleanup)


def _how_many(rows: DataFrame, counts: Mapping[str, Column | int]) -> Counts:
    """The rows of which each condition holds, in one Spark job; numbers stay as they are."""
    found = count_where(rows, {name: each for name, each in counts.items() if isinstance(each, Column)})
    return {name: each if isinstance(each, int) else found[name] for name, each in counts.items()}


def _records(scope: Scope, places: DataFrame) -> Counts:
    """What became of the records, in the order of the report."""
    removed, unchecked = scope.removed, F.col("unchecked")
    later = {number: batch for number, batch in scope.ledger.batches.items() if number > removed.unchecked}
    landed, on_topic, has_outcome = (F.col(name) > 0 for name in ("raw", "records", "outcomes"))
    return _how_many(
        places,
        {
            _LANDED: landed,
            **{f"… in {table}": F.col(table) > 0 for table in OUTCOMES},
            _COLLAPSED: sum(batch.collapsed for batch in later.values()),
            _ERASED: F.col("emptied"),
            _ERASED_OPEN: sum(batch.erased for batch in later.values()),
            "… no longer on the input topics": landed & ~on_topic,
            _REMOVED: sum(batch.landed for number, batch in later.items() if number <= removed.raw),
            _REMOVED_SEEN: F.col("removed") & ~unchecked & (has_outcome | on_topic),
            _WAITED: removed.waiting,
            _WAITED_SEEN: unchecked & has_outcome,
        },
    )


def _messages(warehouse: Warehouse, scope: Scope, output: Output, compounds: DataFrame) -> Counts:
    """What became of the compounds of a topic, in the order of the report."""
    due, on_topic, in_table = F.col("due"), F.col("messages") > 0, F.col("compounds") > 0
    ours, gone, unknowable = is_ours(scope.inputs), F.col("gone"), F.col("unknowable")
    replaced = F.col("replaced") & ~gone & ~unknowable
    return _how_many(
        compounds,
        {
            "compounds to be published": due,
            _ON_TOPIC: due & on_topic,
            "… no longer on it (retention, or another topic)": due & ~on_topic & gone,
            "… no longer on it (a later message of the key, on a compacted topic)": replaced,
            _UNKNOWABLE: unknowable,
            "compounds removed for their age": scope.removed.rows(REMOVED_COMPOUNDS) if output.route.is_main else 0,
            "… messages where theirs were": of_removed_compounds(output.ends) & ours,
            "messages of later batches": in_table & (F.col("batch_id") > scope.horizon) & on_topic,
            "messages of others": ~in_table & ~ours,
        },
    )


def report_text(name: str, topic: str, answer: Answer) -> str:
    """Counts and offenders, a line each; the last line is one sentence if there are none. `topic`: the output topic."""
    width = max(len(what) for what in answer.counts)
    lines = [f"{what:<{width}}  {count:>12,}" for what, count in answer.counts.items()]
    for found in answer.offenders:
        lines += ["", f"{found.number:,} {found.finding}:", *(f"    {what}" for what in found.first)]
        lines += [f"    … and {found.number - SHOWN:,} more"] if found.number > SHOWN else []
    said = [answer.unchecked] if answer.unchecked else []
    if not answer.horizon:
        said.append("nothing is published yet, so there is nothing to compare")
    elif answer.unknowable:
        said.append(f"{answer.counts[_UNKNOWABLE]:,} compounds are not judgeable, because {answer.unknowable}")
    elif not answer.offenders:
        said.append(
            f"all {answer.counts[_LANDED]:,} records of {answer.counts[_BATCHES]:,} batches have exactly one outcome, and all "
            f"{answer.counts[_ON_TOPIC]:,} compounds that {' and '.join((topic, *answer.others))} can still have are on "
            f"{'them' if answer.others else 'it'} exactly once"
        )
    return "\n".join([*lines, *(f"\n{name}: {sentence}." for sentence in said)])


def note_in_state(warehouse: Tables, answer: Answer) -> None:
    """Makes the offenders a problem in the pipeline's state; without any, ends it, broken laws, and what another program was seen to change."""
    pages = pages_store(warehouse.pipeline.name, warehouse.root)
    if answer.offenders:
        text = f"reconcile found {_kinds(answer.offenders)} up to batch {answer.horizon}"
        add_finding(pages, "reconcile", FAILED, text, "docs/runbooks/does-not-add-up.md")
    elif answer.horizon:
        heal(pages, "reconcile", *LAWS, FOREIGN_CHANGES, through=answer.horizon)
    write_current(pages)


def fail_if_any(name: str, offenders: list[Offenders]) -> None:
    """Raises NeedsOperator with the number of offenders of each kind."""
    if offenders:
        kinds = _kinds(offenders)
        raise NeedsOperator(f"pipeline {name} does not add up: {kinds}; the first of each are listed above")


def _kinds(offenders: list[Offenders]) -> str:
    return "; ".join(f"{found.number:,} {found.finding}" for found in offenders)
