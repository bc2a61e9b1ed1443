"""Which compound goes to which topic of a pipeline: by its kind, and by where the revision before it is.

A pair goes to the output topic, an orphan to the orphans topic, if the settings of its batch name one. Each topic is right on its own: where
the revision before an upsert is on another topic, that one gets a retraction with the number of the new revision; and a retraction goes to
where the revision before it is. A batch reaches only the topics that its settings name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.kafka.messages import ALL_JSON, Schemas, reading_of_compounds
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.spark.session import MANY_ROWS
from spark_jobs.tables.batch_settings import BatchSettings
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.outbox import RETRACT, UPSERT
from spark_jobs.tables.reading import Reading
from spark_jobs.tables.records import LIVE
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.tables import Condition
from spark_jobs.tables.warehouse import Warehouse

_PAIR = str(Outcome.PAIR)
_ROUTED_BY = ["pair_id", "revision", "kind", "op", "batch_id"]


class Route(NamedTuple):
    """The way to one topic of a pipeline. `settings`: of all batches whose compounds are read, and of those before them. `corrections`: at most so
    many of these compounds correct earlier ones; without any, the batches must have the same topics. `schemas`: see `message_maker`.
    """

    topic: str
    settings: BatchSettings
    schemas: Schemas = ALL_JSON
    corrections: int = MANY_ROWS

    @property
    def is_only_one(self) -> bool:
        """Whether everything goes to this topic."""
        return self.settings.topics() == (self.topic,)

    @property
    def is_main(self) -> bool:
        """Whether it is the output topic."""
        return self.settings.topics()[0] == self.topic


class ExpectedMessages(NamedTuple):
    """Messages of one batch for one topic: `compounds`, and `withdrawn`, retractions of what goes to another topic from this batch on."""

    compounds: int
    withdrawn: int = 0


def corrections_in(paired: Iterable[LedgerRow]) -> int:
    """At most so many compounds of the batches correct earlier ones. After a rewind, live batches may, too."""
    return sum(row.paired.compounds for row in paired if row.kind != LIVE or row.plan.corrected is not None)


def read_messages(
    warehouse: Warehouse,
    route: Route,
    partitions: Mapping[int, int],
    batches: Sequence[int] | None = None,
    where: Condition | None = None,
) -> DataFrame:
    """The messages for one topic, in Spark, as rows of `MESSAGE_COLUMNS`."""
    if (reading := reading_of_messages(warehouse, route, partitions, batches, where)) is not None:
        return reading.in_spark()
    rows = reading_of_compounds(warehouse, partitions, batches, where, route.settings, route.schemas).in_spark()
    routed = _routed(warehouse, route, rows, batches)
    gone = F.col("withdraws")
    return routed.select(
        *("output_partition", "batch_id", "key"),
        F.when(~gone, F.col("value")).alias("value"),
        *("pair_id", "revision"),
        F.when(gone, F.col("was_kind")).otherwise(F.col("kind")).alias("kind"),
        F.when(gone, F.lit(RETRACT)).otherwise(F.col("op")).alias("op"),
        "ts",
    )


def reading_of_messages(
    warehouse: Warehouse,
    route: Route,
    partitions: Mapping[int, int],
    batches: Sequence[int] | None,
    where: Condition | None = None,
) -> Reading | None:
    """As `read_messages`; None if they may correct something on another topic, which only Spark finds."""
    if not route.is_only_one and route.corrections:
        return None
    return reading_of_compounds(warehouse, partitions, batches, _of_topic(route, where), route.settings, route.schemas)


def expected_messages(warehouse: Warehouse, route: Route, paired: Sequence[LedgerRow]) -> dict[int, ExpectedMessages]:
    """batch_id -> its messages for the topic, counted by the ledger, or in the table where compounds may correct earlier ones."""
    if route.is_only_one:
        return {row.batch_id: ExpectedMessages(row.paired.compounds) for row in paired}
    if not route.corrections:
        pairs = {row.batch_id: row.paired.pair for row in paired}
        return {
            row.batch_id: ExpectedMessages(
                pairs[row.batch_id] if route.is_main else row.paired.compounds - pairs[row.batch_id]
            )
            for row in paired
        }
    batches = [row.batch_id for row in paired]
    routed = _routed(warehouse, route, warehouse.read(COMPOUNDS, _ROUTED_BY, batches=batches), batches)
    withdrawn = F.sum(F.col("withdraws").cast("bigint")).alias("withdrawn")
    rows = routed.groupBy("batch_id").agg(F.count("*").alias("messages"), withdrawn).collect()
    found = {row["batch_id"]: ExpectedMessages(row["messages"] - row["withdrawn"], row["withdrawn"]) for row in rows}
    return {batch_id: found.get(batch_id, ExpectedMessages(0)) for batch_id in batches}


def _of_topic(route: Route, where: Condition | None = None) -> Condition | None:
    """`where`, and that the kind goes to the topic; the batches have the same topics."""
    if route.is_only_one:
        return where

    def condition(column: Callable[[str], Any]) -> ds.Expression:
        mine = column("kind") == _PAIR if route.is_main else column("kind") != _PAIR
        return mine if where is None else where(column) & mine

    return condition


def _routed(warehouse: Warehouse, route: Route, rows: DataFrame, batches: Sequence[int] | None) -> DataFrame:
    """Those of the rows that make a message for the topic, with `withdraws`: it only retracts the revision before, whose kind is `was_kind`."""
    main, orphans = F.lit(route.settings.topics()[0]), _orphans_topic(route.settings)
    by_kind = F.when(F.col("kind") == _PAIR, main).otherwise(F.coalesce(orphans, main))
    earlier = warehouse.read(COMPOUNDS, _ROUTED_BY, where=lambda column: column("op") == UPSERT)
    earlier = earlier.select(
        "pair_id",
        (F.col("revision") + 1).alias("revision"),
        F.col("kind").alias("was_kind"),
        by_kind.alias("was_on"),
    )
    if route.corrections < MANY_ROWS:
        revised = warehouse.read(
            COMPOUNDS, ["pair_id", "revision"], batches=batches, where=lambda column: column("revision") > 0
        )
        earlier = earlier.join(F.broadcast(revised), ["pair_id", "revision"], "left_semi")
    both = rows.join(earlier, ["pair_id", "revision"], "left").withColumn("goes_to", by_kind)
    is_reached = F.coalesce((F.col("was_on") == main) | (F.col("was_on") == orphans), F.lit(False))
    retracts = F.col("op") == RETRACT
    target = F.when(retracts & is_reached, F.col("was_on")).otherwise(F.col("goes_to"))
    withdraws = ~retracts & is_reached & (F.col("was_on") == route.topic) & (F.col("goes_to") != route.topic)
    found = both.withColumns({"withdraws": F.coalesce(withdraws, F.lit(False)), "target": target})
    return found.where(F.col("withdraws") | (F.col("target") == route.topic))


def _orphans_topic(settings: BatchSettings) -> Column:
    """The orphans topic of the row's batch, null if it has none."""
    found = F.lit(settings.pipelines[0].output_orphans_topic).cast("string")
    for first, pipeline in zip(settings.since[1:], settings.pipelines[1:], strict=True):
        later = F.lit(pipeline.output_orphans_topic).cast("string")
        found = F.when(F.col("batch_id") >= first, later).otherwise(found)
    return found
