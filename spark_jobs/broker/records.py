"""The records of topics, by librdkafka in the workers, and by Spark's source.

Whoever only wants them as rows of Spark is faster with its source; of a worker that does its work itself, librdkafka is the faster one by far.
Spark's source keeps a record's time in microseconds, and no 64 bits hold those of a record stamped beyond the year 294246: one such
record, which any producer may send, fails whoever reads it by that source, for ever; librdkafka gives it like any other.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.broker.offsets import Partition
from spark_jobs.broker.rights import lacking, on_topic
from spark_jobs.broker.settings import ANSWER_WITHIN_S, Settings, consumer_settings, java_settings, kafka_settings
from spark_jobs.pairing.portions import portions
from spark_jobs.stages import Stage
from spark_jobs.storage.faults import full_text

RECORD = ("topic", "partition", "offset", "record_timestamp", "key", "value", "headers")
_SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, record_timestamp BIGINT, `key` BINARY, value BINARY, "
    "headers ARRAY<STRUCT<`key`: STRING, value: BINARY>>"
)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# Whatever has come by then is taken: at a gigabyte a second, a hundred megabytes, or more where a megabyte was hundreds before its compression.
_WITHIN_S = 0.1
_ROWS_AT_ONCE = 10_000
# Handed on in pieces, as columns and parsed it is several times its size.
_BYTES_AT_ONCE = 16_000_000
# By itself librdkafka, once it has 64 MB ahead, waits for a second before it fetches more: whoever takes all that comes waits as long as it
# works. At the end of a partition nothing more comes, and nobody has to wait for it. What is fetched beyond a span's end is for nothing.
_READING = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "queued.min.messages": 30_000,
    "check.crcs": True,
}


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
_UNTOLD_HEADER = "a header's name is not UTF-8"


def with_either_reader(work: Callable[[Reader], T]) -> T:
    """What `work` gives with Spark's source or, if that fails at a record's time, with librdkafka.

    Raises NeedsOperator where a topic may be seen, but not read.
    """
    try:
        return allowed(lambda: work(read_records))
    except Exception as error:
        if "long overflow" not in full_text(error):
            raise
        print("records are stamped beyond what Spark's source can tell: all are read by librdkafka", file=sys.stderr)
        return allowed(lambda: work(read_any_records))


def allowed(work: Callable[[], T]) -> T:
    """What `work`, which has records read, gives. Raises NeedsOperator where a topic may be seen, but not read."""
    try:
        return work()
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
        for batch in batches:
            for at in batch.to_pylist():
                yield from read_span(settings, at["topic"], at["partition"], Span(at["first"], at["until"]), where_gone)

    return read


def read_span(
    settings: Settings, topic: str, partition: int, span: Span, where_gone: str = "error"
) -> Iterator[pa.RecordBatch]:
    """The committed records of a span (`RECORD`), in their order, in pieces of at most some megabytes.

    `where_gone`: `error`, or `earliest` to leave out what the broker has lost. Raises KafkaException, also if the broker is silent, and
    ValueError at a header whose name is not UTF-8 (`untold_header`).
    """
    required = {"enable.partition.eof": True, "auto.offset.reset": where_gone}
    consumer = Consumer(_READING | consumer_settings(settings, "event-pairing.landing") | required)
    try:
        consumer.assign([TopicPartition(topic, partition, span.first)])
        for messages in _pieces(consumer, span.first, span.until):
            yield from _tables(topic, partition, messages)
    finally:
        consumer.close()


def untold_header(error: Exception) -> bool:
    """Whether that is what a reader failed at: confluent-kafka cannot tell a header whose name is not UTF-8, and Spark's source can."""
    return _UNTOLD_HEADER in full_text(error)


def read_messages(consumer: Consumer, first: int, until: int) -> Iterator[Message]:
    """The messages of the one partition that the consumer was given, from `first`, up to `until` (exclusive) or to its end.

    Raises KafkaException, also if the broker is silent.
    """
    for messages in _pieces(consumer, first, until):
        yield from messages


def _pieces(consumer: Consumer, first: int, until: int) -> Iterator[list[Message]]:
    """As `read_messages`, as many at a time as there are."""
    silent_since, at_end = time.monotonic(), False
    while first < until and not at_end:
        # No more than are wanted: for those it would wait.
        heard = consumer.consume(min(_ROWS_AT_ONCE, until - first), _WITHIN_S)
        if heard:
            silent_since = time.monotonic()
        elif time.monotonic() - silent_since > ANSWER_WITHIN_S:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        errors = [error for message in heard if (error := message.error()) is not None]
        at_end = _ends(consumer, errors)
        messages = [message for message in heard if message.error() is None] if errors else heard
        if messages:
            first = (messages[-1].offset() or 0) + 1
            # Where offsets hold no record, others come in their place.
            wanted = messages if first <= until else [message for message in messages if (message.offset() or 0) < until]
            if wanted:
                yield wanted


def _ends(consumer: Consumer, errors: Iterable[KafkaError]) -> bool:
    """Whether what was heard instead of messages has the partition's end among it. Raises KafkaException."""
    at_end = False
    for error in errors:
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            (place,) = consumer.assignment()
            raise KafkaException(KafkaError(error.code(), f"{_FORBIDDEN}{place.topic}]"))
        # The last offsets may hold no record; then the end of the partition is all that is heard of them.
        if error.code() == KafkaError._PARTITION_EOF:
            at_end = True
        # The client looks for its group's coordinator, but nothing is ever asked of the group.
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error)
    return at_end


def _headers(messages: list[Message]) -> list[object]:
    try:
        # Called by `map`: at a name that is not UTF-8 the method leaves an exception behind and gives a result all the same, which code
        # that Python has specialized for such calls does not see; the exception then comes up at whatever is done next.
        return [each or None for each in map(Message.headers, messages)]
    except (SystemError, UnicodeError) as error:
        raise ValueError(_UNTOLD_HEADER) from error


def _tables(topic: str, partition: int, messages: list[Message]) -> Iterator[pa.RecordBatch]:
    moments = [message.timestamp() for message in messages]
    columns = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), len(messages)),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(messages)),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        # Kafka's own word for no time, as Spark's source has it.
        "record_timestamp": pa.array(
            [-1 if kind == TIMESTAMP_NOT_AVAILABLE else moment for kind, moment in moments], pa.int64()
        ),
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "headers": pa.array(_headers(messages), _HEADERS),
    }
    told = pa.record_batch(columns)
    values = list(map(len, messages))
    if told.nbytes + sum(values) <= _BYTES_AT_ONCE:
        cuts = [(0, len(messages))]
    else:
        cuts = list(portions(np.array(values) + told.nbytes // len(messages), _BYTES_AT_ONCE))
    for begin, end in cuts:
        value = pa.array([message.value() for message in messages[begin:end]], pa.binary())
        yield told.slice(begin, end - begin).append_column("value", value).select(RECORD)
