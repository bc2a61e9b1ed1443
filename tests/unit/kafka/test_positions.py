"""What the committed positions leave to be sent, and what is not believed."""

import pytest

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.positions import Position, PublishRun, next_run, read_position, trusted_position

NOW = PublishRun("calls", "out", "topic-b", False, "table", partitions=3, ledger_position=4, target=7, largest=1000)


def at(batch_id, partitions=3, topic_id="topic-b", table_id="table"):
    return Position(batch_id, table_id, partitions, topic_id, {})


@pytest.mark.parametrize(
    ("positions", "run"),
    [
        pytest.param({0: None, 1: None, 2: None}, NOW, id="expired, or never published: all from the ledger's copy"),
        pytest.param({0: at(4), 1: at(4), 2: at(4)}, NOW, id="all finished"),
        pytest.param({0: at(7), 1: at(4), 2: at(6)}, NOW, id="half published to as many partitions"),
        pytest.param({0: at(4, 2), 1: at(4, 2), 2: None}, NOW, id="grown with nothing unfinished: sent with the new number"),
        pytest.param(
            {0: at(6, 2), 1: at(4, 2), 2: None},
            NOW._replace(partitions=2, target=6),
            id="grown in the middle: finished with two",
        ),
        pytest.param(
            {0: at(6, 2), 1: at(6, 2), 2: None},
            NOW._replace(partitions=2, target=6),
            id="finished with two, not on the ledger yet",
        ),
        pytest.param({0: at(7), 1: at(4, 2), 2: None}, NOW, id="grown, then half published to three"),
    ],
)
def test_what_is_sent_next(positions, run):
    assert next_run(NOW, positions) == run


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        pytest.param(
            {0: at(3), 1: None, 2: None}, "is batch 3, but the ledger knows of 4 published and 7 paired", id="behind"
        ),
        pytest.param({0: None, 1: at(8), 2: None}, "is batch 8, but the ledger", id="ahead"),
        pytest.param({0: at(5, table_id="other"), 1: None, 2: None}, "another compound_events table", id="another table"),
        pytest.param(
            {0: at(5, topic_id="topic-a"), 1: None, 2: None}, r"created again \(id topic-a, now topic-b\)", id="topic"
        ),
        pytest.param(
            {0: at(5, 4), 1: None, 2: None}, "with 4 partitions, now it has 3", id="fewer partitions than it began with"
        ),
        pytest.param({0: at(5, 2), 1: at(6, 3), 2: None}, "half published", id="two numbers at once"),
    ],
)
def test_what_is_refused(positions, words):
    with pytest.raises(NeedsOperator, match=words):
        next_run(NOW, positions)


def test_positions_that_were_read_off_the_topic_take_the_place_of_those_that_expired():
    found = NOW._replace(recovered=((0, at(6, 2)),))
    assert next_run(found, {0: None, 1: None, 2: None}) == found._replace(partitions=2, target=6)
    # What is committed counts more: it is later.
    assert next_run(found, {0: at(7), 1: None, 2: None}) == found


def test_positions_of_a_deleted_topic_count_for_nothing_once_that_is_accepted():
    accepted = NOW._replace(accepts_new_topic=True)
    assert next_run(accepted, {0: at(6, topic_id="topic-a"), 1: at(1, topic_id="topic-a"), 2: None}) == accepted


def test_a_hundred_batches_fit_beside_an_offset():
    acknowledged = {10**9 + number: 10**9 for number in range(100)}
    limits = dict.fromkeys(acknowledged, 1_048_588)
    position = Position(
        10**9, "8b0c2f0e-3d7c-4a54-9f0e-2f6f7b0d4c11", 10_000, "ycNkhHivS5SkqNYt3OAzuA", acknowledged, limits
    )
    assert len(position.metadata()) < 4096
    assert read_position(10**9, position.metadata()) == position


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "a",
        "table",
        "a 1",
        "a b",
        "a 1 c 5",
        "a 1 c 5:x",
        "a\n1",
        f"a {'9' * 5_000}",
        f"a 1 c 5:{'9' * 5_000}",
        "a ٣",
    ],
)
def test_a_text_that_is_not_ours_is_of_no_table(text):
    assert read_position(5, text).table_id not in ("table", "a")


def test_a_topic_may_be_ahead_of_one_that_has_to_be_finished_first():
    lowered = NOW._replace(target=6, furthest=7)
    assert trusted_position(lowered, 0, at(7)) == at(7)
    with pytest.raises(NeedsOperator, match="is batch 8, but the ledger knows of 4 published and 7 paired"):
        trusted_position(lowered, 0, at(8))
    with pytest.raises(NeedsOperator, match="is batch 7, but the ledger knows of 4 published and 6 paired"):
        trusted_position(NOW._replace(target=6), 0, at(7))
