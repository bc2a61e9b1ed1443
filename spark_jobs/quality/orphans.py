"""Why events found no partner: how far the closest unpaired event of the other side was, and whose events they are.

An orphan's candidates are the unpaired events of the same key: the orphans and late events of its batch and of those shortly before. Events that
were given up earlier are not searched, so that the cost does not grow with the history. Only for late events all published orphans near them are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.facts import ELSEWHERE, GRACE, FactCount, Facts, fact, facts_of, facts_of_each, is_near
from spark_jobs.quality.late_intervals import HEALABLE, LATE_FACT, MINUTE_MS, PARTNER, is_exact, late_breakdowns
from spark_jobs.quality.numbers import ORPHANS, SIDES, Breakdown, Metrics
from spark_jobs.rules.reasons import Reason
from spark_jobs.rules.side_topics import SideTopics, located
from spark_jobs.tables.key_order import in_key_order
from spark_jobs.tables.outbox import UPSERT
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

# So many batches before are looked into, as long as they hold no more compounds than these.
LOOK_BACK, _COMPOUNDS_BEFORE = 12, 200_000
# So many compounds are looked through for late events, in about a second.
_COMPOUNDS_NEAR = 5_000_000
_PARTITIONS = 50
# No field of a message can have such names.
_IS_LEFT, _AT, _LATE, _MINE, _AWAY = "is left", "is at", "is late", "is reported", "is away"
_SINCE, _UNTIL = "is away from the one before", "is away from the one behind"


class OrphanScope(NamedTuple):
    """The live batches whose orphans are asked about; `before`: the ids of the live ones before them whose orphans are candidates, too,
    `late_before` of those among these that have late events, and `corrections` of those between that corrected compounds.
    """

    batches: list[Batch]
    before: list[int]
    late_before: list[int]
    corrections: list[int]

    @property
    def batch_ids(self) -> list[int]:
        """Those that are asked about."""
        return [batch.batch_id for batch in self.batches]

    @property
    def pipeline(self) -> Pipeline:
        """The settings of the newest batch."""
        return self.batches[-1].planned.pipeline


def orphan_scope(batches: Sequence[Batch], earlier: Sequence[Batch]) -> OrphanScope | None:
    """None if no event of the batches stayed alone or came late. `earlier`: the batches before them, by batch_id."""
    live = [batch for batch in batches if batch.is_live]
    if not any(getattr(batch.pairing, name) for batch in live for name in (*ORPHANS, Reason.LATE)):
        return None
    before: list[Batch] = []
    corrections: list[int] = []
    left = max(_COMPOUNDS_BEFORE, sum(batch.pairing.compounds for batch in live))
    for batch in reversed(earlier[-LOOK_BACK:]):
        left -= batch.pairing.compounds
        if left < 0:
            break
        if batch.is_live:
            before.append(batch)
        elif batch.pairing.compounds:
            corrections.append(batch.batch_id)
    late_before = [batch.batch_id for batch in before if batch.pairing.late]
    return OrphanScope(live, [batch.batch_id for batch in before], late_before, corrections)


def orphan_facts(warehouse: Warehouse, scope: OrphanScope) -> list[DataFrame]:
    """Facts `miss_left`, `miss_right`, `grace` (by bound), `LATE_FACT` (by time) and `user` (by key field, the one with most orphans on top)."""
    return [_nearest(warehouse, scope), _users(warehouse, scope)]


def _orphans(warehouse: Warehouse, batch_ids: list[int], corrections: Sequence[int] = ()) -> DataFrame:
    """The orphans of live batches; without those that one of the corrections has changed."""
    columns = [*warehouse.pipeline.key, "pair_id", "kind", "ts", "batch_id"]
    rows = warehouse.read(COMPOUNDS, columns, batches=batch_ids, where=lambda column: column("kind").isin(list(ORPHANS)))
    if not corrections:
        return rows
    return rows.join(F.broadcast(warehouse.read(COMPOUNDS, ["pair_id"], batches=corrections)), "pair_id", "left_anti")


def _nearest(warehouse: Warehouse, scope: OrphanScope) -> DataFrame:
    pipeline, ids = scope.pipeline, scope.batch_ids
    orphans, is_mine = _orphans(warehouse, [*ids, *scope.before], scope.corrections), F.col("batch_id").isin(ids)
    alone = [_candidates(orphans, scope, F.col("kind") == "left_only", F.lit(False), is_mine), *_late(warehouse, scope)]
    if len(alone) > 1:
        alone += _given_up(warehouse, scope, alone[1:])
    since, until = _distances(pipeline)
    both = reduce(DataFrame.unionAll, alone).withColumns({_SINCE: since, _UNTIL: until})
    near = both.withColumn(_AWAY, F.least(_SINCE, _UNTIL)).where(F.col(_MINE))
    away, late = F.col(_AWAY), F.col(_LATE)
    which = F.when(F.col(_IS_LEFT), "miss_left").otherwise("miss_right")
    found = [F.when(~late, fact(which, F.lit(""), duration=away))]
    if len(alone) > 1:
        before = {batch.batch_id: batch.planned.clock or 0 for batch in scope.batches}
        clock = F.create_map(*(F.lit(each).cast("bigint") for pair in before.items() for each in pair))
        # Not late is what ends at clock - gap - grace or later; alone in its session, an event is its end.
        needed = F.try_element_at(clock, "batch_id") - pipeline.gap_ms - F.col(_AT)
        found.append(F.when(late, fact("grace", F.lit(""), duration=needed)))
        has_partner = away <= pipeline.tolerance_ms
        # The compound that a replay would make has the smaller time of both.
        at = F.when(has_partner & (away == F.col(_SINCE)), F.col(_AT) - away).otherwise(F.col(_AT))
        exact = F.col("batch_id").isin([batch.batch_id for batch in scope.batches if is_exact(batch)])
        place = F.when(is_near(at, scope.batches[-1].at), F.when(exact, at).otherwise(at - at % MINUTE_MS))
        partner = F.when(has_partner, PARTNER).otherwise("")
        found.append(F.when(late, fact(LATE_FACT, partner, bucket=place.otherwise(ELSEWHERE))))
    return facts_of_each(near, found)


def _candidates(rows: DataFrame, scope: OrphanScope, is_left: Column, is_late: Column, is_mine: Column) -> DataFrame:
    columns = {_IS_LEFT: is_left, _AT: F.col("ts"), _LATE: is_late, _MINE: is_mine}
    return rows.select(*scope.pipeline.key, *(value.alias(name) for name, value in columns.items()), "batch_id")


def _late(warehouse: Warehouse, scope: OrphanScope) -> list[DataFrame]:
    """The late events, which stand in rejected_events without their time; nothing if the batches that are asked about have none."""
    mine = [batch.batch_id for batch in scope.batches if batch.pairing.late]
    if not mine:
        return []
    ids = [*scope.late_before, *mine]
    pipeline, place = scope.pipeline, ["topic", "partition", "offset"]
    late = warehouse.read(REJECTED, place, batches=ids, where=lambda column: column("reason") == str(Reason.LATE))
    columns, found = [*place, *pipeline.key, "ts", "batch_id"], []
    for side in pipeline.sides:
        rows = warehouse.read(raw_table(side), columns, batches=ids, made=in_key_order(pipeline, columns))
        rows = rows.join(F.broadcast(late), place, "left_semi")
        found.append(_candidates(rows, scope, F.lit(side == pipeline.left), F.lit(True), F.col("batch_id").isin(mine)))
    return found


def _given_up(warehouse: Warehouse, scope: OrphanScope, late: Sequence[DataFrame]) -> list[DataFrame]:
    """The orphans of all other batches that late events may belong to: those that are still valid, near the late events (of `_late`).

    Nothing if there are too many compounds at that time.
    """
    pipeline, known = scope.pipeline, [*scope.before, *scope.batch_ids]
    first, last = reduce(DataFrame.unionAll, late).where(F.col(_MINE)).agg(F.min(_AT), F.max(_AT)).collect()[0]
    # A partner is at most the tolerance away, and the pair that it may be in by now has the smaller time of both.
    away = 2 * pipeline.tolerance_ms
    if first is None or min(known) == 1:
        return []
    near = Window(first - away, last + away + 1)
    if sum(file.rows for file in warehouse.files(COMPOUNDS) if file.can_have_times(near)) > _COMPOUNDS_NEAR:
        return []
    columns = [*pipeline.key, "pair_id", "revision", "op", "kind", "ts", "batch_id"]
    rows = warehouse.read(
        COMPOUNDS,
        columns,
        batches=range(1, known[-1] + 1),
        times=near,
        where=lambda column: (column("kind") != "pair") | (column("revision") > 0),
    )
    valid = rows.groupBy("pair_id").agg(F.max_by(F.struct(*columns), "revision").alias("now")).select("now.*")
    is_alone = (F.col("op") == UPSERT) & F.col("kind").isin(*ORPHANS) & ~F.col("batch_id").isin(known)
    return [_candidates(valid.where(is_alone), scope, F.col("kind") == "left_only", F.lit(False), F.lit(False))]


def _distances(pipeline: Pipeline) -> tuple[Column, Column]:
    """To the closest unpaired events of the other side before and behind, ms; null where the key has none."""
    of_key = Over.partitionBy(*pipeline.key).orderBy(_AT)
    before = of_key.rowsBetween(Over.unboundedPreceding, -1)
    after = of_key.rowsBetween(1, Over.unboundedFollowing)
    at, is_left = F.col(_AT), F.col(_IS_LEFT)

    def closest(of_left: Column) -> tuple[Column, Column]:
        other = F.when(of_left, at)
        return at - F.last(other, ignorenulls=True).over(before), F.first(other, ignorenulls=True).over(after) - at

    (left_since, left_until), (right_since, right_until) = closest(~is_left), closest(is_left)
    return F.when(is_left, left_since).otherwise(right_since), F.when(is_left, left_until).otherwise(right_until)


def user_labels(key: Sequence[str], is_unordered: bool) -> list[str]:
    """What breakdowns and pages call each key field: its name, or with `key_order: any` all of their names.

    >>> user_labels(("user1", "user2"), True)
    ['user1 or user2', 'user1 or user2']
    """
    return [" or ".join(key)] * len(key) if is_unordered else [*key]


def _users(warehouse: Warehouse, scope: OrphanScope) -> DataFrame:
    """One fact for each value of a key field that has orphans: their number. With `key_order: any` of either field, which then says nothing."""
    key = scope.pipeline.key
    labels = zip(user_labels(key, scope.pipeline.is_unordered), key, strict=True)
    each = [F.struct(F.lit(label).alias("label"), F.col(name).alias("text")) for label, name in labels]
    # An orphan of a user with themself is one of theirs.
    named = F.explode(F.array_distinct(F.array(*each)))
    users = _orphans(warehouse, scope.batch_ids).select("batch_id", named.alias("user")).select("batch_id", "user.*")
    counted = users.groupBy("batch_id", "label", "text").agg(F.count("*").alias("value"))
    return facts_of(counted, F.lit("user"), F.col("label"), value=F.col("value"), text=F.col("text"))


def orphan_metrics(batch: Batch, counted: Facts) -> Metrics:
    """How old the orphans of a live batch are, how concentrated, and how many late events a replay would pair."""
    ids, clock = (batch.batch_id,), batch.paired.clock
    metrics: Metrics = {HEALABLE: counted.number(LATE_FACT, ids, PARTNER)}
    for side, kind in zip(SIDES, ORPHANS, strict=True):
        alone = counted.of(f"alone_{side}", ids, kind)
        if alone and clock is not None:
            # By the clock that closed its session; values are -ts.
            ages: FactCount = alone[0][2]
            metrics |= {f"orphan_age_median_{side}": clock + ages.middle, f"orphan_age_max_{side}": clock + ages.top}
    orphans, users = counted.number("hour", ids, *ORPHANS), counted.of("user", ids)
    if users and orphans:
        metrics["top_user_share"] = max(most.top for _, _, most in users) / orphans
    return metrics


def orphan_breakdowns(batch: Batch, counted: Facts, topics: SideTopics) -> list[Breakdown]:
    """The families `hour_<kind>`, `distance`, `miss_<side>`, `grace_needed`, `grace_of_all` (of those that
    need none in bucket 0), `partition_<kind>` (the `_PARTITIONS` with most) of a live batch, those of
    `late_breakdowns`, and by key field `users` (how many values have orphans) and `top_user` (the one with most). `topics`: those by which partitions
    are numbered.
    """
    ids = (batch.batch_id,)
    found = [Breakdown(f"hour_{kind}", each.number, hour) for kind, hour, each in counted.of("hour", ids)]
    found += [Breakdown("distance", each.number, at) for _, at, each in counted.of("distance", ids)]
    for side, kind, mine in zip(SIDES, ORPHANS, topics, strict=True):
        found += [Breakdown(f"miss_{side}", each.number, at) for _, at, each in counted.of(f"miss_{side}", ids)]
        partitions = [_of_partition(kind, each.number, n, mine) for _, n, each in counted.of(f"out_{side}", ids, kind)]
        found += sorted(partitions, key=lambda row: (-row.number, row.bucket))[:_PARTITIONS]
    found += [Breakdown("grace_needed", each.number, at) for _, at, each in counted.of("grace", ids)]
    accepted = sum(counted.number(f"raw_{side}", ids, "accepted") for side in SIDES)
    needed = counted.number(GRACE, ids)
    found += [Breakdown(GRACE, accepted - needed, 0)] if accepted > needed else []
    found += [Breakdown(GRACE, each.number, at) for _, at, each in counted.of(GRACE, ids)]
    for field, _, most in counted.of("user", ids) if counted.number("hour", ids, *ORPHANS) else ():
        found.append(Breakdown("users", most.number, field=field))
        found.append(Breakdown("top_user", most.top, field=field, value=most.text))
    found += late_breakdowns(batch, counted)
    # Spark returns facts in any order, and a report that is made again writes the same rows.
    return sorted(found, key=lambda row: (row.family, row.field or "", row.bucket is None, row.bucket or 0, row.value or ""))


def _of_partition(kind: str, number: int, place: int | None, topics: tuple[str, ...]) -> Breakdown:
    """`place`: the number of topic and partition; the topic is named where the side has several."""
    if len(topics) < 2 or place is None:
        return Breakdown(f"partition_{kind}", number, place)
    topic, partition = located(topics, place)
    return Breakdown(f"partition_{kind}", number, partition, "topic", topic)
