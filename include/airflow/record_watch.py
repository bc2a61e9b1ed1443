"""`schedule: on_data`: runs when there are records that were not landed, and when the sessions of the last ones are over.

The looking is done in Airflow's triggerer, so a quiet topic costs no task. What it sees is a wake-up, never the list of work: that is
what the plan of a batch says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from include.airflow.operator import KAFKA_CONNECTION
from include.config.secret_values import without_values

LOOK_EVERY_S = 5.0
# A run that landed nothing has failed, or waits for its turn: so long until it is asked for again.
ASK_AGAIN_S = 300.0
_ANSWER_WITHIN_S = 10.0

Ends = Mapping[tuple[str, int], int]


class WakeUps:
    """When to wake the DAG up. `settle_s`: how long after the last new record, in seconds, more might be closed, ascending."""

    def __init__(self, settle_s: tuple[float, ...]) -> None:
        self.settle_s = settle_s
        self._ends: Ends = {}
        self._asked_for: Ends | None = None
        self._asked_at = 0.0
        self._settling: list[float] = []

    def due(self, ends: Ends, is_behind: bool, at: float) -> str | None:
        """Called with what the topics' ends are at a moment (seconds), and whether there are records that were not landed; says why
        to wake up, or None.
        """
        if ends != self._ends:
            self._ends, self._settling = ends, [at + after for after in self.settle_s]
        if is_behind and (ends != self._asked_for or at >= self._asked_at + ASK_AGAIN_S):
            self._asked_for, self._asked_at = ends, at
            return "records wait"
        if self._settling and self._settling[0] <= at:
            self._settling = [later for later in self._settling if later > at]
            return "sessions are over"
        return None


class RecordsWaiting(BaseEventTrigger):
    """Watches the ends of `topics` against what the consumer group `group` shows as landed."""

    def __init__(self, topics: list[str], group: str, settle_s: list[float]) -> None:
        super().__init__()
        self.topics = topics
        self.group = group
        self.settle_s = settle_s
        self._clients: tuple[AdminClient, Consumer] | None = None
        self._settings: dict[str, Any] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """By what Airflow makes it again in the triggerer."""
        kwargs = {"topics": self.topics, "group": self.group, "settle_s": self.settle_s}
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Called by the triggerer; never ends. After a restart of the triggerer the DAG is woken up once too often, not once too few."""
        wake_ups = WakeUps(tuple(self.settle_s))
        while True:
            try:
                ends, is_behind = await sync_to_async(self._look)()
            except KafkaException as error:
                told = without_values(self._settings, str(error))
                self.log.warning("no answer from Kafka about %s: %s", ", ".join(self.topics), told)
            else:
                if why := wake_ups.due(ends, is_behind, time.monotonic()):
                    yield TriggerEvent({"why": why})
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> tuple[Ends, bool]:
        if self._clients is None:
            settings = self._settings = _kafka_settings()
            # It never joins the group. The admin client, asked for offsets of a group whose coordinator is still loading, has crashed
            # the process at the next question.
            reader = Consumer(settings | {"group.id": self.group, "enable.auto.commit": False})
            self._clients = AdminClient(settings), reader
        admin, reader = self._clients
        known = admin.list_topics(timeout=_ANSWER_WITHIN_S).topics
        places = [
            TopicPartition(topic, number) for topic in self.topics if topic in known for number in known[topic].partitions
        ]
        first, ends = (_offsets(admin, places, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        shown = reader.committed(places, timeout=_ANSWER_WITHIN_S) if places else []
        landed = {(at.topic, at.partition): at.offset for at in shown}
        # Nothing landed yet is a negative number. A log that ends before what was landed was cut, which a run has to tell.
        return ends, any(
            end > max(landed.get(place, -1), first[place]) or end < landed.get(place, -1) for place, end in ends.items()
        )


def _kafka_settings() -> dict[str, Any]:
    return dict(KafkaBaseHook(kafka_config_id=KAFKA_CONNECTION).get_connection(KAFKA_CONNECTION).extra_dejson)


def _offsets(admin: AdminClient, places: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
    # As the batches read: what is in an open transaction is not there yet.
    asked = dict.fromkeys(places, spec)
    answers = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_WITHIN_S)
    return {(at.topic, at.partition): answer.result().offset for at, answer in answers.items()}
