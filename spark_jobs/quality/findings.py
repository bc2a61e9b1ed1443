"""What reconcile can find wrong, and how the offenders are counted and shown."""

from __future__ import annotations

from enum import StrEnum
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

SHOWN = 20


class Finding(StrEnum):
    """What is wrong with an offender; the sentences stand in reconcile's report."""

    OFFSETS_SKIPPED = "offsets between two batches that no batch planned"
    OFFSETS_TWICE = "offsets that two batches planned"
    STEP_MISSING = "published batches without one of their steps in the ledger"
    STEP_TWICE = "steps that are in the ledger twice"
    ROWS_NOT_PLANNED = "raw rows outside the offsets that their batch planned"
    ROWS_NOT_COUNTED = "batches with other raw rows than the ledger counts"
    NOT_LANDED = "records on an input topic that are not in its raw table"
    REMOVED_NOT_COUNTED = "batches with other raw rows removed for their age than the ledger counts landed"
    REMOVED_WITHOUT_OUTCOME = "raw rows removed for their age whose record has no outcome"
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


class Offenders(NamedTuple):
    """How many there are of one finding, and the first of them (`SHOWN` at most) in the order of their names."""

    finding: Finding
    number: int
    first: list[str]


def flagged(rows: DataFrame, what: Column, cases: dict[Finding, Column]) -> DataFrame:
    """A row (finding, what) for every case that applies to a row; a condition that is null does not apply."""
    # Every finding is named, as rows may have several.
    named = F.array(*(F.when(condition, F.lit(str(finding))) for finding, condition in cases.items()))
    return rows.select(F.explode(F.filter(named, lambda name: name.isNotNull())).alias("finding"), what.alias("what"))


def offenders_of(tables: list[DataFrame]) -> list[Offenders]:
    """Counts all findings, and fetches the first of each. Rows have the columns finding and what."""
    mine = Window.partitionBy("finding")
    numbered = reduce(DataFrame.unionAll, tables).select(
        "finding", "what", F.count("*").over(mine).alias("number"), F.row_number().over(mine.orderBy("what")).alias("rank")
    )
    rows = sorted(numbered.where(F.col("rank") <= SHOWN).collect(), key=lambda row: row["rank"])
    found: dict[str, Offenders] = {}
    for row in rows:
        known = found.setdefault(row["finding"], Offenders(Finding(row["finding"]), row["number"], []))
        known.first.append(row["what"])
    return [found[finding] for finding in Finding if finding in found]


def fingerprint(*columns: str) -> Column:
    """A number that tells byte strings apart, and an absent one from an empty one."""
    return F.xxhash64(*(F.hex(column) for column in columns), *(F.col(column).isNull() for column in columns))
