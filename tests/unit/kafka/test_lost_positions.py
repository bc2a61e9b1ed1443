"""What the `publishing` rows say of a publication, and what the messages that were found say of a position."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_jobs.kafka import lost_positions
from spark_jobs.kafka.lost_positions import Begun, _position, tell_short_retention
from spark_jobs.kafka.offsets import OutputTopic
from spark_jobs.kafka.positions import Leg, Position
from spark_jobs.stages import publish
from spark_jobs.tables.ledger import PAIRED, PUBLISHING
from spark_jobs.tables.records import OutputState, StepCounts, TopicIds
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import CALLS

LEG = Leg("calls", "out", "topic", False, "table", slots=3, copy=4, target=7, largest=1000)


def row(batch_id, slots, *ends):
    return ledger_row(batch_id, PUBLISHING, slots=slots, ends=dict(enumerate(ends)))


def test_the_earliest_ends_count_of_a_publication_that_was_begun_several_times():
    begun = Begun([row(5, 2, 10, 20), row(6, 2, 15, 20), row(7, 2, 12, 19)])
    assert (begun.slots, begun.ends, begun.batch_ids) == (2, {0: 10, 1: 19}, {5, 6, 7})


def test_with_fewer_partitions_than_in_the_end_nothing_was_sent():
    begun = Begun([row(5, 2, 1, 1), row(5, 3, 10, 20, 30), row(6, 3, 15, 25, 35)])
    assert (begun.slots, begun.ends, begun.batch_ids) == (3, {0: 10, 1: 20, 2: 30}, {5, 6})


def test_nothing_begun():
    assert (Begun([]).slots, Begun([]).ends) == (0, {})


def test_the_position_is_the_last_batch_that_is_there():
    position = _position(LEG, 3, {5: 20, 7: 2})
    # Messages that are not among them were larger than the topic takes.
    assert position == Position(7, "table", 3, "topic", {5: 20, 7: 2}, {5: 1000, 6: 1000, 7: 1000})
    assert len(position.metadata()) < 4096


class Admin:
    """A broker that keeps positions for so many minutes."""

    minutes = 0

    def __init__(self, settings):
        pass

    def list_topics(self, timeout):
        return SimpleNamespace(brokers={3: "b"})

    def describe_configs(self, resources, request_timeout):
        answer = Future()
        answer.set_result({"offsets.retention.minutes": SimpleNamespace(value=str(self.minutes))})
        return dict.fromkeys(resources, answer)


@pytest.mark.parametrize(
    ("minutes", "days", "warned"),
    [(1_440, 1, False), (1_439, 1, True), (10_080, 3, False), (4_320, 3, False), (4_319, 3, True)],
)
def test_a_retention_of_positions_below_what_one_can_go_back_is_told_and_always_noted(
    minutes, days, warned, monkeypatch, capsys
):
    monkeypatch.setattr(lost_positions, "AdminClient", Admin)
    monkeypatch.setattr(Admin, "minutes", minutes)
    care = replace(CALLS.maintenance, time_travel_ms=days * 86_400_000)
    kept = tell_short_retention({"bootstrap.servers": "b:1"}, replace(CALLS, maintenance=care))
    assert ("warning: the broker forgets the positions" in capsys.readouterr().err) == warned
    assert kept == minutes


@pytest.mark.parametrize("kept_minutes", [1_440, None])
def test_what_is_noted_before_the_first_message_is_sent(kept_minutes, monkeypatch):
    appended = []
    ledger = SimpleNamespace(
        warehouse=SimpleNamespace(pipeline=CALLS), append=lambda *rows, among: appended.append((rows, among))
    )
    monkeypatch.setattr(publish, "ends_written", lambda settings, topic: {0: 5, 1: 0})
    monkeypatch.setattr(publish, "tell_short_retention", lambda settings, pipeline: kept_minutes)
    begun = [row(5, 3, 1, 1, 1), row(6, 2, 1, 1)]
    batches = [ledger_row(number, PAIRED, topic_ids=TopicIds("a", "b"), compounds=2) for number in (5, 6)]
    publish.begin(ledger, {}, LEG, OutputTopic(3, LEG.topic_id, 1000), batches, begun)
    [((noted,), among)] = appended
    # Batch 5 was begun with as many partitions on this topic, batch 6 with fewer.
    assert (noted.batch_id, noted.step, noted.plan, noted.counts) == (6, PUBLISHING, batches[1].plan, StepCounts())
    assert noted.output_state == OutputState("topic", 3, ends={0: 5, 1: 0}, positions_kept_minutes=kept_minutes)
    assert among == ".3.topic"
