"""Sends sample records to the topics of a broker, or prints them for the rehearsal (`kcat -J` lines)."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from include.config.secret_values import without_values
from include.sample.records import Record

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
ANSWER_WITHIN_S = 10.0
DRY_PARTITIONS = 4


class SampleError(Exception):
    """Sample traffic cannot be sent or checked; the text is one line that names the remedy."""


def settings_of(bootstrap: str | None) -> dict[str, Any]:
    """librdkafka settings: `bootstrap` alone if given, else those of PAIRING_KAFKA, else of the local broker. Raises SampleError."""
    if bootstrap is not None:
        return {"bootstrap.servers": bootstrap}
    text = os.environ.get("PAIRING_KAFKA") or json.dumps({"bootstrap.servers": DEFAULT_BOOTSTRAP})
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict) or not settings.get("bootstrap.servers"):
        raise SampleError(
            'PAIRING_KAFKA is not a JSON object of librdkafka settings like {"bootstrap.servers": "host:9092"}'
        )
    return settings


class Sender:
    """An idempotent producer that partitions as Java's does. Raises SampleError if there is no broker or no topic."""

    def __init__(self, settings: Mapping[str, Any], topics: Iterable[str]) -> None:
        self.bootstrap = settings["bootstrap.servers"]
        defaults = {"linger.ms": 20, "message.timeout.ms": 60_000, "log_level": 0}
        fixed = {"partitioner": "murmur2_random", "enable.idempotence": True, "acks": "all"}
        self.failure: str | None = None
        try:
            self.producer = Producer({**defaults, **settings, **fixed})
            known = self.producer.list_topics(timeout=ANSWER_WITHIN_S).topics
        except KafkaException as error:
            reason = without_values(settings, cause(error))
            raise SampleError(f"no Kafka at {self.bootstrap} ({reason}): {start_hint()}") from None
        missing = sorted(set(topics) - set(known))
        if missing:
            raise SampleError(
                f"topic {', '.join(missing)} does not exist on {self.bootstrap}: create it, or correct the pipeline"
            )

    def send(self, records: Iterable[Record]) -> int:
        """Returns the number of records when the broker has acknowledged all; raises SampleError at the first refused one."""
        sent = 0
        for record in records:
            self._produce(record)
            sent += 1
            if sent % 1_000 == 0:
                self._collect(0)
        while len(self.producer):
            self._collect(0.2)
        self._collect(0)
        return sent

    def _produce(self, record: Record) -> None:
        topic, key, value, timestamp = record
        while True:
            try:
                self.producer.produce(topic, value, key, timestamp=timestamp, on_delivery=self._delivered)
                return
            except BufferError:
                self._collect(0.2)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.failure is None:
            self.failure = f"{message.topic()} on {self.bootstrap} did not take a record: {error.str()}"

    def _collect(self, seconds: float) -> None:
        self.producer.poll(seconds)
        if self.failure is not None:
            self.producer.purge()
            raise SampleError(f"{self.failure}; what was sent last is in no truth file: start over with empty topics")


def send(records: Iterable[Record], kafka_settings: Mapping[str, Any]) -> int:
    """Sends the records in order; returns their number. Raises SampleError: no broker, no such topic, a record refused."""
    records = list(records)
    return Sender(kafka_settings, {record.topic for record in records}).send(records)


def kcat_lines(records: Iterable[Record]) -> Iterator[bytes]:
    """What `kcat -C -J` would print if the records had been sent; bytes that are not UTF-8 stay unchanged, as kcat leaves them."""
    offsets: dict[tuple[str, int], Iterator[int]] = {}
    rotation = count()
    for topic, key, value, timestamp in records:
        partition = (zlib.crc32(key) if key else next(rotation)) % DRY_PARTITIONS
        offset = offsets.setdefault((topic, partition), count())
        line = {
            "topic": topic,
            "partition": partition,
            "offset": next(offset),
            "tstype": "create",
            "ts": timestamp,
            "broker": 0,
        }
        line |= {"key": _text(key), "payload": _text(value)}
        yield json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def start_hint() -> str:
    """What to do about a broker that does not answer."""
    return "start it (make demo, or python -m include.local.broker start), or name another by --bootstrap"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")


def cause(error: KafkaException) -> str:
    """The client's own words."""
    return str(error.args[0].str()) if error.args and isinstance(error.args[0], KafkaError) else str(error)
