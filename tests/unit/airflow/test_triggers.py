"""`schedule: on_data`: when the DAG is woken up, as timelines of what the topics' ends are and whether something waits."""

from __future__ import annotations

import pytest

from include.airflow.triggers import ASK_AGAIN_S, RecordsWaiting, WakeUps

QUIET, WAITS, OVER = None, "records wait", "sessions are over"


@pytest.mark.parametrize(
    "timeline",
    [
        # (seconds, end of the partition, is there something that was not landed, woken up)
        [(0, 5, True, WAITS), (5, 5, True, QUIET), (10, 5, False, QUIET)],
        [(0, 5, True, WAITS), (5, 6, True, WAITS), (10, 6, False, QUIET)],
        # What was landed by another run needs none.
        [(0, 5, False, QUIET), (5, 6, False, QUIET)],
        [(0, 5, True, WAITS), (ASK_AGAIN_S - 1, 5, True, OVER), (ASK_AGAIN_S, 5, True, WAITS)],
        # A backlog: less and less is left, without anything new.
        [(0, 9, True, WAITS), (2 * ASK_AGAIN_S, 9, True, WAITS), (2 * ASK_AGAIN_S + 1, 9, True, OVER)],
        [(0, 5, True, WAITS), (99, 5, False, QUIET), (100, 5, False, OVER), (101, 5, False, QUIET)],
        [(0, 5, True, WAITS), (150, 5, False, OVER), (400, 5, False, OVER), (999, 5, False, QUIET)],
        # New ones begin the silence anew, and both times that passed unseen count as one.
        [(0, 5, True, WAITS), (60, 6, True, WAITS), (120, 6, False, QUIET), (999, 6, False, OVER), (1999, 6, False, QUIET)],
    ],
    ids=["once", "again", "landed", "asked again", "backlog", "settled", "future ones, too", "silence anew"],
)
def test_when_it_wakes_up(timeline):
    wake_ups = WakeUps((100, 400))
    assert [wake_ups.due({("t", 0): end}, waits, at) for at, end, waits, _ in timeline] == [why for *_, why in timeline]


def test_silence_that_closes_nothing_wakes_nobody():
    wake_ups = WakeUps(())
    assert [wake_ups.due({("t", 0): 5}, False, at) for at in (0, 1_000)] == [None, None]


def test_the_triggerer_can_make_it_again():
    path, kwargs = RecordsWaiting({"a": "kafka_default", "b": "kafka_calls"}, "group", [241.0]).serialize()
    assert path == "include.airflow.triggers.RecordsWaiting"
    assert RecordsWaiting(**kwargs).serialize() == (path, kwargs)
