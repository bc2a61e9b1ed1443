"""Reads a pipeline's output by other means than the pipeline: a plain consumer, and Delta without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from include.config.pipeline import Pipeline
from include.config.secret_values import without_values
from include.config.store import StoreRefused, warehouse_store
from include.sample.sending import ANSWER_WITHIN_S, SampleError, cause, start_hint

SILENCE_S = 30.0


class Number(str):
    """A JSON number as text, equal where the values are equal, with every digit kept."""


@lru_cache(maxsize=65_536)
def number(token: str) -> Number:
    """One text for all spellings of a JSON number.

    >>> number("1.50"), number("150e-2"), number("-0.0"), number("1e3"), number("12345678901234567890123456789012345.6")
    ('1.5', '1.5', '0', '1000', '12345678901234567890123456789012345.6')
    """
    try:
        sign, digits, exponent = Decimal(token).as_tuple()
    except InvalidOperation:
        return Number(token)
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    exponent += len(text) - len(kept)
    if not kept:
        return Number("0")
    if 0 <= exponent <= 40:
        kept, exponent = kept + "0" * exponent, 0
    elif -40 <= exponent < 0:
        kept = kept.rjust(1 - exponent, "0")
        kept, exponent = f"{kept[:exponent]}.{kept[exponent:]}", 0
    return Number(f"{'-' if sign else ''}{kept}{f'e{exponent}' if exponent else ''}")


def _integer(token: str) -> Number:
    """The same as `number`, faster for ordinary integers."""
    return Number(token) if len(token) <= 40 and token.isdecimal() else number(token)


def parse(text: str | bytes) -> Any:
    """JSON with its numbers as `Number`; raises ValueError, also for NaN and Infinity."""
    return json.loads(text, parse_int=_integer, parse_float=number, parse_constant=_no_number)


def canonical(value: Any) -> str:
    """One text for all spellings of a parsed JSON value: keys sorted, no white space.

    >>> canonical(parse('{"b": [1.0, "1", null], "a": "\\\\u00e9"}'))
    '{"a":"é","b":[1,"1",null]}'
    """
    if isinstance(value, Number):
        return value
    if isinstance(value, dict):
        return "{" + ",".join([f"{_text(key)}:{canonical(value[key])}" for key in sorted(value)]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    return _text(value)


_text = json.JSONEncoder(ensure_ascii=False).encode


def _no_number(token: str) -> Any:
    raise ValueError(f"{token} is not JSON")


def read_topic(topic: str, kafka_settings: Mapping[str, Any]) -> Iterator[Message]:
    """Every committed message of the topic up to its present end, in order within a partition; commits no position. Raises SampleError."""
    bootstrap = kafka_settings["bootstrap.servers"]
    plain = {
        "group.id": "sample-truth-reads-without-group",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    try:
        consumer = Consumer({"log_level": 0, **kafka_settings, **plain})
        try:
            known = consumer.list_topics(timeout=ANSWER_WITHIN_S).topics
            if topic not in known:
                raise SampleError(f"topic {topic} does not exist on {bootstrap}: create it, or correct the pipeline")
            yield from _read_partitions(consumer, topic, sorted(known[topic].partitions))
        finally:
            consumer.close()
    except KafkaException as error:
        reason = without_values(kafka_settings, cause(error))
        raise SampleError(f"{topic} cannot be read from {bootstrap} ({reason}): {start_hint()}") from None


def _read_partitions(consumer: Consumer, topic: str, partitions: list[int]) -> Iterator[Message]:
    """All messages up to each partition's end-of-partition event, which a read_committed consumer gets at the last stable offset."""
    unread = set(partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    heard = time.monotonic()
    while unread:
        for message in consumer.consume(10_000, timeout=0.2):
            heard = time.monotonic()
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                raise KafkaException(error)
        if time.monotonic() - heard > SILENCE_S:
            raise SampleError(
                f"{topic}: no message for {SILENCE_S:.0f} s, partitions {sorted(unread)} not read: is the broker up?"
            )


def read_table(warehouse: str | Path, pipeline: Pipeline, table: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    """The columns of each row of a pipeline's table; nothing if the table does not exist. Raises SampleError."""
    uri = f"{str(warehouse).rstrip('/')}/{pipeline.name}/{table}"
    try:
        place = warehouse_store(str(warehouse)).at(pipeline.name, table)
        batches = DeltaTable(place.uri, storage_options=place.delta_options).to_pyarrow_table(columns=columns).to_batches()
    except TableNotFoundError:
        return
    except (DeltaError, OSError, ValueError, StoreRefused) as error:
        raise SampleError(f"table {uri} cannot be read ({' '.join(str(error).split())}): is the warehouse right?") from None
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def ledger_clock(warehouse: str | Path, pipeline: Pipeline) -> int | None:
    """The clock of the last paired batch, epoch ms; None if there is none. Raises SampleError."""
    rows = list(read_table(warehouse, pipeline, "batch_ledger", ["batch_id", "step", "clock"]))
    last = max((batch for batch, step, _ in rows if step == "paired"), default=None)
    return max((clock for batch, _, clock in rows if batch == last and clock is not None), default=None)


def last_clock(warehouse: str | Path, pipeline: Pipeline) -> int | None:
    """The largest clock of any batch, epoch ms, paired or not: sessions that ended long before it are late."""
    rows = read_table(warehouse, pipeline, "batch_ledger", ["clock"])
    return max((clock for (clock,) in rows if clock is not None), default=None)
