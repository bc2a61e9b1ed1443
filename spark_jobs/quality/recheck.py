"""Messages that were not all found on the output topic: lost, or gone as its retention and the rules of compaction allow."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql import functions as F

from spark_jobs.kafka.messages import message_columns
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.output_topic import cleanup_of
from spark_jobs.kafka.records import Span, read_records
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.compaction import with_replaced
from spark_jobs.quality.delivery import Due, is_cut
from spark_jobs.quality.numbers import Metrics, NotJudged
from spark_jobs.quality.sent_compounds import by_compound, expected_messages, is_ours
from spark_jobs.tables.warehouse import COMPOUNDS, Warehouse


def recheck_delivery(warehouse: Warehouse, wanted: Due, counted: Metrics) -> Metrics:
    """What `delivered` found, judged anew where it is not 0: by retention meanwhile, and by the rules of compaction.

    Gives `delivery_not_judged` in the place of `delivery_difference` where nobody can say. `replaced_on_topic`: messages that may be gone.
    """
    settings, pipeline = kafka_settings(), warehouse.pipeline
    cleanup, topics = cleanup_of(settings, pipeline.output_topic), ask_broker(settings, [pipeline.output_topic])
    if is_cut(wanted.spans, topics):
        return _unjudged(counted, NotJudged.RETENTION)
    if cleanup.compacted is False:
        return counted
    found = _by_compaction(warehouse, wanted, topics)
    missing = max(found["missing"] - wanted.refused, 0)
    difference = missing + found["twice"] + found["strange"]
    published = min(row.finished_at for row in wanted.published if row.finished_at)
    age_ms = (datetime.now(UTC) - published.astimezone(UTC)).total_seconds() * 1000
    if cleanup.compacted is None and not difference:
        return _unjudged(counted, NotJudged.RIGHT)
    if cleanup.compacted and difference == missing > 0 and age_ms > cleanup.tombstones_ms:
        return _unjudged(counted, NotJudged.TOMBSTONES)
    # Without the right to see it, what not even compaction may remove is a loss all the same.
    return counted | {"replaced_on_topic": found["replaced"], "delivery_difference": difference}


def _unjudged(counted: Metrics, why: NotJudged) -> Metrics:
    return {name: value for name, value in counted.items() if name != "delivery_difference"} | {"delivery_not_judged": why}


def _by_compaction(warehouse: Warehouse, wanted: Due, topics: TopicsNow) -> dict[str, int]:
    """How many messages are missing that compaction must keep, or replaced, there twice, or of nothing that was published."""
    spark, pipeline = warehouse.spark, warehouse.pipeline
    # What came later may have replaced what was published then.
    spans = {place: Span(span.first, topics.end[place]) for place, span in wanted.spans.items()}
    records = read_records(spark, spans, False, ["partition", "offset", "key", "value", "headers"])
    partitions = [(row.batch_id, row.output_state.partitions) for row in wanted.published]
    published = spark.createDataFrame(partitions, "batch_id BIGINT, partitions BIGINT")
    compounds = warehouse.read(COMPOUNDS, message_columns(pipeline), batches=wanted.batch_ids)
    rows = by_compound(expected_messages(compounds, pipeline, published), records)
    rows = with_replaced(rows.withColumn("due", F.col("compounds") > 0))
    ends = spark.createDataFrame(
        [(number, span.until) for (_, number), span in wanted.spans.items()], "partition INT, until BIGINT"
    )
    there = F.col("messages") > 0
    conditions = {
        "missing": F.col("due") & ~there & ~F.col("replaced"),
        "replaced": F.col("replaced"),
        "twice": F.col("due") & (F.col("messages") > 1),
        "strange": ~F.col("due") & is_ours(pipeline) & (F.col("offset") < F.col("until")),
    }
    (found,) = (
        rows.join(ends, "partition", "left")
        .agg(*(F.count(F.when(condition, True)).alias(name) for name, condition in conditions.items()))
        .collect()
    )
    return {name: int(found[name]) for name in conditions}
