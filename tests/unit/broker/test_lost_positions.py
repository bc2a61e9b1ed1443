"""What the `publishing` rows say of a publication, and what the messages that were found say of a position."""

from types import SimpleNamespace

from spark_jobs.broker.lost_positions import Begun, _position
from spark_jobs.broker.positions import Leg, Position

LEG = Leg("calls", "out", "topic", False, "table", slots=3, copy=4, target=7, largest=1000)


def row(batch_id, slots, *ends):
    return SimpleNamespace(
        batch_id=batch_id,
        finished_at=None,
        counts={"slots": slots, **{f"end_{number}": end for number, end in enumerate(ends)}},
    )


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
