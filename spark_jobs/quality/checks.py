"""What must be true of batches: the report states it as numbers that have to be 0, reconcile as findings with their offenders.

Neither side of a check uses counts reported by the job itself, except for collapsed events, which no table holds: tables, counted afresh,
stand against Kafka's offsets or another table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.kafka.offsets import Partition
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.facts import Facts
from spark_jobs.quality.numbers import SIDES, Metrics
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_LANDING, AT_PAIRING
from spark_jobs.tables.ledger_rows import OffsetRange
from spark_jobs.tables.records import ERASURE
from spark_jobs.tables.schemas import OPEN

SHOWN = 20


class Finding(StrEnum):
    """What is wrong with an offender; reconcile prints these sentences, in this order."""

    OFFSETS_SKIPPED = "offsets between two batches that no batch planned"
    OFFSETS_TWICE = "offsets that two batches planned"
    STEP_MISSING = "published batches without one of their steps in the ledger"
    STEP_TWICE = "steps that are in the ledger twice"
    ROWS_NOT_PLANNED = "raw rows outside the offsets that their batch planned"
    ROWS_NOT_COUNTED = "batches with other raw rows than the ledger counts"
    NOT_LANDED = "records on an input topic that are not in its raw table"
    REMOVED_NOT_COUNTED = "batches with other raw rows removed for their age than the ledger counts landed"
    REMOVED_WITHOUT_OUTCOME = "raw rows removed for their age whose record has no outcome"
    ERASED_NOT_COUNTED = "raw rows emptied by erasures otherwise than the ledger counts"
    LANDED_TWICE = "records that are in a raw table twice"
    LANDED_OTHERWISE = "raw rows that differ from the record on the topic"
    NEVER_LANDED = "outcomes of records that no raw table has"
    NO_OUTCOME = "accepted records in neither compound_events nor rejected_events nor open_events"
    NOT_REJECTED = "records with a problem that are not in rejected_events"
    TWO_OUTCOMES = "records with more than one outcome"
    COMPOUND_TWICE = "compounds that are in compound_events twice"
    NOT_SENT = "compounds that are not on the output topic"
    SENT_TWICE = "compounds that are on the output topic more than once"
    SENT_OTHERWISE = "compounds whose message says something else"
    SENT_ELSEWHERE = "compounds in another partition than their key's"
    SENT_UNKNOWN = "messages on the output topic of compounds that no table has"
    LETTERS_OTHERWISE = "batches with more or fewer dead letters on the rejected topic than rejected events"
    LETTERS_TWICE = "batches with dead letters that are on the rejected topic more than once"


# A finding with the name of one offender.
Offence = tuple[Finding, str]


class Offenders(NamedTuple):
    """How many there are of one finding, and the first of them (`SHOWN` at most) in the order of their names."""

    finding: Finding
    number: int
    first: list[str]


def flagged(rows: DataFrame, what: Column, cases: Mapping[Finding, Column]) -> DataFrame:
    """A row (finding, what) for every case that applies to a row; a condition that is null does not apply."""
    # Every finding is named, as rows may have several.
    named = F.array(*(F.when(condition, F.lit(str(finding))) for finding, condition in cases.items()))
    return rows.select(F.explode(F.filter(named, lambda name: name.isNotNull())).alias("finding"), what.alias("what"))


def count_where(rows: DataFrame, conditions: Mapping[str, Column]) -> dict[str, int]:
    """Name -> of how many rows the condition holds, in one Spark job."""
    (found,) = rows.agg(*(F.count(F.when(each, True)) for each in conditions.values())).collect()
    return dict(zip(conditions, found, strict=True))


def offenders_of(offences: Iterable[Offence], tables: Sequence[DataFrame]) -> list[Offenders]:
    """Counts the offenders of every finding and fetches the first of each, in one Spark job. `tables`: as `flagged` returns them; a finding is
    either in these or among `offences`.
    """
    found: dict[Finding, Offenders] = {}
    for finding, what in sorted(offences):
        known = found.get(finding, Offenders(finding, 0, []))
        found[finding] = Offenders(finding, known.number + 1, [*known.first, what][:SHOWN])
    mine = Window.partitionBy("finding")
    numbered = reduce(DataFrame.unionAll, tables).select(
        "finding", "what", F.count("*").over(mine).alias("number"), F.row_number().over(mine.orderBy("what")).alias("rank")
    )
    for row in sorted(numbered.where(F.col("rank") <= SHOWN).collect(), key=lambda row: row["rank"]):
        finding = Finding(row["finding"])
        found.setdefault(finding, Offenders(finding, row["number"], [])).first.append(row["what"])
    return [found[finding] for finding in Finding if finding in found]


def side_laws(batch: Batch, facts: Facts, looked_up: bool) -> Metrics:
    """`…_left` and `…_right` of every law and of its parts, and their sums. `looked_up`: its records were counted on the topics (`record_facts`)."""
    sides = [_side(batch, facts, name, looked_up) for name in SIDES]
    all_collapsed = batch.pairing.collapsed
    # What is missing is collapsed, as far as the batch collapsed so many.
    left = min(max(sides[0]["pairing_difference"], 0), all_collapsed)
    metrics: Metrics = {}
    for name, side, collapsed in zip(SIDES, sides, (left, all_collapsed - left), strict=True):
        side["out"] += collapsed
        side["pairing_difference"] -= collapsed
        if all_collapsed:
            del side["identity_difference"]
        metrics |= {f"{what}_{name}": number for what, number in side.items()}
    for law in ("landing", "pairing", "rejection"):
        metrics[f"{law}_difference"] = sum(side[f"{law}_difference"] for side in sides)
    return metrics


def _side(batch: Batch, facts: Facts, name: str, looked_up: bool) -> Metrics:
    """The numbers of one side as if nothing was collapsed."""
    ids, mine = batch.counted_ids, batch.planned.pipeline.sides[SIDES.index(name)]
    # Compounds of a rewind or replay are corrections, no outcomes of events.
    decided = ids if batch.is_live else ()
    raw, rejected, out, waiting = (f"{what}_{name}" for what in ("raw", "rejected", "out", "open"))
    before, after = ((row.versions[OPEN],) for row in (batch.planned, batch.paired))
    planned = sum(at.planned for at in batch.landed.offsets if mine.has(at.topic))
    records = facts.number(f"record_{name}", ids) if looked_up else planned
    paired = facts.number(out, decided, Outcome.PAIR)
    alone = facts.number(out, decided, Outcome.LEFT_ONLY, Outcome.RIGHT_ONLY)
    refused = facts.number(rejected, decided, *AT_PAIRING)
    # Of an erasure; other batches erase nothing.
    gone = facts.number(f"erased_{name}", ids)
    went_in = facts.mark(waiting, before) ^ facts.mark(f"erased_{name}", ids) ^ facts.mark(raw, ids, "accepted")
    came_out = facts.mark(rejected, ids, *AT_PAIRING) ^ facts.mark(out, decided) ^ facts.mark(waiting, after)
    side: Metrics = {
        "planned": planned,
        "landed": facts.number(raw, ids),
        "accepted": facts.number(raw, ids, "accepted"),
        "open_before": facts.number(waiting, before),
        "open_after": facts.number(waiting, after),
        "rejected": facts.number(rejected, ids),
        "out": paired + alone + refused + gone,
        "identity_difference": int(went_in != came_out),
    }
    side["landing_difference"] = records - side["landed"]
    side["pairing_difference"] = side["open_before"] + side["accepted"] - side["out"] - side["open_after"]
    side["rejection_difference"] = facts.number(raw, ids, *AT_LANDING) + refused - side["rejected"]
    if batch.paired.kind == ERASURE:
        side["erased"] = gone
    if batch.is_live:
        side["orphan_ratio"] = alone / (alone + paired) if alone else 0.0
    return side


def breaks(ranges: Iterable[OffsetRange], until: Mapping[Partition, int]) -> Iterator[tuple[OffsetRange, int, int]]:
    """The ranges that do not begin where the batch before them ended, each with that offset and with its own begin, less what was lost and given up.

    `until`: where the batch before ended, exclusive; a partition that is not in it begins at its `began`.
    """
    for at in ranges:
        before, begin = until.get(at.place, at.began), at.from_offset - at.lost
        if begin != before:
            yield at, before, begin


def ends_of_ranges(ranges: Iterable[OffsetRange]) -> dict[Partition, int]:
    """Where each partition's range ends, exclusive."""
    return {at.place: at.until_offset for at in ranges}


def continuity(batch: Batch, previous: Batch | None) -> Metrics:
    """Offsets that lie between this batch and the one before it, or are in both. The first batch begins anywhere; a rewind or replay reads none."""
    apart = 0
    if batch.is_live and previous:
        found = breaks(batch.landed.offsets, ends_of_ranges(previous.paired.offsets))
        apart = sum(abs(begin - before) for _, before, begin in found)
    return {"continuity_difference": apart}


def totals(batch: Metrics, before: Metrics, batch_id: int) -> Metrics:
    """All events in and out since the totals began, with this batch; `before`: the metrics of the batch that it continues.

    The law over them is also broken where a batch was left out, or begins with other open events than the one before it left. After it
    was broken the totals begin anew, so that one batch fails for it, not all that follow.
    """
    goes_on = "total_since" in before and not any(before[f"cumulative_difference_{name}"] for name in SIDES)
    metrics: Metrics = {"total_since": before["total_since"] if goes_on else batch_id}
    for name in SIDES:
        start = before[f"total_in_{name}"] if goes_on else batch[f"open_before_{name}"]
        came_in = start + batch[f"accepted_{name}"]
        came_out = (before[f"total_out_{name}"] if goes_on else 0) + batch[f"out_{name}"]
        metrics |= {f"total_in_{name}": came_in, f"total_out_{name}": came_out}
        metrics[f"cumulative_difference_{name}"] = came_in - came_out - batch[f"open_after_{name}"]
    return metrics
