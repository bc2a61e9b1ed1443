"""Every compound of the published batches is on the output topic exactly once, as it stands in compound_events.

The report counts the messages that were sent since the last report, and looks closer where they are not as many as the compounds; reconcile
compares all of them. Each `published` row of the ledger has the ends that the output partitions had behind its batches (`output.ends`), asked
of the broker when all of them were sent: what lies between two of these was published between.

Of a compacted topic each partition keeps the last record of a key; all before it may be removed, and a last record without a value, too,
after a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.kafka.messages import header, read_compounds
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.open_transactions import check_readable
from spark_jobs.kafka.output_topic import Cleanup, cleanup_of
from spark_jobs.kafka.records import Span, Spans, read_records
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.checks import Finding, count_where, flagged
from spark_jobs.quality.facts import Facts, facts_of, fingerprint, message_mark
from spark_jobs.quality.numbers import Metrics, NotJudged
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.output_schemas import OutputSchemas
from spark_jobs.tables.warehouse import Warehouse


class SentBatch(NamedTuple):
    """A published batch: the topic that it was sent to, with how many partitions, and when. `refused`: compounds too large for it."""

    batch_id: int
    partitions: int
    sent_at: datetime | None
    topic_id: str
    refused: int


class DeliveryScope(NamedTuple):
    """What the report reads back: successive batches, void ones, too, if they were published, and where their messages are."""

    batch_ids: range
    spans: Spans
    sent: list[SentBatch]

    @property
    def refused(self) -> int:
        """Compounds too large for the topic, so not on it."""
        return sum(batch.refused for batch in self.sent)


def sent_batch(published: LedgerRow) -> SentBatch:
    output, refused = published.output_state, published.published.refused
    return SentBatch(published.batch_id, output.partitions, published.finished_at, output.topic_id, refused)


def delivery_scope(
    pipeline: Pipeline, published: Mapping[int, LedgerRow], after: int, until: int, topics: TopicsNow
) -> DeliveryScope | NotJudged | None:
    """The batches after..until (exclusive, inclusive), or why they cannot be read back any more; None if nothing was published.

    `published`: the ledger's rows by batch_id. Raises Unreadable if the topic cannot be read that far yet.
    """
    last, topic = published.get(until), pipeline.output_topic
    if until <= after or last is None or (after and after not in published):
        return None
    begins = published[after].output_state.ends if after else {}
    if any(row.output_state.topic_id != topics.ids[topic] for number, row in published.items() if after <= number <= until):
        return NotJudged.RECREATED
    spans = {(topic, number): Span(begins.get(number, 0), end) for number, end in last.output_state.ends.items()}
    if _is_cut(spans, topics):
        return NotJudged.RETENTION
    check_readable(topics, {place: span.until for place, span in spans.items()})
    batch_ids = range(after + 1, until + 1)
    return DeliveryScope(batch_ids, spans, [sent_batch(row) for number, row in published.items() if number in batch_ids])


def _is_cut(spans: Spans, topics: TopicsNow) -> bool:
    """Whether the broker no longer has the beginning of one of the spans."""
    return any(topics.earliest[place] > span.first for place, span in spans.items() if span.first < span.until)


def message_facts(warehouse: Warehouse, scope: DeliveryScope) -> DataFrame:
    """Facts `message`, of batch 0: this pipeline's messages in the spans, marked as their compounds are."""
    records = read_records(warehouse.spark, scope.spans, False, ["headers"])
    mine = records.select(header("pair-id").alias("pair_id"), header("revision").alias("revision"))
    mine, none = mine.where(is_ours(warehouse.pipeline)), F.lit(0).cast("bigint")
    return facts_of(mine, F.lit("message"), F.lit(""), batch_id=none, mark=message_mark())


def delivery_metrics(warehouse: Warehouse, scope: DeliveryScope | NotJudged | None, counted: Facts) -> Metrics:
    """`due_on_topic`, `on_topic` and `delivery_difference`: the compounds of the table against the messages of the topic.

    `delivery_not_judged` in the place of the difference where it cannot be judged; nothing if nothing was published.
    """
    if not isinstance(scope, DeliveryScope):
        return {"delivery_not_judged": scope} if scope else {}
    compounds = counted.number("compound", scope.batch_ids) - scope.refused
    messages = counted.number("message", (0,))
    others = not scope.refused and counted.mark("compound", scope.batch_ids) != counted.mark("message", (0,))
    metrics: Metrics = {"due_on_topic": compounds, "on_topic": messages}
    if difference := compounds - messages or int(others):
        return metrics | _compared(warehouse, scope, difference)
    return metrics | {"delivery_difference": 0}


def _compared(warehouse: Warehouse, scope: DeliveryScope, difference: int) -> Metrics:
    """`delivery_difference` by what retention removed meanwhile, and by the rules of compaction. `replaced_on_topic`: messages that these allow to be gone."""
    settings, topic = kafka_settings(), warehouse.pipeline.output_topic
    cleanup, topics = cleanup_of(settings, topic), ask_broker(settings, [topic])
    if _is_cut(scope.spans, topics):
        return {"delivery_not_judged": NotJudged.RETENTION}
    if cleanup.compacted is False:
        return {"delivery_difference": difference}
    # What came later may have replaced what was published then.
    spans = {place: Span(span.first, topics.end[place]) for place, span in scope.spans.items()}
    compounds = by_compound(warehouse, scope.sent, spans, batches=scope.batch_ids)
    rows = with_compaction(with_absence(compounds, scope.sent, topics.ids[topic], scope.batch_ids[-1], {}), cleanup)
    cases = compound_cases(warehouse.pipeline, {})
    ends = {number: span.until for (_, number), span in scope.spans.items()}
    conditions = {
        "missing": cases[Finding.NOT_SENT],
        "twice": cases[Finding.SENT_TWICE],
        "unknown": cases[Finding.SENT_UNKNOWN] & _lies_before(ends, "offset"),
        "replaced": F.col("replaced"),
        "unknowable": F.col("unknowable"),
    }
    found = count_where(rows, conditions)
    missing, still_refused = max(found["missing"] - scope.refused, 0), max(scope.refused - found["missing"], 0)
    if difference := missing + found["twice"] + found["unknown"]:
        # Without the right to see the policy, what not even compaction may remove is a loss all the same.
        return {"replaced_on_topic": found["replaced"], "delivery_difference": difference}
    if cleanup.compacted is None:
        return {"delivery_not_judged": NotJudged.RIGHT}
    if found["unknowable"] > still_refused:
        return {"delivery_not_judged": NotJudged.TOMBSTONES}
    return {"replaced_on_topic": found["replaced"], "delivery_difference": 0}


def by_compound(
    warehouse: Warehouse, sent: Iterable[SentBatch], spans: Spans, *, batches: Iterable[int] | None = None, after: int = 0
) -> DataFrame:
    """One row for each pair_id and revision that is anywhere: compounds in the table, messages in the spans, and what they say.

    Compounds of these `batches` (None: all), and only of batches after `after`.
    `key`: a hash of the message's key. `offset`: of the first message; `last_offset`: of the last.
    """
    partitions = {batch.batch_id: batch.partitions for batch in sent}
    schemas = OutputSchemas(warehouse).of(partitions)
    expected = read_compounds(warehouse, partitions, batches, lambda column: column("batch_id") > after, schemas).select(
        *("batch_id", "pair_id", "output_partition", "ts"),
        F.col("revision").cast("string").alias("revision"),
        (F.col("op") == "retract").alias("retracts"),
        fingerprint("key").alias("key"),
        fingerprint("key", "value").alias("bytes"),
    )
    messages = read_records(warehouse.spark, spans, False, ("partition", "offset", "key", "value", "headers")).select(
        header("pair-id").alias("pair_id"),
        header("revision").alias("revision"),
        *("partition", "offset"),
        fingerprint("key").alias("key"),
        fingerprint("key", "value").alias("said"),
    )

    def differ(one: str, other: str) -> Column:
        return (F.min(one) != F.min(other)) | (F.max(one) != F.max(other))

    return (
        expected.unionByName(messages, allowMissingColumns=True)
        .groupBy("pair_id", "revision")
        .agg(
            F.count("bytes").alias("compounds"),
            F.count("said").alias("messages"),
            *(F.max(name).alias(name) for name in ("batch_id", "output_partition", "partition", "ts")),
            F.min("offset").alias("offset"),
            F.max("offset").alias("last_offset"),
            F.coalesce(F.max("retracts"), F.lit(False)).alias("retracts"),
            # Where they differ, another finding says so.
            F.min("key").alias("key"),
            differ("partition", "output_partition").alias("elsewhere"),
            differ("said", "bytes").alias("differs"),
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

    Messages of a key are sent by (batch_id, ts); of several with the same, one must be there. What is not due and there may be later than all.
    """
    mine = Window.partitionBy("key", F.coalesce("output_partition", "partition"))
    due, there, at = F.col("due"), F.col("messages") > 0, F.struct("batch_id", "ts")
    is_last = due & at.eqNullSafe(F.max(F.when(due, at)).over(mine))
    kept = F.max((F.col("is_last") & (there | F.col("retracts"))) | (~due & there)).over(mine)
    rows = compounds.withColumn("is_last", is_last)
    return rows.withColumn("replaced", due & ~there & (~F.col("is_last") | kept)).drop("is_last")


def of_removed_compounds(ends: Mapping[int, int]) -> Column:
    """Whether a message without a compound lies where those of compounds do that were removed for their age. `ends`: as `RemovedRows.ends`."""
    return (F.col("compounds") == 0) & _lies_before(ends, "last_offset")


def _lies_before(ends: Mapping[int, int], offset: str) -> Column:
    """`ends`: by output partition, exclusive."""
    before = [(F.col("partition") == partition) & (F.col(offset) < end) for partition, end in ends.items()]
    return reduce(or_, before, F.lit(False))


def is_ours(pipeline: Pipeline) -> Column:
    """Whether a pair_id is one that this pipeline makes."""
    # Of what a topic's name may hold only the dot means something in a pattern.
    topics = [side.topic.replace(".", "\\.") for side in pipeline.sides]
    left, right = (F.col("pair_id").rlike(f"^{topic}-\\d+-\\d+$") for topic in topics)
    return F.coalesce(left | right, F.lit(False))


def compound_cases(pipeline: Pipeline, ends: Mapping[int, int]) -> dict[Finding, Column]:
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
        Finding.SENT_UNKNOWN: ~in_table & is_ours(pipeline) & ~of_removed_compounds(ends),
    }


def check_compounds(compounds: DataFrame, pipeline: Pipeline, ends: Mapping[int, int]) -> DataFrame:
    """What is wrong with which compound; see `compound_cases`."""
    what = F.concat_ws(" ", "pair_id", F.concat(F.lit("revision "), "revision"), F.concat(F.lit("of batch "), "batch_id"))
    return flagged(compounds, what, compound_cases(pipeline, ends))
