"""The records of topics, read by librdkafka in the workers, who tell only what is wanted of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.kafka.acls import lacking, on_topic, unreadable
from spark_jobs.kafka.offsets import Partition
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, BrokerProblem, Settings, consumer_settings, kafka_settings
from spark_jobs.rules.large_columns import portions
from spark_jobs.spark.workers import Stage
from spark_jobs.tables.diagnose import full_text

RECORD = ("topic", "partition", "offset", "record_timestamp", "key", "value", "headers")
# Beside RECORD: whether the headers are null because one has a name that is not UTF-8.
BAD_HEADER = "bad_header"
_TYPES = {
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "record_timestamp": "BIGINT",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<`key`: STRING, value: BINARY>>",
    BAD_HEADER: "BOOLEAN",
}
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
OFFSETS_A_TASK = 500_000
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


class Share(NamedTuple):
    """What one task reads."""

    topic: str
    partition: int
    span: Span


Spans = Mapping[Partition, Span]
T = TypeVar("T")
# What is there is less than was planned: through Spark only the text arrives. A topic's name has at most 249 letters.
_ENDED_EARLY = re.compile(r"[\w.-]{1,249}-\d{1,10} ended at offset \d{1,19} while it was read up to \d{1,19}", re.ASCII)


def allowed(work: Callable[[], T], topics: Collection[str]) -> T:
    """What `work`, which has records of the topics read, gives. Raises NeedsOperator where a topic may be seen, but not read; BrokerProblem
    where a log ended before what was to be read.
    """
    try:
        return work()
    except Exception as error:
        # Of what failed in a worker only a text arrives here, so the broker is asked.
        if (topic := unreadable(kafka_settings(), topics)) is not None:
            raise lacking(kafka_settings(), on_topic("Read", topic)) from None
        if ended := _ENDED_EARLY.search(full_text(error)):
            raise BrokerProblem(f"{ended[0]}: the log was cut, or its leader is new; the next try tells which") from None
        raise


def shares(spans: Spans) -> list[Share]:
    """The spans, cut so that each part is the work of one task."""
    return [
        Share(*place, Span(first, min(first + OFFSETS_A_TASK, span.until)))
        for place, span in spans.items()
        for first in range(span.first, span.until, OFFSETS_A_TASK)
    ]


def read_records(spark: SparkSession, spans: Spans, all_there: bool, columns: Collection[str]) -> DataFrame:
    """These columns, of `RECORD` and BAD_HEADER, of the committed records in the spans; BAD_HEADER only with `headers`.

    If `all_there`, an offset that the broker has lost fails the query; else it is left out.
    """
    schema = ", ".join(f"`{name}` {_TYPES[name]}" for name in columns)
    parts = shares(spans)
    if not parts:
        return spark.createDataFrame([], schema)
    reader = _reader(kafka_settings(), parts, "error" if all_there else "earliest", tuple(columns))
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(reader, schema)


def _reader(settings: Settings, parts: list[Share], where_gone: str, columns: tuple[str, ...]) -> Stage:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                topic, partition, span = parts[number]
                yield from read_span(settings, topic, partition, span, where_gone, columns)

    return read


def read_span(
    settings: Settings,
    topic: str,
    partition: int,
    span: Span,
    where_gone: str = "error",
    columns: tuple[str, ...] = (*RECORD, BAD_HEADER),
) -> Iterator[pa.RecordBatch]:
    """The committed records of a span, in their order, in pieces of at most some megabytes.

    `where_gone`: `error`, or `earliest` to leave out what the broker has lost. Raises KafkaException, also if the broker is silent, and
    ValueError where nothing may be left out and the log ends before the span.
    """
    required = {"enable.partition.eof": True, "auto.offset.reset": where_gone}
    consumer = Consumer(_READING | consumer_settings(settings, "event-pairing.landing") | required)
    try:
        consumer.assign([TopicPartition(topic, partition, span.first)])
        for messages in _pieces(consumer, span.first, span.until, whole=where_gone == "error"):
            yield from _tables(topic, partition, messages, columns)
    finally:
        consumer.close()


def read_messages(consumer: Consumer, first: int, until: int) -> Iterator[Message]:
    """The messages of the one partition that the consumer was given, from `first`, up to `until` (exclusive) or to its end.

    Raises KafkaException, also if the broker is silent.
    """
    for messages in _pieces(consumer, first, until):
        yield from messages


def _pieces(consumer: Consumer, first: int, until: int, whole: bool = False) -> Iterator[list[Message]]:
    """As `read_messages`, as many at a time as there are. `whole`: raises ValueError if the partition ends before `until`."""
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
        if whole and at_end:
            _check_reached(heard, until)
        messages = [message for message in heard if message.error() is None] if errors else heard
        if messages:
            first = (messages[-1].offset() or 0) + 1
            # Where offsets hold no record, others come in their place.
            wanted = messages if first <= until else [message for message in messages if (message.offset() or 0) < until]
            if wanted:
                yield wanted


def _check_reached(heard: Iterable[Message], until: int) -> None:
    """The last offsets may hold no record, but the partition must have had them: its end is told with the offset at which it is."""
    for message in heard:
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF and (message.offset() or 0) < until:
            place = f"{message.topic()}-{message.partition()}"
            raise ValueError(f"{place} ended at offset {message.offset()} while it was read up to {until}")


def _ends(consumer: Consumer, errors: Iterable[KafkaError]) -> bool:
    """Whether what was heard instead of messages has the partition's end among it. Raises KafkaException."""
    at_end = False
    for error in errors:
        # The last offsets may hold no record; then the end of the partition is all that is heard of them.
        if error.code() == KafkaError._PARTITION_EOF:
            at_end = True
        # The client looks for its group's coordinator, but nothing is ever asked of the group.
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error)
    return at_end


def headers_of(messages: Iterable[Message]) -> tuple[list[Any], list[int]]:
    """The headers of each message, None without any; and the ranks of the messages of which one has a name that is not UTF-8.

    Asked once of every message: confluent-kafka gives out the broken headers themselves when it is asked again.
    """
    told: list[Any] = []
    untold: list[int] = []
    rest = iter(messages)
    while True:
        try:
            # Called by `map`: at a name that is not UTF-8 the method leaves an exception behind and gives a result all the same, which code
            # that Python has specialized for such calls does not see; the exception then comes up at whatever is done next.
            told.extend(map(Message.headers, rest))
            break
        except (SystemError, UnicodeError):
            untold.append(len(told))
            told.append(None)
    return [each or None for each in told], untold


def _tables(topic: str, partition: int, messages: list[Message], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    told = _without_values(topic, partition, messages, columns)
    # Of the values.
    sizes = list(map(len, messages)) if "value" in columns else [0] * len(messages)
    if told.nbytes + sum(sizes) <= _BYTES_AT_ONCE:
        cuts = [(0, len(messages))]
    else:
        cuts = list(portions(np.array(sizes) + told.nbytes // len(messages), _BYTES_AT_ONCE))
    for begin, end in cuts:
        piece = told.slice(begin, end - begin)
        if "value" in columns:
            value = pa.array([message.value() for message in messages[begin:end]], pa.binary())
            piece = piece.append_column("value", value)
        yield piece.select(columns)


def _without_values(topic: str, partition: int, messages: list[Message], columns: tuple[str, ...]) -> pa.RecordBatch:
    """All other columns of those, and the offsets."""
    told = {"offset": pa.array([message.offset() for message in messages], pa.int64())}
    if "topic" in columns:
        told["topic"] = pa.repeat(pa.scalar(topic, pa.string()), len(messages))
    if "partition" in columns:
        told["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), len(messages))
    if "record_timestamp" in columns:
        moments = [message.timestamp() for message in messages]
        # Kafka's own word for no time.
        stamps = [-1 if kind == TIMESTAMP_NOT_AVAILABLE else moment for kind, moment in moments]
        told["record_timestamp"] = pa.array(stamps, pa.int64())
    if "key" in columns:
        told["key"] = pa.array([message.key() for message in messages], pa.binary())
    if "headers" in columns:
        headers, untold = headers_of(messages)
        told["headers"] = pa.array(headers, _HEADERS)
        told[BAD_HEADER] = pa.array(np.isin(np.arange(len(messages)), untold))
    return pa.record_batch(told)
