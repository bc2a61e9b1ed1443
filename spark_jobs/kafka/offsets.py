"""What the broker says of topics: their partitions, ids, first offsets and ends."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from include.config.tokens import connection_of
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.acls import missing_right, on_topic
from spark_jobs.kafka.retries import retry_transient
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, BrokerProblem, Settings, address, admin_settings

Partition = tuple[str, int]
_MARKERS_WITHIN_S = 2.0
_COMMITTED, _UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
_CONNECTION_REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token: "
# The answers of RFC 6749 to a request that is wrong; another reason may pass.
_REFUSED_BY_ENDPOINT = re.compile(r"invalid_(request|client|grant|scope)|unauthorized_client|unsupported_grant_type")
_URL_SAFE = str.maketrans("+/", "-_")


class TopicsNow(NamedTuple):
    """What the broker has of some topics."""

    wall_time: int  # W (epoch ms), taken before the ends were asked for
    earliest: Mapping[Partition, int]  # first offset
    end: Mapping[Partition, int]  # read_committed end, exclusive
    ids: Mapping[str, str]  # topic -> id; asked for last, so that no offset above belongs to a topic deleted before
    epochs: Mapping[Partition, int] = MappingProxyType({})  # leader epoch of the end, -1 if the broker does not return it
    cut: Mapping[Partition, int] = MappingProxyType({})  # first offset from which the log is not the one read before
    written: Mapping[Partition, int] = MappingProxyType({})  # read_uncommitted end, asked for before `end`

    def same_until(self, place: Partition) -> int:
        """The offset (exclusive) up to which the log exists and is the one that was read."""
        return min(self.end[place], self.cut.get(place, self.end[place]))


def ask_broker(settings: Settings, topics: Iterable[str]) -> TopicsNow:
    """Offsets of every partition and the topics' ids. Raises BrokerProblem, and NeedsOperator for a missing topic."""
    topics = list(topics)
    with admin_client(settings) as admin:
        partitions = [place for topic in topics for place in partitions_of_topic(admin, topic, settings)]
        wall_time = time.time_ns() // 1_000_000
        written = _list_ends(admin, partitions, _UNCOMMITTED)
        earliest, ends = (_ask_offsets(admin, partitions, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return TopicsNow(
            wall_time,
            {place: answer.offset for place, answer in earliest.items()},
            {place: answer.offset for place, answer in ends.items()},
            topic_ids(admin, topics),
            {place: -1 if answer.leader_epoch is None else answer.leader_epoch for place, answer in ends.items()},
            written=written,
        )


def all_topics(settings: Settings) -> list[str]:
    """Every topic of the cluster that the user may see. Raises as `admin_client`."""
    with admin_client(settings) as admin:
        return sorted(admin.list_topics(timeout=ANSWER_WITHIN_S).topics)


def wait_for_markers(settings: Settings, topic: str) -> None:
    """Returns when every committed record of the topic can be read, or after 2 s.

    Kafka acknowledges a commit before the partitions have its markers. An open transaction ends only later, so the wait is short.
    """
    with admin_client(settings) as admin:
        partitions = partitions_of_topic(admin, topic, settings)
        give_up = time.monotonic() + _MARKERS_WITHIN_S
        while time.monotonic() < give_up:
            committed, written = (_list_ends(admin, partitions, each) for each in (_COMMITTED, _UNCOMMITTED))
            if committed == written:
                return
            time.sleep(0.05)


def ends_written(settings: Settings, topic: str) -> dict[int, int]:
    """Partition -> end (exclusive) of all that was written to it, open transactions included."""
    with admin_client(settings) as admin:
        partitions = partitions_of_topic(admin, topic, settings)
        ends = _list_ends(admin, partitions, _UNCOMMITTED)
    return {number: end for (_, number), end in ends.items()}


def offsets_since(settings: Settings, ends: Mapping[Partition, int], since: int) -> dict[Partition, int]:
    """Partition -> its first offset with a record timestamp of at least `since` (epoch ms); its end where there is none."""
    with admin_client(settings) as admin:
        answers = _ask_offsets(admin, list(ends), OffsetSpec.for_timestamp(since))
    return {
        place: min(answer.offset, ends[place]) if answer.offset >= 0 else ends[place] for place, answer in answers.items()
    }


@contextmanager
def admin_client(settings: Settings) -> Iterator[AdminClient]:
    """A client for the block. A KafkaException of the block becomes a BrokerProblem, or NeedsOperator if the connection is refused."""
    # Of the connections: a request that times out does not carry them.
    errors: list[KafkaError] = []
    admin = AdminClient(admin_settings(settings) | {"error_cb": errors.append})
    try:
        yield admin
    except KafkaException as error:
        admin.poll(0)
        raise no_answer(settings, error.args[0], errors) from None


def no_answer(settings: Settings, error: KafkaError, errors: list[KafkaError]) -> JobProblem:
    """The problem behind a request that failed. `errors`: what the client told of its connections meanwhile."""
    # That all brokers are down is what the timeout says itself.
    connecting = [each for each in errors if each.code() != KafkaError._ALL_BROKERS_DOWN]
    reasons = [" ".join(each.str().split()) for each in (error, *connecting)]
    for each, reason in zip(connecting, reasons[1:], strict=True):
        if _NO_TOKEN in reason:
            problem = BrokerProblem(
                f"no token for Kafka at {address(settings)} ({reason.partition(_NO_TOKEN)[2]}): does sasl.oauthbearer.token.endpoint.url of "
                f"{connection_of(settings)} answer, and are client id, secret, scope and https.ca.location right?"
            )
            return NeedsOperator(str(problem)) if _REFUSED_BY_ENDPOINT.search(reason) else problem
        if each.code() in _CONNECTION_REFUSED:
            return NeedsOperator(
                f"Kafka at {address(settings)} refuses the connection ({reason}): correct user, password, token or "
                f"certificate authority in the extra of {connection_of(settings)}"
            )
    # The client tries an endpoint that is busy or silent again for a minute, without a word.
    asked = "are broker and token endpoint up" if "sasl.oauthbearer.method" in settings else "is the broker up"
    return BrokerProblem(
        f"no answer from Kafka at {address(settings)} within {ANSWER_WITHIN_S:.0f} s ({'; '.join(dict.fromkeys((reasons[0], reasons[-1])))}): "
        f"{asked}, and are bootstrap.servers and security.protocol of {connection_of(settings)} right?"
    )


def topic_ids(admin: AdminClient, topics: list[str]) -> dict[str, str]:
    """Topic -> id, as Kafka's tools print it. A topic that is created again has another id."""
    answers = admin.describe_topics(TopicCollection(topics), request_timeout=ANSWER_WITHIN_S)
    # The library's text has + and / where kafka-topics.sh prints - and _.
    return {topic: str(answer.result().topic_id).translate(_URL_SAFE) for topic, answer in answers.items()}


def partitions_of_topic(admin: AdminClient, topic: str, settings: Settings, operation: str = "Read") -> list[Partition]:
    """All partitions, by number. Raises NeedsOperator if the topic does not exist or the user may not do the operation on it."""
    found = admin.list_topics(topic, timeout=ANSWER_WITHIN_S).topics[topic]
    if found.error is not None and found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise missing_right(settings, on_topic(operation, topic))
    if found.error is not None or not found.partitions:
        raise NeedsOperator(
            f"topic {topic} is not on the broker at {address(settings)} ({found.error or 'no partitions'}): "
            "create it, or correct its name in the pipeline's file"
        )
    return [(topic, number) for number in range(len(found.partitions))]


def _list_ends(admin: AdminClient, partitions: list[Partition], isolation: IsolationLevel) -> dict[Partition, int]:
    answers = _ask_offsets(admin, partitions, OffsetSpec.latest(), isolation)
    return {place: answer.offset for place, answer in answers.items()}


def _ask_offsets(
    admin: AdminClient, partitions: list[Partition], spec: OffsetSpec, isolation: IsolationLevel = _COMMITTED
) -> dict[Partition, ListOffsetsResultInfo]:
    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}

    def ask() -> dict[Partition, ListOffsetsResultInfo]:
        answers = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=ANSWER_WITHIN_S)
        found = {(place.topic, place.partition): answer.result() for place, answer in answers.items()}
        # While a leader moves the client may have an answer without an offset and without an error. Taken for an end, it looks like a log
        # that was cut.
        if any(answer.offset == OFFSET_INVALID for answer in found.values()):
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
        return found

    return retry_transient(ask)
