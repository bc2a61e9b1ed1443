"""Where it does matter how a stream is cut into batches: the limits of what test_cuts.py promises, an example each.

T = 100, G = 200, R = 500, max_session = 1000, max_future = 10000, all in ms.
"""

from dataclasses import replace

import pytest

from spark_jobs.rules.rules import LEFT, RIGHT
from tests.helpers.stream import Event, Read, Stream, outcome_counts
from tests.helpers.timeline import SMALL

OTHER = {"side": LEFT, "user": "w"}
"""An event of another pair: it makes a batch of its own, whose clock closes what is over."""


def finest(stream: Stream):
    return outcome_counts(stream.play(stream.event_by_event()))


def coarsest(stream: Stream):
    return outcome_counts(stream.play([stream.at_once()]))


@pytest.mark.parametrize(("late_by", "pairs"), [(500, 1), (501, 0)], ids=["grace: in time", "grace + 1: too late"])
def test_exactly_grace_after_its_time_an_event_is_in_time_in_every_cut(late_by, pairs):
    """The left event's session is over at 700, so at 701 it is closed, and the right event at 200 would be within its gap."""
    events = [Event(0, 0, LEFT), Event(701, 701, **OTHER), Event(200 + late_by, 200, RIGHT)]
    stream = Stream(replace(SMALL, tolerance_ms=200), events)
    assert finest(stream)["pair"] == pairs
    assert coarsest(stream)["pair"] == 1


def test_a_finer_cut_may_pair_an_event_that_was_sent_again_after_its_session_was_closed():
    """In the finest cut the second left event at 0 repeats a closed one, joins an open session, and so is an event again."""
    first, again = Event(0, 0, LEFT, payload="x"), Event(840, 0, LEFT, payload="x")
    between = [Event(50, 50, RIGHT), Event(760, 760, **OTHER), Event(800, 170, LEFT)]
    stream = Stream(SMALL, [first, *between, again, Event(840, 60, RIGHT)])
    assert finest(stream) == {"pair": 2, "left_only": 2}
    assert coarsest(stream) == {"pair": 1, "left_only": 2, "right_only": 1, "duplicate": 1}


def test_a_rescued_event_may_move_a_cut_at_max_session_between_the_sides_of_a_pair():
    """The chain from 40 on comes late; in a coarser cut it is accepted, and then the session ends before 1041."""
    late = [Event(1_800, at, LEFT) for at in (40, 240, 440, 640, 840)]
    stream = Stream(SMALL, [Event(1_000, 1_000, LEFT), Event(1_050, 1_050, RIGHT), Event(1_751, 1_751, **OTHER), *late])
    assert finest(stream) == {"pair": 1, "left_only": 1, "late": 5}
    assert coarsest(stream) == {"left_only": 7, "right_only": 1}


def test_in_a_backlog_an_accepted_event_ahead_of_its_arrival_moves_the_clock_too_far():
    """At the wall time 9000 nothing tells that the event stamped 9000 came at 1, when more was to come in its partition."""
    early, ahead = Event(0, 0, LEFT, user="w"), Event(1, 9_000, **OTHER)
    stream = Stream(SMALL, [early, ahead, Event(1_000, 1_000, LEFT), Event(1_000, 1_000, RIGHT)])
    left, right = (LEFT, 0), (RIGHT, 0)
    two_of_three = Read(9_000, {left: 3, right: 1}, {left: 2, right: 1})
    assert outcome_counts(stream.play([two_of_three, stream.at_once()])) == {"left_only": 2, "right_only": 1, "late": 1}
    assert coarsest(stream) == {"left_only": 2, "pair": 1}
