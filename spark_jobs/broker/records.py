"""The records of topics: as Spark reads them, and by librdkafka where Spark cannot.

Spark's source keeps a record's time in microseconds, and no 64 bits hold those of a record stamped beyond the year 294246: one such
record, which any producer may send, fails whoever reads it, for ever. librdkafka gives the same records at half the speed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.broker.offsets import Partition
from spark_jobs.broker.rights import lacking, on_topic
from spark_jobs.broker.settings import ANSWER_WITHIN_S, Settings, consumer_settings, java_settings, kafka_settings
from spark_jobs.stages import Stage
from spark_jobs.storage.faults import full_text

RECORD = ("topic", "partition", "offset", "record_timestamp", "key", "value", "headers")
_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, record_timestamp BIGINT, `key` BINARY, value BINARY, "
    "headers ARRAY<STRUCT<`key`: STRING, value: BINARY>>"
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), _HEADERS)
_BYTES_AT_ONCE = 32_000_000
_ROWS_AT_ONCE = 10_000


class Span(NamedTuple):
    """Offsets of one partition, from inclusive, until exclusive."""

    first: int
    until: int


Spans = Mapping[Partition, Span]
# (spark, spans, all_there): `RECORD` of the committed records in the spans. If `all_there`, an offset that the broker has
# lost fails the query; else it is left out.
Reader = Callable[[SparkSession, Spans, bool], DataFrame]
T = TypeVar("T")
# What the Java client says, and librdkafka's reader here in its place: through Spark only the text arrives.
_FORBIDDEN = "Not authorized to access topics: ["


def with_either_reader(work: Callable[[Reader], T]) -> T:
    """What `work` gives with Spark's source or, if that fails at a record's time, with librdkafka.

    Raises NeedsOperator where a topic may be seen, but not read.
    """
    try:
        return _allowed(work, read_records)
    except Exception as error:
        if "long overflow" not in full_text(error):
            raise
        print("records are stamped beyond what Spark's source can tell: all are read by librdkafka", file=sys.stderr)
        return _allowed(work, read_any_records)


def _allowed(work: Callable[[Reader], T], read: Reader) -> T:
    try:
        return work(read)
    except Exception as error:
        if forbidden := re.search(rf"{re.escape(_FORBIDDEN)}([\w.-]+)", full_text(error)):
            raise lacking(kafka_settings(), on_topic("Read", forbidden[1])) from None
        raise


def read_records(spark: SparkSession, spans: Spans, all_there: bool) -> DataFrame:
    """By Spark's source."""
    offsets: dict[str, dict[str, Span]] = {}
    for (topic, partition), span in spans.items():
        if span.first < span.until:
            offsets.setdefault(topic, {})[str(partition)] = span
    if not offsets:
        return spark.createDataFrame([], _SCHEMA)

    def each(what: Callable[[Span], int]) -> str:
        return json.dumps(
            {topic: {number: what(span) for number, span in parts.items()} for topic, parts in offsets.items()}
        )

    return (
        spark.read.format("kafka")
        .options(**java_settings(kafka_settings()))
        .option("assign", json.dumps({topic: [int(number) for number in parts] for topic, parts in offsets.items()}))
        .option("startingOffsets", each(lambda span: span.first))
        .option("endingOffsets", each(lambda span: span.until))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", str(all_there).lower())
        .load()
        .withColumn("record_timestamp", F.unix_millis("timestamp"))
        .select(*RECORD)
    )


def read_any_records(spark: SparkSession, spans: Spans, all_there: bool) -> DataFrame:
    """By librdkafka, whatever the records' times are."""
    rows = [(*place, *span) for place, span in spans.items() if span.first < span.until]
    frame = spark.createDataFrame(rows, "topic STRING, partition INT, first BIGINT, until BIGINT")
    reader = _reader(kafka_settings(), "error" if all_there else "earliest")
    return frame.repartition(max(len(rows), 1), "topic", "partition").mapInArrow(reader, _SCHEMA)


def _reader(settings: Settings, where_gone: str) -> Stage:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = consumer_settings(settings, "event-pairing.landing")
        # By itself a consumer would jump to the end where offsets are gone.
        mine |= {"enable.partition.eof": True, "auto.offset.reset": where_gone}
        for batch in batches:
            for span in batch.to_pylist():
                yield from _span(mine, **span)

    return read


def _span(settings: Settings, topic: str, partition: int, first: int, until: int) -> Iterator[pa.RecordBatch]:
    """The records in pieces of a few megabytes."""
    consumer = Consumer(settings)
    rows: list[tuple[object, ...]] = []
    size = 0
    try:
        consumer.assign([TopicPartition(topic, partition, first)])
        for message in read_messages(consumer, until):
            kind, moment = message.timestamp()
            # Kafka's own word for no time, as Spark's source has it.
            moment = -1 if kind == TIMESTAMP_NOT_AVAILABLE else moment
            key, value, headers = message.key(), message.value(), message.headers()
            rows.append((topic, partition, message.offset(), moment, key, value, headers and list(headers)))
            size += len(key or b"") + len(value or b"")
            if len(rows) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
                yield _table(rows)
                rows, size = [], 0
        if rows:
            yield _table(rows)
    finally:
        consumer.close()


def read_messages(consumer: Consumer, until: int) -> Iterator[Message]:
    """The messages of the one partition that the consumer was given, up to `until` (exclusive) or to its end. Raises KafkaException."""
    while True:
        message = consumer.poll(ANSWER_WITHIN_S)
        error = KafkaError(KafkaError._TIMED_OUT) if message is None else message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # The client looks for its group's coordinator, but nothing is ever asked of the group.
            continue
        if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            (place,) = consumer.assignment()
            raise KafkaException(KafkaError(error.code(), f"{_FORBIDDEN}{place.topic}]"))
        # The last offsets may hold no record; then the end of the partition is all that is heard of them.
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        if message is None or error is not None or (message.offset() or 0) >= until:
            return
        yield message


def _table(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    arrays = [pa.array(list(column), kind) for column, kind in zip(zip(*rows, strict=True), _TYPES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(RECORD))
