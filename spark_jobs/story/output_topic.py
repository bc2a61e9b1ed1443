"""Finds compounds on the topics of a pipeline: read back by their pair_ids, from the moment at which they can first have been sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition, murmur2

from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.acls import missing_right, on_topic
from spark_jobs.kafka.messages import output_key
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.records import decoded_headers, read_messages
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, consumer_settings, kafka_settings
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.story.history import Compound, Revision
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PUBLICATIONS, LedgerRow
from spark_jobs.tables.output_schemas import known_key_schema
from spark_jobs.tables.tables import Tables

# Record times are the sender's or the broker's, the ledger's are those of the jobs.
_CLOCKS_DIFFER_MS = 60_000


class Stretch(NamedTuple):
    """A partition from one moment to another (epoch ms, None: to its end)."""

    partition: int
    after: int
    before: int | None


def locate(warehouse: Tables, key: tuple[str, ...], compounds: list[Compound]) -> tuple[dict[Revision, str], str | None]:
    """Where the compounds of one key are, in words; and why the topics could not be read, None if they were."""
    batches = sorted({compound.batch for compound in compounds})
    steps = Ledger(warehouse).where(lambda row: row("batch_id").isin(batches) & row("step").isin([PAIRED, *PUBLICATIONS]))
    search, unread = _Search(warehouse, key, steps), None
    try:
        search.read(compounds)
    except (JobProblem, KafkaException) as error:
        search.now, unread = None, str(error.args[0].str() if isinstance(error, KafkaException) else error)
    return {(each.pair_id, each.revision): search.place_of(each) for each in compounds}, unread


class _Search:
    """Looks for the compounds of one key. `steps`: ledger rows of their batches. `now`: the topics, None if they were not read."""

    def __init__(self, warehouse: Tables, key: tuple[str, ...], steps: list[LedgerRow]) -> None:
        schema = known_key_schema(warehouse, was_sent=any(row.step in PUBLICATIONS for row in steps))
        # Before the first publication any partition will do.
        self.key = output_key(warehouse.pipeline, key, schema) or b""
        self.main = warehouse.pipeline.output_topic
        self.connection = warehouse.pipeline.output_connection
        self.paired = {row.batch_id: row for row in steps if row.step == PAIRED}
        self.published = {(row.batch_id, row.published_to): row for row in steps if row.step in PUBLICATIONS}
        self.now: TopicsNow | None = None
        self.offsets: dict[str, dict[Revision, list[int]]] = {}
        """By topic. A compound may be on one, and withdrawn from another by a message with its revision."""

    def read(self, compounds: list[Compound]) -> None:
        """Reads the topics. Raises JobProblem, KafkaException."""
        settings = kafka_settings(self.connection)
        wanted: dict[str, dict[Stretch, list[Revision]]] = {self.main: {}}
        for row in self.paired.values():
            wanted |= {topic: {} for topic in row.pipeline.compound_topics}
        self.now = ask_broker(settings, wanted)
        for compound in compounds:
            paired = self.paired.get(compound.batch)
            for topic in paired.pipeline.compound_topics if paired else ():
                published = self.published.get((compound.batch, topic))
                if not (published and self._is_elsewhere(published)):
                    partition = self._partition(topic, published)
                    stretch = Stretch(partition, _finished_ms(paired), _finished_ms(published))
                    wanted[topic].setdefault(stretch, []).append((compound.pair_id, compound.revision))
        self.offsets = {topic: find(settings, topic, self.now, stretches) for topic, stretches in wanted.items()}

    def place_of(self, compound: Compound) -> str:
        """Where a compound is, or why it is not there, in words."""
        found = []
        for topic, revisions in self.offsets.items():
            if offsets := revisions.get((compound.pair_id, compound.revision)):
                partition = self._partition(topic, self.published.get((compound.batch, topic)))
                listed = ", ".join(map(str, offsets))
                found.append(f"on {topic}-{partition} at offset{'s' if len(offsets) > 1 else ''} {listed}")
        return " and ".join(found) or self._why_not(compound)

    def _why_not(self, compound: Compound) -> str:
        topic, now = self._goes_to(compound), self.now
        published = self.published.get((compound.batch, topic))
        partition = self._partition(topic, published)
        place = f"{topic}-{partition}"
        if published is None:
            return "not published yet"
        if now is None:
            return f"published to {place}"
        if self._is_elsewhere(published):
            return f"published to {topic} before that was deleted and created again"
        if published.published.refused:
            return f"not on {place}: its batch left out what was larger than the topic takes"
        end = now.end[topic, partition]
        if now.written.get((topic, partition), 0) > end:
            return f"not to be seen on {place}: from offset {end} on an open transaction holds everything back"
        return f"not on {place}" + (" any more, whose beginning is gone" if now.earliest[topic, partition] else "")

    def _goes_to(self, compound: Compound) -> str:
        """The topic of its kind."""
        paired = self.paired.get(compound.batch)
        orphans = paired.pipeline.output_orphans_topic if paired and compound.kind != str(Outcome.PAIR) else None
        return orphans or self.main

    def _partition(self, topic: str, published: LedgerRow | None) -> int:
        now = [place for place in self.now.end if place[0] == topic] if self.now else []
        partitions = published.output_state.partitions if published else len(now) or 1
        return int(murmur2(self.key, partitions))

    def _is_elsewhere(self, published: LedgerRow) -> bool:
        """Whether it was sent to a topic that has been deleted since."""
        return self.now is not None and published.output_state.topic_id != self.now.ids[published.published_to]


def _finished_ms(step: LedgerRow | None) -> Any:
    return None if step is None or step.finished_at is None else int(step.finished_at.timestamp() * 1000)


def find(
    settings: Settings, topic: str, now: TopicsNow, wanted: Mapping[Stretch, Iterable[Revision]]
) -> dict[Revision, list[int]]:
    """The offsets of committed records of each revision. Raises KafkaException, and NeedsOperator if a right is missing."""
    found: dict[Revision, list[int]] = {}
    consumer = Consumer(
        consumer_settings(settings, "event-pairing.explaining")
        # Ends the wait at the end of a partition, where nothing more comes.
        | {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
    )
    try:
        for stretch, revisions in wanted.items():
            # Headers may be anyone's, so they are compared as text: a number of thousands of digits is none to Python.
            ids = {(pair_id, str(revision)): (pair_id, revision) for pair_id, revision in revisions}
            for message in _messages(consumer, topic, stretch, now.end[topic, stretch.partition]):
                # Our messages have no header that cannot be decoded.
                (decoded,), _ = decoded_headers([message])
                headers = dict(decoded or [])
                if revision := ids.get((_header(headers, "pair-id"), _header(headers, "revision"))):
                    found.setdefault(revision, []).append(message.offset() or 0)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise missing_right(settings, on_topic("Read", topic)) from None
        raise
    finally:
        consumer.close()
    return found


def _messages(consumer: Consumer, topic: str, stretch: Stretch, end: int) -> Iterator[Message]:
    first, until = _offset_at(consumer, topic, stretch.partition, stretch.after - _CLOCKS_DIFFER_MS, end), end
    if stretch.before is not None:
        until = _offset_at(consumer, topic, stretch.partition, stretch.before + _CLOCKS_DIFFER_MS, end)
    if first < until:
        consumer.assign([TopicPartition(topic, stretch.partition, first)])
        yield from read_messages(consumer, first, until)


def _header(headers: Mapping[str, object], name: str) -> str:
    value = headers.get(name)
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def _offset_at(consumer: Consumer, topic: str, partition: int, moment: int, end: int) -> int:
    """The first offset with a record of that moment or later; the end if there is none."""
    (place,) = consumer.offsets_for_times([TopicPartition(topic, partition, max(moment, 0))], timeout=ANSWER_WITHIN_S)
    if place.error is not None:
        raise KafkaException(place.error)
    return place.offset if place.offset >= 0 else end
