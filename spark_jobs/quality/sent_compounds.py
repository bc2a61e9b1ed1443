"""Every compound of the published batches is on the output topic exactly once, as it stands in compound_events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.kafka.messages import header, messages_of
from spark_jobs.kafka.output_topic import Cleanup, OutputTopic
from spark_jobs.quality.compaction import with_replaced
from spark_jobs.quality.findings import Finding, fingerprint, flagged
from spark_jobs.tables.ledger import PUBLISHED

_ID = ("pair_id", "revision")


def published_batches(ledger: DataFrame, topic: OutputTopic) -> DataFrame:
    """One row a published batch: batch_id, partitions, published_at, gone: sent to a topic that is no more."""
    # A step that is there twice is a finding of its own, and must not double the compounds here.
    rows = ledger.where(F.col("step") == PUBLISHED).dropDuplicates(["batch_id"])
    gone = (F.col("output.topic_id") != topic.topic_id).alias("gone")
    return rows.select("batch_id", "output.partitions", F.col("finished_at").alias("published_at"), gone)


def expected_messages(compounds: DataFrame, pipeline: Pipeline, published: DataFrame) -> DataFrame:
    """What rows of compound_events say must be on the topic: batch_id, pair_id, revision,
    output_partition (null: not known), ts, retracts, key, bytes.
    """
    compounds = compounds.join(published.select("batch_id", "partitions"), "batch_id", "left")
    # As many ways of routing as the topic has had sizes.
    sizes = [row["partitions"] for row in published.select("partitions").distinct().collect()] or [None]
    sizes = sizes if None in sizes else [*sizes, None]
    return reduce(DataFrame.unionAll, (_messages(compounds, pipeline, size) for size in sizes))


def _messages(compounds: DataFrame, pipeline: Pipeline, partitions: int | None) -> DataFrame:
    rows = compounds.where(F.col("partitions").eqNullSafe(F.lit(partitions).cast("bigint")))
    messages = messages_of(rows, pipeline, partitions or 1)
    return messages.select(
        "batch_id",
        "pair_id",
        F.col("revision").cast("string").alias("revision"),
        (F.col("output_partition") if partitions else F.lit(None).cast("int")).alias("output_partition"),
        "ts",
        (F.col("op") == "retract").alias("retracts"),
        fingerprint("key").alias("key"),
        fingerprint("key", "value").alias("bytes"),
    )


def by_compound(expected: DataFrame, records: DataFrame) -> DataFrame:
    """One row for each pair_id and revision that is anywhere: compounds in the table, messages on the topic, what they say.

    `key`: a hash of the message's key. `offset`: of the first message; `last_offset`: of the last.
    """
    nothing, number = F.lit(None).cast("bigint"), F.lit(None).cast("int")
    rows = expected.select(
        *_ID,
        "batch_id",
        "output_partition",
        "ts",
        "retracts",
        "key",
        "bytes",
        number.alias("partition"),
        nothing.alias("offset"),
        nothing.alias("said"),
    )
    messages = records.select(
        header("pair-id").alias("pair_id"),
        header("revision").alias("revision"),
        nothing.alias("batch_id"),
        number.alias("output_partition"),
        nothing.alias("ts"),
        F.lit(None).cast("boolean").alias("retracts"),
        fingerprint("key").alias("key"),
        nothing.alias("bytes"),
        "partition",
        "offset",
        fingerprint("key", "value").alias("said"),
    )
    return (
        rows.unionAll(messages)
        .groupBy(*_ID)
        .agg(
            F.count("bytes").alias("compounds"),
            F.count("said").alias("messages"),
            F.max("batch_id").alias("batch_id"),
            F.max("output_partition").alias("output_partition"),
            F.max("partition").alias("partition"),
            F.min("offset").alias("offset"),
            F.max("offset").alias("last_offset"),
            F.max("ts").alias("ts"),
            F.coalesce(F.max("retracts"), F.lit(False)).alias("retracts"),
            # Where they differ, another finding says so.
            F.min("key").alias("key"),
            ((F.min("partition") != F.max("output_partition")) | (F.max("partition") != F.max("output_partition"))).alias(
                "elsewhere"
            ),
            ((F.min("said") != F.min("bytes")) | (F.max("said") != F.max("bytes"))).alias("differs"),
        )
    )


def with_absence(compounds: DataFrame, published: DataFrame, horizon: int, truncated: dict[int, int | None]) -> DataFrame:
    """Adds why a message may be absent: `due` (its batch is published) and `gone` (the topic, or its retention, let go of it).

    `truncated`: output partition -> batch_id of its first message, None without any; only partitions that have lost messages.
    """
    removed = F.lit(False)
    for partition, first in truncated.items():
        # A partition is in the order of batches; of the first one that is left a part may be gone, too.
        older = F.lit(True) if first is None else F.col("batch_id") <= first
        removed = removed | (F.coalesce(F.col("output_partition") == partition, F.lit(True)) & older)
    joined = compounds.join(
        published.select("batch_id", "published_at", F.col("gone").alias("other_topic")), "batch_id", "left"
    )
    due = (F.col("compounds") > 0) & (F.col("batch_id") <= horizon)
    due = F.coalesce(due, F.lit(False))
    return joined.withColumn("due", due).withColumn("gone", F.coalesce("other_topic", F.lit(False)) | removed)


def with_compaction(compounds: DataFrame, cleanup: Cleanup) -> DataFrame:
    """Adds to rows of `with_absence` the same where the topic is, or may be, compacted: `replaced` by a later message of the key, and
    `unknowable`, because a tombstone that would explain it may be gone by now, or nobody may see whether the topic is compacted.
    """
    if cleanup.compacted is False:
        return compounds.withColumn("replaced", F.lit(False)).withColumn("unknowable", F.lit(False))
    rows = with_replaced(compounds)
    if cleanup.compacted is None:
        return rows.withColumn("unknowable", F.col("replaced") & ~F.col("gone"))
    long_ago = F.col("published_at") < F.lit(datetime.now(UTC) - timedelta(milliseconds=cleanup.tombstones_ms))
    absent = F.col("due") & (F.col("messages") == 0) & ~F.col("gone") & ~F.col("replaced")
    return rows.withColumn("unknowable", absent & F.coalesce(long_ago, F.lit(False)))


def of_gone_compounds(ends: dict[int, int]) -> Column:
    """Whether a message without a compound lies where those of compounds do that went for their age. `ends`: by output partition, exclusive."""
    before = F.lit(False)
    for partition, end in ends.items():
        before = before | ((F.col("partition") == partition) & (F.col("last_offset") < end))
    return (F.col("compounds") == 0) & before


def is_ours(pipeline: Pipeline) -> Column:
    """Whether a pair_id is one that this pipeline gives."""
    topics = [F.col("pair_id").rlike(f"^{_quoted(side.topic)}-\\d+-\\d+$") for side in pipeline.sides]
    return F.coalesce(topics[0] | topics[1], F.lit(False))


def _quoted(topic: str) -> str:
    # Of what a topic's name may hold only the dot means something in a pattern.
    return topic.replace(".", "\\.")


def check_compounds(compounds: DataFrame, pipeline: Pipeline, ends: dict[int, int]) -> DataFrame:
    """What is wrong with which compound. `ends`: as `of_gone_compounds`. Messages that retention or compaction removed, and strangers' messages,
    are not among it.
    """
    in_table, on_topic = F.col("compounds") > 0, F.col("messages") > 0
    return flagged(
        compounds,
        F.concat_ws(" ", "pair_id", F.concat(F.lit("revision "), "revision"), F.concat(F.lit("of batch "), "batch_id")),
        {
            Finding.COMPOUND_TWICE: F.col("compounds") > 1,
            Finding.NOT_SENT: F.col("due") & ~on_topic & ~(F.col("gone") | F.col("replaced") | F.col("unknowable")),
            Finding.SENT_TWICE: in_table & (F.col("messages") > 1),
            Finding.SENT_OTHERWISE: in_table & on_topic & F.col("differs"),
            Finding.SENT_ELSEWHERE: F.col("elsewhere"),
            Finding.SENT_UNKNOWN: ~in_table & is_ours(pipeline) & ~of_gone_compounds(ends),
        },
    )
