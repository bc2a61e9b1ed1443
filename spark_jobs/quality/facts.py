"""The counting of the report, in few Spark jobs: rows of every table become facts, and all facts are counted together.

A fact is of something (`what`) in a batch, under a `label` and in a `bucket`; it may have a `value`, a `text` beside it, a time (`at`), and a
`mark`, a hash of its record or message. Marks are combined by exclusive or: equal on both sides of a law only if both hold the same things.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from include.config.pipeline import MS_PER_UNIT
from spark_jobs.quality.buckets import bound
from spark_jobs.quality.marks import record_marks
from spark_jobs.quality.numbers import SIDES
from spark_jobs.rules.reasons import ERASED
from spark_jobs.rules.side_topics import SideTopics, pack
from spark_jobs.tables.places import placed, placed_by_side, topic_column
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

_TYPES = dict.fromkeys(("what", "label", "text"), "string") | dict.fromkeys(
    ("batch_id", "bucket", "value", "mark", "at"), "bigint"
)
_OPEN_LABEL = "open"
# Facts of events that would be late without grace, by the bound of what they need.
GRACE = "grace_of_all"
_OF_EACH = ("bucket", "value", "mark", "at", "duration")
_HOUR_MS = MS_PER_UNIT["h"]
# Times further away are one: timestamps may lie anywhere, and every hour is a number that is kept.
_HOURS_MS = 31 * MS_PER_UNIT["d"]
ELSEWHERE = -1
_OF_COMPOUNDS = (
    *("batch_id", "pair_id", "revision", "op", "kind", "ts"),
    *(f"{side}_{name}" for side in SIDES for name in ("ts", "partition", "offset")),
)


class FactCount(NamedTuple):
    """Equal facts. `low`, `middle`, `high`: quartiles of their values; `top`: the largest, with its text. `first`, `last`: their times."""

    number: int
    mark: int
    low: int
    middle: int
    high: int
    top: int
    text: str
    first: int
    last: int


# With what they are of: what, batch_id, label, bucket.
Counted = tuple[str, int, str, int | None, FactCount]


class Facts:
    """Facts that are counted."""

    def __init__(self, counted: Iterable[Counted]) -> None:
        self._of: dict[tuple[str, int], list[tuple[str, int | None, FactCount]]] = {}
        for what, batch_id, label, bucket, found in counted:
            self._of.setdefault((what, batch_id), []).append((label, bucket, found))

    def of(self, what: str, batch_ids: Iterable[int], *labels: str) -> list[tuple[str, int | None, FactCount]]:
        """(label, bucket, FactCount) of the batches; without labels, of all labels."""
        found = (fact for batch_id in batch_ids for fact in self._of.get((what, batch_id), ()))
        return [fact for fact in found if not labels or fact[0] in labels]

    def number(self, what: str, batch_ids: Iterable[int], *labels: str) -> int:
        return sum(counted.number for _, _, counted in self.of(what, batch_ids, *labels))

    def mark(self, what: str, batch_ids: Iterable[int], *labels: str) -> int:
        """Their marks combined; 0 where there are none."""
        return reduce(lambda mark, fact: mark ^ fact[2].mark, self.of(what, batch_ids, *labels), 0)


def facts_of(rows: DataFrame, what: Column, label: Column, **others: Column) -> DataFrame:
    """One fact a row; `others`: batch_id (else the row's own), bucket, value, text, mark, at."""
    given = {"what": what, "label": label, "batch_id": F.col("batch_id"), **others}
    return rows.select(*(given.get(name, F.lit(None).cast(kind)).alias(name) for name, kind in _TYPES.items()))


def fact(what: Column | str, label: Column, **numbers: Column) -> Column:
    """One of several facts of a row, for `facts_of_each`; `numbers`: bucket, or the duration that has one, and value, mark, at."""
    fields = [numbers.get(name, F.lit(None)).cast("bigint").alias(name) for name in _OF_EACH]
    return F.struct(F.lit(what).alias("what"), label.alias("label"), *fields)


def facts_of_each(rows: DataFrame, found: Sequence[Column]) -> DataFrame:
    """Several facts a row, those of `found` that are not null. A union would plan and compute the rows once for each of them."""
    there = F.filter(F.array(*found), lambda each: each.isNotNull())
    each = rows.select("batch_id", F.explode(there).alias("fact")).select("batch_id", "fact.*")
    others = {name: F.col(name) for name in ("value", "mark", "at")}
    return facts_of(each, F.col("what"), F.col("label"), bucket=F.coalesce("bucket", bound("duration")), **others)


def count_facts(known: Iterable[Counted], *groups: Sequence[DataFrame]) -> Facts:
    """Counts each group in a job of its own, side by side: on few rows, most of a job is its planning, by one core.

    Facts of the same `what` are of the same group, or among the `known` ones.
    """
    with ThreadPoolExecutor(max_workers=len(groups)) as beside:
        return Facts(chain(known, *beside.map(_count, filter(None, groups))))


def _count(tables: Sequence[DataFrame]) -> list[Counted]:
    quartiles = F.percentile_approx("value", [0.25, 0.5, 0.75], 1_000).alias("quartiles")
    grouped = reduce(DataFrame.unionAll, tables).groupBy("what", "batch_id", "label", "bucket")
    rows = grouped.agg(
        F.count("*").alias("number"),
        F.bit_xor("mark").alias("mark"),
        quartiles,
        F.max(F.when(F.col("value").isNotNull(), F.struct("value", "text"))).alias("top"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
    ).collect()
    return [(row["what"], row["batch_id"], row["label"], row["bucket"], _counted(row)) for row in rows]


def _counted(row: Row) -> FactCount:
    (low, middle, high), (top, text) = row["quartiles"] or (0, 0, 0), row["top"] or (0, "")
    numbers = (row["number"], row["mark"] or 0, low, middle, high, top)
    return FactCount(*numbers, text or "", row["first"] or 0, row["last"] or 0)


def record_mark(place: Column, offset: str = "offset") -> Column:
    """The mark of a record of one side, by the number of its topic and partition (`placed`), and its offset (name of the column)."""
    return F.xxhash64(place, offset)


def message_mark() -> Column:
    """The mark of a compound and of its message, by pair_id and revision."""
    return F.xxhash64("pair_id", F.col("revision").cast("string"))


def fingerprint(*columns: str) -> Column:
    """A number that tells byte strings apart, and an absent one from an empty one."""
    return F.xxhash64(*(F.hex(column) for column in columns), *(F.col(column).isNull() for column in columns))


def table_facts(
    warehouse: Warehouse,
    topics: SideTopics,
    first: int,
    last: int,
    sent_from: int,
    rejected_from: int,
    around: int,
    needless: Mapping[int, int],
) -> list[DataFrame]:
    """Raw rows of the batches first..last, compounds from `sent_from` and rejected events from `rejected_from` on; all inclusive. Nothing of tables
    that have no rows of these: Spark takes longer to find that out than the names of files do.

    `topics`: of all batches; partitions are numbered by them. `around`: compounds further from it (epoch ms) are not counted by their hour.
    `needless`: by batch, the first time (epoch ms) at which an event would not be late without any grace; `GRACE` counts those before it.
    """
    pipeline = warehouse.pipeline
    mine, sent, rejected_in = (range(begin, last + 1) for begin in (first, sent_from, rejected_from))
    columns = ["problem", "partition", "offset", "record_timestamp", "ts", "batch_id", *topic_column(topics)]
    tables, needed = [], _grace_needed(needless)
    for name, side, of_side in zip(SIDES, pipeline.sides, topics, strict=True):
        raw, place = warehouse.reading(raw_table(side), columns, batches=mine), placed(of_side)
        label = F.coalesce("problem", F.lit("accepted"))
        landed = fact(f"raw_{name}", label, bucket=place, mark=record_mark(place), at=F.col("record_timestamp"))
        tables += [facts_of_each(raw.in_spark(), [landed, *needed])] if raw.files else []
    rejected = warehouse.reading(REJECTED, ["topic", "partition", "offset", "reason", "batch_id"], batches=rejected_in)
    is_left = F.col("topic").isin(*topics.left)
    whose, mark = F.when(is_left, "rejected_left").otherwise("rejected_right"), record_mark(placed_by_side(topics, is_left))
    tables += [facts_of(rejected.in_spark(), whose, F.col("reason"), mark=mark)] if rejected.files else []
    columns = [*_OF_COMPOUNDS, *topic_column(topics, "left_", "right_")]
    compounds = warehouse.reading(COMPOUNDS, columns, batches=sent)
    return [*tables, *([_compound_facts(compounds.in_spark(), topics, around)] if compounds.files else [])]


def _grace_needed(needless: Mapping[int, int]) -> list[Column]:
    """The fact of an accepted event that would be late without grace, by what it needs."""
    if not needless:
        return []
    since = F.create_map(*(F.lit(each).cast("bigint") for pair in needless.items() for each in pair))
    needed = F.when(F.col("problem").isNull(), F.try_element_at(since, "batch_id") - F.col("ts"))
    return [F.when(needed > 0, fact(GRACE, F.lit(""), duration=needed))]


def _compound_facts(rows: DataFrame, topics: SideTopics, around: int) -> DataFrame:
    """Of each compound: what was published, its hour, where its events came from, how old it is (the value is -ts), how far apart they are."""
    kind, revised = F.col("kind"), F.when(F.col("revision") == 0, "first").otherwise("again")
    hour = F.when(is_near(F.col("ts"), around), F.col("ts") - F.col("ts") % _HOUR_MS)
    skew = F.col("right_ts") - F.col("left_ts")
    found = [
        fact("compound", F.concat_ws(" ", "op", "kind", revised), mark=message_mark()),
        fact("hour", kind, bucket=hour.otherwise(ELSEWHERE)),
        F.when(kind == "pair", fact("skew", kind, value=skew)),
        F.when(kind == "pair", fact("distance", kind, duration=F.abs(skew))),
    ]
    for side, mine in zip(SIDES, topics, strict=True):
        place = placed(mine, f"{side}_")
        came_from = fact(f"out_{side}", kind, bucket=place, mark=record_mark(place, f"{side}_offset"))
        found.append(F.when(F.col(f"{side}_offset").isNotNull(), came_from))
        found.append(F.when(kind == f"{side}_only", fact(f"alone_{side}", kind, value=-F.col("ts"))))
    return facts_of_each(rows, found)


def is_near(ts: Column, around: int) -> Column:
    """Whether a timestamp is near enough to `around` (epoch ms) to be counted by its hour or minute."""
    return ts.between(around - _HOURS_MS, around + _HOURS_MS)


def erased_facts(warehouse: Warehouse, topics: SideTopics, batch_id: int, version: int) -> list[DataFrame]:
    """Facts `erased_left` and `erased_right` of an erasure: the emptied raw rows whose events were open at this version of open_events."""
    place = ["topic", "partition", "offset"]
    waiting = warehouse.read(OPEN, place, version=version)
    tables = []
    for name, side, mine in zip(SIDES, warehouse.pipeline.sides, topics, strict=True):
        emptied = warehouse.read(raw_table(side), place, where=lambda column: column("problem") == ERASED)
        gone, number = emptied.join(waiting, place, "left_semi"), F.lit(batch_id).cast("bigint")
        mark = record_mark(placed(mine))
        tables.append(facts_of(gone, F.lit(f"erased_{name}"), F.lit(ERASED), batch_id=number, mark=mark))
    return tables


def open_counts(warehouse: Warehouse, topics: SideTopics, versions: Iterable[int]) -> list[Counted] | None:
    """What `open_facts` comes to, without Spark; None if they are more than few."""
    counted: list[Counted] = []
    for version in sorted(set(versions)):
        rows = warehouse.reading(OPEN, ["side", "partition", "offset", *topic_column(topics)], version=version).few()
        if rows is None:
            return None
        for name, of_side in zip(SIDES, topics, strict=True):
            mine = rows.filter(pc.equal(rows["side"], name))
            if mine.num_rows:
                place = pack(of_side, mine["topic"], mine["partition"]) if len(of_side) > 1 else mine["partition"]
                marks = record_marks(place.to_numpy(), mine["offset"].to_numpy())
                found = FactCount(len(marks), int(np.bitwise_xor.reduce(marks)), 0, 0, 0, 0, "", 0, 0)
                counted.append((f"open_{name}", version, _OPEN_LABEL, None, found))
    return counted


def open_facts(warehouse: Warehouse, topics: SideTopics, versions: Iterable[int]) -> list[DataFrame]:
    """The open events at these versions of the table, which take the place of the batch_id."""
    tables, whose = [], F.concat(F.lit("open_"), "side")
    mark = record_mark(placed_by_side(topics, F.col("side") == "left"))
    columns = ["side", "partition", "offset", *topic_column(topics)]
    for version in sorted(set(versions)):
        rows, at = warehouse.read(OPEN, columns, version=version), F.lit(version).cast("bigint")
        tables.append(facts_of(rows, whose, F.lit(_OPEN_LABEL), batch_id=at, mark=mark))
    return tables
