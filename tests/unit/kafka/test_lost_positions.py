"""What the `publishing` rows say of a publication, and what the messages that were found say of a position."""

from types import SimpleNamespace

import pytest

from spark_jobs.kafka.lost_positions import UnfinishedPublication, _position
from spark_jobs.kafka.positions import Position, PublishRun
from spark_jobs.stages import publish
from spark_jobs.tables.ledger_rows import PAIRED, PUBLISHING
from spark_jobs.tables.records import OutputState, StepCounts, TopicIds
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import CALLS

RUN = PublishRun("calls", "out", "topic", False, "table", partitions=3, ledger_position=4, target=7, largest=1000)


def row(batch_id, partitions, *ends):
    return ledger_row(batch_id, PUBLISHING, partitions=partitions, ends=dict(enumerate(ends)))


def test_the_earliest_ends_count_of_a_publication_that_was_begun_several_times():
    begun = UnfinishedPublication([row(5, 2, 10, 20), row(6, 2, 15, 20), row(7, 2, 12, 19)])
    assert (begun.partitions, begun.ends, begun.batch_ids) == (2, {0: 10, 1: 19}, {5, 6, 7})


def test_with_fewer_partitions_than_in_the_end_nothing_was_sent():
    begun = UnfinishedPublication([row(5, 2, 1, 1), row(5, 3, 10, 20, 30), row(6, 3, 15, 25, 35)])
    assert (begun.partitions, begun.ends, begun.batch_ids) == (3, {0: 10, 1: 20, 2: 30}, {5, 6})


def test_nothing_begun():
    assert (UnfinishedPublication([]).partitions, UnfinishedPublication([]).ends) == (0, {})


def test_the_position_is_the_last_batch_that_is_there():
    position = _position(RUN, 3, {5: 20, 7: 2})
    # Messages that are not among them were larger than the topic takes.
    assert position == Position(7, "table", 3, "topic", {5: 20, 7: 2}, {5: 1000, 6: 1000, 7: 1000})
    assert len(position.metadata()) < 4096


@pytest.mark.parametrize("kept_minutes", [1_440, None])
def test_what_is_noted_before_the_first_message_is_sent(kept_minutes, monkeypatch):
    appended = []
    ledger = SimpleNamespace(
        warehouse=SimpleNamespace(pipeline=CALLS), append=lambda *rows, among: appended.append((rows, among))
    )
    monkeypatch.setattr(publish, "ends_written", lambda settings, topic: {0: 5, 1: 0})
    monkeypatch.setattr(publish, "positions_kept_minutes", lambda settings, pipeline: kept_minutes)
    begun = [row(5, 3, 1, 1, 1), row(6, 2, 1, 1)]
    batches = [ledger_row(number, PAIRED, topic_ids=TopicIds("a", "b"), compounds=2) for number in (5, 6)]
    publish.begin(ledger, {}, RUN, batches, begun)
    [((noted,), among)] = appended
    # Batch 5 was begun with as many partitions on this topic, batch 6 with fewer.
    assert (noted.batch_id, noted.step, noted.plan, noted.counts) == (6, PUBLISHING, batches[1].plan, StepCounts())
    assert noted.output_state == OutputState("topic", 3, ends={0: 5, 1: 0}, positions_kept_minutes=kept_minutes)
    assert among == ".3.topic"
