"""Positions that expired in the middle of a publication, read back from the output topic.

A broker forgets the offsets of a group that is idle for `offsets.retention.minutes`. The ledger's position is older than the publication, so
to continue from it would send some messages twice. Therefore the ledger gets a row `publishing` with the end of every output partition before
the first message of a batch is sent: the messages behind these ends were sent since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pyspark.sql import functions as F

from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.dead_letters import read_dead_letters_sent
from spark_jobs.kafka.messages import header
from spark_jobs.kafka.offsets import Partition, TopicsNow, ask_broker, ends_written, wait_for_markers
from spark_jobs.kafka.output_topic import cleanup_of
from spark_jobs.kafka.positions import Position, PublishRun
from spark_jobs.kafka.records import Span, read_records, translate_read_errors, with_offsets
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.tables.ledger_rows import PUBLISHED_REJECTED, LedgerRow
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.warehouse import Warehouse


class UnfinishedPublication:
    """What the `publishing` rows of batches that are not published say."""

    def __init__(self, rows: Iterable[LedgerRow]) -> None:
        begun = list(rows)
        # Nothing was sent with a smaller number of partitions: it would have been finished with that.
        self.partitions = max((row.output_state.partitions for row in begun), default=0)
        same = [row for row in begun if row.output_state.partitions == self.partitions]
        self.batch_ids = {row.batch_id for row in same}
        self.since = min((row.finished_at for row in begun if row.finished_at), default=None)
        self.ends: dict[int, int] = {}
        """Partition -> its end when the publication began."""
        for row in same:
            for number, end in row.output_state.ends.items():
                self.ends[number] = min(end, self.ends.get(number, end))

    def age_ms(self) -> float:
        """Milliseconds since it began."""
        return 0.0 if self.since is None else (datetime.now(UTC) - self.since.astimezone(UTC)).total_seconds() * 1000


def recover_positions(
    warehouse: Warehouse, whole: PublishRun, unfinished: UnfinishedPublication, missing: list[int], accepts_repeats: bool
) -> dict[int, Position]:
    """Partition -> position, for those of the `missing` partitions that something was sent to. Earlier publishers must be fenced.

    `accepts_repeats`: the operator wants the messages of a partition sent again if it is not known which were sent; without it that raises
    NeedsOperator. Raises JobProblem where an open transaction hides the end of the topic.
    """
    settings = kafka_settings(warehouse.pipeline.output_connection)
    wait_for_markers(settings, whole.topic)
    topics, written = ask_broker(settings, [whole.topic]), ends_written(settings, whole.topic)
    spans = with_offsets(
        {(whole.topic, number): Span(unfinished.ends.get(number, 0), written[number]) for number in missing}
    )
    if not spans:
        return {}
    for (_, number), span in spans.items():
        if (end := topics.end[whole.topic, number]) < span.until:
            raise JobProblem(
                f"{whole.topic}-{number} can be read up to offset {end} only, but is written up to {span.until}: another producer's "
                "transaction is open there; publishing waits for its end, to see what it has sent itself"
            )
    unknown, reason = _unknown(warehouse, unfinished, spans, topics)
    if unknown and not accepts_repeats:
        numbers = ", ".join(str(number) for _, number in sorted(unknown))
        raise NeedsOperator(
            f"the positions of group {whole.group} on partitions {numbers} of {whole.topic} have expired in the middle of a publication, "
            f"and it is not known what was sent: {reason}; to send all batches after {whole.ledger_position} again, run publish_compounds "
            "once with --accept-lost-positions"
        )
    spans = {place: span for place, span in spans.items() if place not in unknown}
    sent = translate_read_errors(lambda: _sent(warehouse, whole, spans), warehouse.pipeline, [whole.topic])
    return {number: _position(whole, unfinished.partitions, batches) for number, batches in sent.items()}


def _unknown(
    warehouse: Warehouse, unfinished: UnfinishedPublication, spans: Mapping[Partition, Span], topics: TopicsNow
) -> tuple[set[Partition], str]:
    """The partitions from which the broker may have removed messages of the publication, and why."""
    if cut := {place for place, span in spans.items() if topics.earliest[place] > span.first}:
        return cut, "retention has removed messages since"
    ((topic, _), *_) = spans
    cleanup = cleanup_of(kafka_settings(warehouse.pipeline.output_connection), topic)
    if cleanup.compacted is False:
        return set(), ""
    reason = "the topic is compacted" if cleanup.compacted else "the topic may be compacted"
    if unfinished.age_ms() >= cleanup.tombstones_ms:
        return set(spans), reason
    # Compaction keeps the last record of a partition unless it is an old tombstone: where there is none, none was sent.
    records = translate_read_errors(
        lambda: read_records(warehouse.spark, warehouse.pipeline, spans, False, ["partition"]).distinct().collect(),
        warehouse.pipeline,
        [topic],
    )
    return {(topic, row["partition"]) for row in records}, reason


def _sent(warehouse: Warehouse, whole: PublishRun, spans: Mapping[Partition, Span]) -> dict[int, dict[int, int]]:
    """Partition -> batch_id -> messages of the run in the spans."""
    batches = range(whole.ledger_position + 1, whole.target + 1)
    if whole.step == PUBLISHED_REJECTED:
        letters = read_dead_letters_sent(warehouse, spans)
        found = letters.where(F.col("batch_id").between(batches.start, whole.target))
    else:
        records = read_records(warehouse.spark, warehouse.pipeline, spans, False, ["partition", "headers"])
        messages = records.select("partition", header("pair-id").alias("pair_id"), header("revision").alias("revision"))
        unpublished = warehouse.read(COMPOUNDS, ["pair_id", "revision", "batch_id"], batches=batches)
        compounds = unpublished.select("pair_id", F.col("revision").cast("string").alias("revision"), "batch_id")
        found = messages.join(compounds, ["pair_id", "revision"])
    rows = found.groupBy("partition", "batch_id").count().collect()
    sent: dict[int, dict[int, int]] = {}
    for row in rows:
        sent.setdefault(row["partition"], {})[row["batch_id"]] = row["count"]
    return sent


def _position(whole: PublishRun, partitions: int, batches: dict[int, int]) -> Position:
    # A transaction has whole batches, in order: what is missing of them was larger than the limit.
    limits = dict.fromkeys(range(whole.ledger_position + 1, max(batches) + 1), whole.largest)
    return Position(max(batches), whole.table_id, partitions, whole.topic_id, batches, limits)
