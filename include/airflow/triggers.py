"""The trigger of `schedule: on_data`: starts a run when records wait to be landed, and when the sessions of the last ones are closed.

It runs in Airflow's triggerer, so a quiet topic costs no task. It only starts runs: which records a run lands is up to the plan of its batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from include.airflow.connections import kafka_settings
from include.config.secret_values import without_values
from include.config.tokens import CONNECTION, NoToken, with_tokens
from include.config.topic_pattern import matching

LOOK_EVERY_S = 5.0
# A run that landed nothing has failed or waits for its turn: after so long another one is started.
ASK_AGAIN_S = 300.0
_ANSWER_WITHIN_S = 10.0

Ends = Mapping[tuple[str, int], int]


class WakeUps:
    """When to start a run. `settle_s`: times in seconds after the last new record at which sessions may be closed, ascending."""

    def __init__(self, settle_s: tuple[float, ...]) -> None:
        self.settle_s = settle_s
        self._ends: Ends = {}
        self._asked_for: Ends | None = None
        self._asked_at = 0.0
        self._settling: list[float] = []

    def due(self, ends: Ends, is_behind: bool, at: float) -> str | None:
        """The reason to start a run, or None. `ends`: of the topics at the moment `at` (seconds); `is_behind`: records wait to be landed."""
        if ends != self._ends:
            self._ends, self._settling = ends, [at + after for after in self.settle_s]
        if is_behind and (ends != self._asked_for or at >= self._asked_at + ASK_AGAIN_S):
            self._asked_for, self._asked_at = ends, at
            return "records wait"
        if self._settling and self._settling[0] <= at:
            self._settling = [later for later in self._settling if later > at]
            return "sessions are over"
        return None


class _Cluster:
    """The clients of one Kafka cluster, whose consumer never joins the group. Raises NoToken and KafkaException, as do the methods."""

    def __init__(self, settings: dict[str, Any], topics: list[str], patterns: list[str], group: str) -> None:
        self._topics, self._patterns = topics, patterns
        ready = with_tokens(settings)
        # The admin client would not do to read offsets: once it has asked for those of a group whose coordinator is still loading, its next
        # request crashes the process.
        self._reader = Consumer(ready | {"group.id": group, "enable.auto.commit": False})
        self._admin = AdminClient(ready)

    def look(self) -> tuple[Ends, bool]:
        """The ends of its topics, and whether records wait to be landed."""
        known = self._admin.list_topics(timeout=_ANSWER_WITHIN_S).topics
        names = {*self._topics} & {*known} | {topic for pattern in self._patterns for topic in matching(pattern, known)}
        places = [TopicPartition(topic, number) for topic in sorted(names) for number in known[topic].partitions]
        first, ends = (_offsets(self._admin, places, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        shown = self._reader.committed(places, timeout=_ANSWER_WITHIN_S) if places else []
        landed = {(at.topic, at.partition): at.offset for at in shown}
        # A negative offset: nothing landed yet. A log that ends before the landed records was cut, which a run has to report.
        return ends, any(
            end > max(landed.get(place, -1), first[place]) or end < landed.get(place, -1) for place, end in ends.items()
        )


class RecordsWaiting(BaseEventTrigger):
    """Watches the ends of topics against what the consumer group `group` shows as landed. `topics`: topic -> connection of its cluster;
    `patterns`: the same of regular expressions for whole names of topics.
    """

    def __init__(
        self, topics: dict[str, str], group: str, settle_s: list[float], patterns: dict[str, str] | None = None
    ) -> None:
        super().__init__()
        self.topics = topics
        self.group = group
        self.settle_s = settle_s
        self.patterns = patterns or {}
        self._clusters: dict[str, _Cluster] = {}
        self._settings: dict[str, dict[str, Any]] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class path and arguments from which Airflow's triggerer makes the trigger."""
        kwargs = {"topics": self.topics, "group": self.group, "settle_s": self.settle_s}
        # Without patterns it is the same trigger as in earlier versions.
        kwargs |= {"patterns": self.patterns} if self.patterns else {}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """The triggerer calls this; it never ends. After a restart of the triggerer there may be one run too many, never one too few."""
        wake_ups = WakeUps(tuple(self.settle_s))
        while True:
            try:
                ends, is_behind = await sync_to_async(self._look)()
            except (KafkaException, NoToken) as error:
                reason = str(error)
                for settings in self._settings.values() if isinstance(error, KafkaException) else ():
                    reason = without_values(settings, reason)
                self.log.warning("no answer from Kafka about %s: %s", ", ".join((*self.topics, *self.patterns)), reason)
            else:
                if why := wake_ups.due(ends, is_behind, time.monotonic()):
                    yield TriggerEvent({"why": why})
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> tuple[Ends, bool]:
        all_ends, behind = dict[tuple[str, int], int](), False
        for connection in dict.fromkeys((*self.topics.values(), *self.patterns.values())):
            if connection not in self._clusters:
                settings = self._settings[connection] = kafka_settings(connection) | {CONNECTION: connection}
                names, patterns = (
                    [each for each, at in named.items() if at == connection] for named in (self.topics, self.patterns)
                )
                self._clusters[connection] = _Cluster(settings, names, patterns, self.group)
            ends, is_behind = self._clusters[connection].look()
            all_ends |= ends
            behind = behind or is_behind
        return all_ends, behind


def _offsets(admin: AdminClient, places: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    # As batches read: records of an open transaction do not count yet.
    asked = dict.fromkeys(places, spec)
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_WITHIN_S)
    return {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
