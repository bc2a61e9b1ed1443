"""Reads the records of topics: librdkafka in Spark's workers, which return only the wanted columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from include.config.pipeline import Pipeline
from spark_jobs.kafka.acls import missing_right, on_topic, unreadable_topic
from spark_jobs.kafka.clusters import by_cluster
from spark_jobs.kafka.offsets import Partition, no_answer
from spark_jobs.kafka.retries import Patience
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, BrokerProblem, Settings, consumer_settings
from spark_jobs.rules.large_columns import portions
from spark_jobs.rules.parsed_columns import HEADERS
from spark_jobs.spark.workers import read_in_tasks
from spark_jobs.tables.diagnose import full_text

RECORD = ("topic", "partition", "offset", "record_timestamp", "key", "value", "headers")
# A column beside RECORD: whether the headers are null because the name of one is not UTF-8.
BAD_HEADER = "bad_header"
SCHEMA = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "record_timestamp": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
        BAD_HEADER: pa.bool_(),
    }
)
OFFSETS_A_TASK = 500_000
# Short spans share a task: a task, its consumer and its file cost as much as reading some thousand records.
OFFSETS_TOGETHER = 20_000
# One call takes what arrives within this time: at a gigabyte a second 100 MB, and more before decompression shrank it.
_WITHIN_S = 0.1
_ROWS_AT_ONCE = 10_000
# Small pieces, because as columns and parsed a piece is several times its size.
_BYTES_AT_ONCE = 16_000_000
# With 64 MB queued, librdkafka pauses its fetches for a second by default, while this reader would take them. At the end of a partition nothing
# more comes, so the broker need not wait for it. Records fetched beyond a span's end are wasted.
_READING = {"fetch.queue.backoff.ms": 5, "fetch.wait.max.ms": 10, "queued.min.messages": 30_000, "check.crcs": True}


class Span(NamedTuple):
    """Offsets of one partition, from inclusive, until exclusive."""

    first: int
    until: int


class Share(NamedTuple):
    """What one task reads of one partition."""

    topic: str
    partition: int
    span: Span


Spans = Mapping[Partition, Span]
T = TypeVar("T")
# An error of a worker arrives as text only. A topic's name has at most 249 letters.
_ENDED_EARLY = re.compile(r"[\w.-]{1,249}-\d{1,10} ended at offset \d{1,19} while it was read up to \d{1,19}", re.ASCII)


def translate_read_errors(work: Callable[[], T], pipeline: Pipeline, topics: Collection[str]) -> T:
    """Returns the result of `work`, which has Spark read the topics.

    Raises NeedsOperator if the user may not read a topic, and BrokerProblem if a log ended before the end of a span.
    """
    try:
        return work()
    except Exception as error:
        # An error of a worker arrives as text only, so this asks the broker about the right.
        for settings, mine in by_cluster(pipeline, topics):
            if (topic := unreadable_topic(settings, mine)) is not None:
                raise missing_right(settings, on_topic("Read", topic)) from None
        if ended := _ENDED_EARLY.search(full_text(error)):
            raise BrokerProblem(f"{ended[0]}: the log was cut, or its leader is new; the next try tells which") from None
        raise


def with_offsets(spans: Spans) -> dict[Partition, Span]:
    """The spans in which there can be a record."""
    return {place: span for place, span in spans.items() if span.first < span.until}


def shares(spans: Spans) -> list[tuple[Share, ...]]:
    """The spans in parts for one task each: long ones are cut, neighbours of one topic with OFFSETS_TOGETHER offsets in all are together."""
    parts: list[tuple[Share, ...]] = []
    together = 0
    for place, span in spans.items():
        for first in range(span.first, span.until, OFFSETS_A_TASK):
            share = Share(*place, Span(first, min(first + OFFSETS_A_TASK, span.until)))
            offsets = share.span.until - first
            if parts and parts[-1][0].topic == share.topic and together + offsets <= OFFSETS_TOGETHER:
                parts[-1] += (share,)
                together += offsets
            else:
                parts.append((share,))
                together = offsets
    return parts


def read_records(
    spark: SparkSession, pipeline: Pipeline, spans: Spans, all_there: bool, columns: Collection[str]
) -> DataFrame:
    """These columns, of `RECORD` and BAD_HEADER, of the committed records in the spans of the pipeline's topics; BAD_HEADER only together with
    `headers`.

    `all_there`: an offset that the broker has lost fails the query; otherwise it is left out.
    """
    schema = from_arrow_schema(pa.schema([SCHEMA.field(name) for name in columns]))
    if_lost, wanted = "error" if all_there else "earliest", tuple(columns)
    clusters = by_cluster(pipeline, {topic for topic, _ in spans})
    settings = {topic: its for its, topics in clusters for topic in topics}

    def read(part: tuple[Share, ...]) -> Iterator[pa.RecordBatch]:
        # The shares of a part are of one topic.
        return read_shares(settings[part[0].topic], part, if_lost, wanted)

    return read_in_tasks(spark, shares(spans), read, schema)


def read_shares(
    settings: Settings, part: Iterable[Share], if_lost: str = "error", columns: tuple[str, ...] = (*RECORD, BAD_HEADER)
) -> Iterator[pa.RecordBatch]:
    """The committed records of the shares, each in its order, in batches of at most some megabytes.

    `if_lost`: `error`, or `earliest` to leave out what the broker has lost. Raises KafkaException, after ANSWER_WITHIN_S seconds of silence
    BrokerProblem or NeedsOperator, and with `error` ValueError if a log ends before its span does.
    """
    patience, errors = Patience(ANSWER_WITHIN_S), list[KafkaError]()
    heard = {"throttle_cb": patience.throttled, "error_cb": errors.append}
    required = {"enable.partition.eof": True, "auto.offset.reset": if_lost}
    with Consumer(_READING | consumer_settings(settings) | required | heard) as consumer:
        try:
            for share in part:
                yield from _read_share(consumer, share, patience, if_lost == "error", columns)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TIMED_OUT:
                raise
            # A worker may lack what the driver has: the way to the broker, or to a token.
            raise no_answer(settings, error.args[0], errors) from None


def _read_share(
    consumer: Consumer, share: Share, patience: Patience, whole: bool, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    # The client drops what it has fetched for the assignment before.
    consumer.assign([TopicPartition(share.topic, share.partition, share.span.first)])
    for messages in _pieces(consumer, *share.span, patience, whole=whole, partition=share.partition):
        if {message.partition() for message in (messages[0], messages[-1])} != {share.partition}:
            raise RuntimeError(f"the client returned records of another partition than {share.topic}-{share.partition}")
        yield from _batches(share, messages, columns)


def read_messages(consumer: Consumer, first: int, until: int) -> Iterator[Message]:
    """The messages of the consumer's one assigned partition, from `first` to `until` (exclusive) or to the partition's end.

    Raises KafkaException, also after ANSWER_WITHIN_S seconds of silence.
    """
    for messages in _pieces(consumer, first, until, Patience(ANSWER_WITHIN_S)):
        yield from messages


def _pieces(
    consumer: Consumer, first: int, until: int, patience: Patience, whole: bool = False, partition: int | None = None
) -> Iterator[list[Message]]:
    """Like `read_messages`, in lists. `whole`: raises ValueError if the partition ends before `until`.

    `partition`: the assigned one, if the consumer had others before; ends of those do not count.
    """
    at_end = False
    while first < until and not at_end:
        # Not more than wanted, because the client would wait for the rest.
        events = consumer.consume(min(_ROWS_AT_ONCE, until - first), _WITHIN_S)
        if events:
            patience.renew()
        elif patience.is_over():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        errors = [event for event in events if event.error() is not None]
        mine = [event for event in errors if partition is None or event.partition() in (partition, -1)]
        at_end = any([_is_end(event, until if whole else 0) for event in mine])
        messages = [event for event in events if event.error() is None] if errors else events
        if messages:
            first = (messages[-1].offset() or 0) + 1
            # Where offsets hold no record, the client returns later ones instead.
            wanted = messages if first <= until else [message for message in messages if (message.offset() or 0) < until]
            if wanted:
                yield wanted


def _is_end(event: Message, required: int) -> bool:
    """Whether an error event is the partition's end; raises ValueError if that is before the required offset, else KafkaException.

    If the last offsets hold no record, the end is the only event about them, so its own offset counts.
    """
    error = event.error()
    assert error is not None
    # The client looks for its group's coordinator, but these jobs ask nothing of the group.
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return False
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    if (event.offset() or 0) < required:
        raise ValueError(
            f"{event.topic()}-{event.partition()} ended at offset {event.offset()} while it was read up to {required}"
        )
    return True


def decoded_headers(messages: Iterable[Message]) -> tuple[list[Any], list[int]]:
    """The headers of each message, None without any, and the indexes of messages with a header name that is not UTF-8.

    Calls `headers` once for each message: confluent-kafka returns the broken headers at a second call.
    """
    headers: list[Any] = []
    undecodable: list[int] = []
    rest = iter(messages)
    while True:
        try:
            # Through `map`: for a name that is not UTF-8 the method sets an exception and returns a result all the same. Specialized
            # bytecode for direct calls misses it, and the exception would surface at the next operation.
            headers.extend(map(Message.headers, rest))
            break
        except (SystemError, UnicodeError):
            undecodable.append(len(headers))
            headers.append(None)
    return [each or None for each in headers], undecodable


def _batches(share: Share, messages: list[Message], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    rows = _without_values(share, messages, columns)
    # len() of a message is the size of its value.
    sizes = list(map(len, messages)) if "value" in columns else [0] * len(messages)
    if rows.nbytes + sum(sizes) <= _BYTES_AT_ONCE:
        cuts = [(0, len(messages))]
    else:
        cuts = list(portions(np.array(sizes) + rows.nbytes // len(messages), _BYTES_AT_ONCE))
    for begin, end in cuts:
        piece = rows.slice(begin, end - begin)
        if "value" in columns:
            value = pa.array([message.value() for message in messages[begin:end]], pa.binary())
            piece = piece.append_column("value", value)
        yield piece.select(columns)


def _without_values(share: Share, messages: list[Message], columns: tuple[str, ...]) -> pa.RecordBatch:
    """The offsets and all other wanted columns but the values."""
    rows = {"offset": pa.array([message.offset() for message in messages], pa.int64())}
    if "topic" in columns:
        rows["topic"] = pa.repeat(pa.scalar(share.topic, pa.string()), len(messages))
    if "partition" in columns:
        rows["partition"] = pa.repeat(pa.scalar(share.partition, pa.int32()), len(messages))
    if "record_timestamp" in columns:
        stamps = [message.timestamp() for message in messages]
        # Kafka's own value for "no timestamp".
        moments = [-1 if kind == TIMESTAMP_NOT_AVAILABLE else moment for kind, moment in stamps]
        rows["record_timestamp"] = pa.array(moments, pa.int64())
    if "key" in columns:
        rows["key"] = pa.array([message.key() for message in messages], pa.binary())
    if "headers" in columns:
        headers, undecodable = decoded_headers(messages)
        rows["headers"] = pa.array(headers, HEADERS)
        rows[BAD_HEADER] = pa.array(np.isin(np.arange(len(messages)), undecodable))
    return pa.record_batch(rows)
