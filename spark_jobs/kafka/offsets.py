"""What the broker says of topics: their partitions, first and end offsets, ids and limits."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ListOffsetsResultInfo, OffsetSpec

from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.acls import granting, lacking, on_topic
from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, BrokerProblem, Settings, address, admin_settings

Partition = tuple[str, int]
# librdkafka's default for message.max.bytes.
_CLIENT_TAKES = 1_000_000
_MARKERS_WITHIN_S = 2.0
_REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_URL_SAFE = str.maketrans("+/", "-_")


class _Admin(AdminClient):
    """Remembers why connections failed: an unanswered question does not say it."""

    def __init__(self, settings: Settings) -> None:
        self._heard: list[KafkaError] = []
        super().__init__(admin_settings(settings) | {"error_cb": self._heard.append})

    def heard(self) -> list[KafkaError]:
        """What it was told so far."""
        self.poll(0)
        # That all brokers are away is what the question says itself.
        return [error for error in self._heard if error.code() != KafkaError._ALL_BROKERS_DOWN]


class TopicsNow(NamedTuple):
    """What the broker holds. `wall_time`: W (epoch ms), taken before the ends were asked for. Ends are read_committed.

    `ids`: by topic, as Kafka's tools print them, asked for last, so that nothing before them is of a topic that is gone by then.
    `written`: the ends with what is in open
    transactions, asked for before the others: where it is more than `end`, a transaction holds the rest back. `epochs`: the leader epochs of
    the ends, -1 where the broker does not tell. `cut`: what `cut_since` found, the offsets at which logs were cut since they were last read.
    """

    wall_time: int
    earliest: Mapping[Partition, int]
    end: Mapping[Partition, int]
    ids: Mapping[str, str]
    epochs: Mapping[Partition, int] = MappingProxyType({})
    cut: Mapping[Partition, int] = MappingProxyType({})
    written: Mapping[Partition, int] = MappingProxyType({})

    def same_until(self, place: Partition) -> int:
        """Up to which offset (exclusive) the log is there, and is the one that was read."""
        return min(self.end[place], self.cut.get(place, self.end[place]))


def ask_broker(settings: Settings, topics: Iterable[str]) -> TopicsNow:
    """The first and the end offset of every partition; raises BrokerProblem or, for a missing topic, NeedsOperator."""
    admin, topics = _Admin(settings), list(topics)
    try:
        partitions = [(topic, number) for topic in topics for number in range(partition_count(admin, topic, settings))]
        wall_time = time.time_ns() // 1_000_000
        written = _list_offsets(admin, partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        earliest, ends = (_ask_offsets(admin, partitions, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return TopicsNow(
            wall_time,
            {place: found.offset for place, found in earliest.items()},
            {place: found.offset for place, found in ends.items()},
            _topic_ids(admin, topics),
            {place: -1 if found.leader_epoch is None else found.leader_epoch for place, found in ends.items()},
            written=written,
        )
    except KafkaException as error:
        raise _no_answer(settings, error, admin) from None


def wait_for_markers(settings: Settings, topic: str) -> None:
    """Returns when all that was committed on the topic can be read, or after a moment.

    Kafka answers a commit before the partitions have its markers. Behind a transaction that is open there is nothing to wait for.
    """
    admin = _Admin(settings)
    try:
        partitions = [(topic, number) for number in range(partition_count(admin, topic, settings))]
        give_up = time.monotonic() + _MARKERS_WITHIN_S
        while time.monotonic() < give_up:
            committed, all_there = (
                _list_offsets(admin, partitions, OffsetSpec.latest(), isolation)
                for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if committed == all_there:
                return
            time.sleep(0.05)
    except KafkaException as error:
        raise _no_answer(settings, error, admin) from None


def ends_written(settings: Settings, topic: str) -> dict[int, int]:
    """Partition -> offset behind everything that was written to it, open transactions included."""
    admin = _Admin(settings)
    try:
        partitions = [(topic, number) for number in range(partition_count(admin, topic, settings))]
        ends = _list_offsets(admin, partitions, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
    except KafkaException as error:
        raise _no_answer(settings, error, admin) from None
    return {number: end for (_, number), end in ends.items()}


class OutputTopic(NamedTuple):
    """The output topic as it is now. `topic_id`: as Kafka's tools print it; a topic that was created again has another one.

    `largest`: bytes of a message that it takes, inclusive.
    """

    partitions: int
    topic_id: str
    largest: int


def output_topic(settings: Settings, topic: str, to: str = "Write") -> OutputTopic:
    """Raises NeedsOperator if there is no such topic, BrokerProblem if nobody answers. `to`: what is wanted of the topic then."""
    admin = _Admin(settings)
    try:
        partitions = partition_count(admin, topic, settings, to)
        topic_id = _topic_ids(admin, [topic])[topic]
    except KafkaException as error:
        raise _no_answer(settings, error, admin) from None
    return OutputTopic(partitions, topic_id, _largest(admin, topic, settings))


def _topic_ids(admin: AdminClient, topics: list[str]) -> dict[str, str]:
    answers = admin.describe_topics(TopicCollection(topics), request_timeout=ANSWER_WITHIN_S)
    # The library's own letters have + and /, which the output of kafka-topics does not have.
    return {topic: str(answer.result().topic_id).translate(_URL_SAFE) for topic, answer in answers.items()}


def _largest(admin: AdminClient, topic: str, settings: Settings) -> int:
    """The smaller of what the topic takes and what the producer is set to; the client's default where nobody says."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        configured = admin.describe_configs([resource], request_timeout=ANSWER_WITHIN_S)[resource].result()
        taken = int(configured["max.message.bytes"].value)
    except KafkaException as error:
        # Without the right to ask, a message that is too large fails its transaction instead of being left out.
        remedy = granting(settings, on_topic("DescribeConfigs", topic))
        print(
            f"warning: the limit of {topic} is not known ({error.args[0].str()}), so it is taken to be {_CLIENT_TAKES} bytes; for the user "
            f"to see it: {remedy}",
            file=sys.stderr,
        )
        taken = _CLIENT_TAKES
    return min(taken, int(settings.get("message.max.bytes", taken)))


def partition_count(admin: _Admin, topic: str, settings: Settings, to: str = "Read") -> int:
    """Number of partitions of a topic; raises NeedsOperator if it is not there or not to be seen, BrokerProblem if nobody answers."""
    try:
        found = admin.list_topics(topic, timeout=ANSWER_WITHIN_S).topics[topic]
    except KafkaException as error:
        raise _no_answer(settings, error, admin) from None
    if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise lacking(settings, on_topic(to, topic))
    if found.error is not None or not found.partitions:
        raise NeedsOperator(
            f"topic {topic} is not on the broker at {address(settings)} ({found.error or 'no partitions'}): "
            "create it, or correct its name in the pipeline's file"
        )
    return len(found.partitions)


def _no_answer(settings: Settings, error: KafkaException, admin: _Admin) -> JobProblem:
    heard = admin.heard()
    reasons = [" ".join(reason.str().split()) for reason in (error.args[0], *heard)]
    for number, reason in enumerate(heard, start=1):
        if reason.code() in _REFUSED:
            return NeedsOperator(
                f"Kafka at {address(settings)} refuses the connection ({reasons[number]}): correct user, password or certificate "
                "authority in the extra of kafka_default"
            )
    return BrokerProblem(
        f"no answer from Kafka at {address(settings)} within {ANSWER_WITHIN_S:.0f} s ({'; '.join(dict.fromkeys((reasons[0], reasons[-1])))}): "
        "is the broker up, and are bootstrap.servers and security.protocol of kafka_default right?"
    )


def _list_offsets(
    admin: AdminClient,
    partitions: list[Partition],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[Partition, int]:
    return {place: found.offset for place, found in _ask_offsets(admin, partitions, spec, isolation).items()}


def _ask_offsets(
    admin: AdminClient,
    partitions: list[Partition],
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[Partition, ListOffsetsResultInfo]:
    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}

    def ask() -> dict[Partition, ListOffsetsResultInfo]:
        answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=ANSWER_WITHIN_S)
        return {(place.topic, place.partition): answer.result() for place, answer in answers.items()}

    return retry_transient(ask)
