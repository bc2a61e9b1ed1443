"""Every compound of the published batches is on its topic exactly once, as it stands in compound_events.

Reconcile compares all of them, topic by topic; the report those that were sent since the last one (delivery.py).

Of a compacted topic each partition keeps the last record of a key; all before it may be removed, and a last record without a value, too,
after a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_jobs.kafka.messages import header
from spark_jobs.kafka.output_topic import Cleanup
from spark_jobs.kafka.records import Spans, read_records
from spark_jobs.kafka.routing import Route, read_messages
from spark_jobs.quality.checks import Finding, flagged
from spark_jobs.quality.facts import fingerprint
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.tables.ledger_rows import PUBLISHED_REJECTED, LedgerRow
from spark_jobs.tables.output_schemas import OutputSchemas
from spark_jobs.tables.warehouse import Warehouse


class SentBatch(NamedTuple):
    """A published batch: the topic that it was sent to, with how many partitions, and when. `refused`: messages too large for it;
    `withdrawn`: retractions of compounds that are on another topic now.
    """

    batch_id: int
    partitions: int
    sent_at: datetime | None
    topic_id: str
    refused: int
    withdrawn: int = 0


def sent_batch(published: LedgerRow) -> SentBatch:
    output = published.output_state
    sent = (published.batch_id, output.partitions, published.finished_at, output.topic_id)
    if published.step == PUBLISHED_REJECTED:
        return SentBatch(*sent, published.dead_letters.refused)
    counts = published.published
    return SentBatch(*sent, counts.refused, counts.withdrawn)


def by_compound(
    warehouse: Warehouse,
    route: Route,
    sent: Iterable[SentBatch],
    spans: Spans,
    *,
    batches: Sequence[int] | None = None,
    after: int = 0,
) -> DataFrame:
    """One row for each pair_id and revision of one topic: compounds in the table that go to it, messages in the spans, and what they say.

    Compounds of these `batches` (None: all), and only of batches after `after`.
    `key`: a hash of the message's key. `offset`: of the first message; `last_offset`: of the last. `of_removed`: it may withdraw a compound that was
    removed for its age.
    """
    partitions = {batch.batch_id: batch.partitions for batch in sent}
    route = route._replace(schemas=OutputSchemas(warehouse).of(partitions))
    said = {"key": fingerprint("key"), "bytes": fingerprint("key", "value")}
    expected = read_messages(warehouse, route, partitions, batches, lambda column: column("batch_id") > after).select(
        *("batch_id", "pair_id", "output_partition", "ts"),
        F.col("revision").cast("string").alias("revision"),
        (F.col("op") == "retract").alias("retracts"),
        # An emptied row has no key, and nothing to compare.
        *(F.when(F.col("key").isNotNull(), each).alias(name) for name, each in said.items()),
    )
    messages = read_records(
        warehouse.spark, warehouse.pipeline, spans, False, ("partition", "offset", "key", "value", "headers")
    ).select(
        header("pair-id").alias("pair_id"),
        header("revision").alias("revision"),
        *("partition", "offset"),
        fingerprint("key").alias("key"),
        fingerprint("key", "value").alias("said"),
        F.col("value").isNull().alias("takes_back"),
    )
    # Where a compound was is not known any more, if the revision before it is removed.
    may_be_removed = F.lit(after > 0 and not route.is_only_one)

    def differ(one: str, other: str) -> Column:
        return (F.min(one) != F.min(other)) | (F.max(one) != F.max(other))

    return (
        expected.unionByName(messages, allowMissingColumns=True)
        .groupBy("pair_id", "revision")
        .agg(
            F.count("batch_id").alias("compounds"),
            F.count("said").alias("messages"),
            *(F.max(name).alias(name) for name in ("batch_id", "output_partition", "partition", "ts")),
            F.min("offset").alias("offset"),
            F.max("offset").alias("last_offset"),
            F.coalesce(F.max("retracts"), F.lit(False)).alias("retracts"),
            ((F.count("batch_id") > 0) & (F.count("bytes") == 0)).alias("erased"),
            # Where they differ, another finding says so.
            F.min("key").alias("key"),
            differ("partition", "output_partition").alias("elsewhere"),
            differ("said", "bytes").alias("differs"),
            (may_be_removed & F.coalesce(F.max("takes_back"), F.lit(False))).alias("of_removed"),
        )
    )


def with_absence(
    compounds: DataFrame, sent: Iterable[SentBatch], topic_id: str, horizon: int, truncated: Mapping[int, int | None]
) -> DataFrame:
    """Adds why a message may be absent: `due` (its batch is published) and `gone` (retention removed it, or the topic was replaced).

    `topic_id`: that of the topic now. `truncated`: output partition -> batch_id of its first message, None without any; only partitions that
    have lost messages.
    """
    rows = [(batch.batch_id, batch.sent_at, batch.topic_id != topic_id) for batch in sent]
    frame = compounds.sparkSession.createDataFrame(rows, "batch_id BIGINT, sent_at TIMESTAMP, other_topic BOOLEAN")
    gone = F.coalesce("other_topic", F.lit(False))
    for partition, first in truncated.items():
        # A partition is in the order of batches; of the first one that is left a part may be gone, too.
        older = F.lit(True) if first is None else F.col("batch_id") <= first
        gone = gone | (F.coalesce(F.col("output_partition") == partition, F.lit(True)) & older)
    due = F.coalesce((F.col("compounds") > 0) & (F.col("batch_id") <= horizon), F.lit(False))
    return compounds.join(frame, "batch_id", "left").withColumns({"due": due, "gone": gone})


def with_compaction(compounds: DataFrame, cleanup: Cleanup) -> DataFrame:
    """Adds to rows of `with_absence` the same where the topic is, or may be, compacted: `replaced` by a later message of the key, and
    `unknowable`, because a tombstone that would explain it may be gone by now, or the user may not see whether the topic is compacted.
    """
    if cleanup.compacted is False:
        return compounds.withColumns({"replaced": F.lit(False), "unknowable": F.lit(False)})
    rows = _with_replaced(compounds)
    if cleanup.compacted is None:
        return rows.withColumn("unknowable", F.col("replaced") & ~F.col("gone"))
    long_ago = F.col("sent_at") < F.lit(datetime.now(UTC) - timedelta(milliseconds=cleanup.tombstones_ms))
    absent = F.col("due") & (F.col("messages") == 0) & ~F.col("gone") & ~F.col("replaced")
    return rows.withColumn("unknowable", absent & F.coalesce(long_ago, F.lit(False)))


def _with_replaced(compounds: DataFrame) -> DataFrame:
    """Adds whether the message was `replaced`: it is gone, as the rules of compaction allow.

    Messages of a key are sent by batch_id, retractions first, then by ts; of several with the same, one must be there. What is not due and there may
    be later than all.
    """
    mine = Window.partitionBy("key", F.coalesce("output_partition", "partition"))
    due, there, at = F.col("due"), F.col("messages") > 0, F.struct("batch_id", ~F.col("retracts"), "ts")
    is_last = due & at.eqNullSafe(F.max(F.when(due, at)).over(mine))
    kept = F.max((F.col("is_last") & (there | F.col("retracts"))) | (~due & there)).over(mine)
    rows = compounds.withColumn("is_last", is_last)
    # The last message of an erased key is a tombstone, which may have taken the others and may be gone itself.
    replaced = due & ~there & (F.col("erased") | ~F.col("is_last") | kept)
    return rows.withColumn("replaced", replaced).drop("is_last")


def of_removed_compounds(ends: Mapping[int, int]) -> Column:
    """Whether a message without a compound lies where those of compounds do that were removed for their age. `ends`: as `RemovedRows.ends`."""
    return (F.col("compounds") == 0) & lies_before(ends, "last_offset")


def lies_before(ends: Mapping[int, int], offset: str) -> Column:
    """`ends`: by output partition, exclusive."""
    before = [(F.col("partition") == partition) & (F.col(offset) < end) for partition, end in ends.items()]
    return reduce(or_, before, F.lit(False))


def is_ours(topics: SideTopics) -> Column:
    """Whether a pair_id is one that a pipeline of these topics makes."""
    # Of what a topic's name may hold only the dot means something in a pattern.
    left, right = ("|".join(topic.replace(".", "\\.") for topic in mine) for mine in topics)
    found = (F.col("pair_id").rlike(f"^({names})-\\d+-\\d+$") for names in (left, right))
    return F.coalesce(reduce(or_, found), F.lit(False))


def compound_cases(topics: SideTopics, ends: Mapping[int, int]) -> dict[Finding, Column]:
    """What can be wrong with a row of `with_compaction`; what retention or compaction removed is not, nor are messages of other producers. `ends`:
    as `RemovedRows.ends`.
    """
    in_table, on_topic = F.col("compounds") > 0, F.col("messages") > 0
    return {
        Finding.COMPOUND_TWICE: F.col("compounds") > 1,
        Finding.NOT_SENT: F.col("due") & ~on_topic & ~(F.col("gone") | F.col("replaced") | F.col("unknowable")),
        Finding.SENT_TWICE: in_table & (F.col("messages") > 1),
        Finding.SENT_OTHERWISE: in_table & on_topic & F.col("differs"),
        Finding.SENT_ELSEWHERE: F.col("elsewhere"),
        Finding.SENT_UNKNOWN: ~in_table & is_ours(topics) & ~of_removed_compounds(ends) & ~F.col("of_removed"),
    }


def check_compounds(compounds: DataFrame, topics: SideTopics, ends: Mapping[int, int], beside: str = "") -> DataFrame:
    """What is wrong with which compound; see `compound_cases`. `beside`: the topic, if it is one beside the output topic."""
    said = [F.concat(F.lit("revision "), "revision"), F.concat(F.lit("of batch "), "batch_id")]
    what = F.concat_ws(" ", "pair_id", *said, *([F.lit(f"({beside})")] if beside else []))
    return flagged(compounds, what, compound_cases(topics, ends))
