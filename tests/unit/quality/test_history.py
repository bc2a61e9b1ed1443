"""Which batches a batch is compared with, and how far off it is."""

from __future__ import annotations

import pytest

from spark_jobs.quality.batch import Batch
from spark_jobs.quality.history import (
    ANY,
    SAME_HOUR,
    SAME_WEEKDAY_AND_HOUR,
    comparable,
    ratio_against,
)

HOUR, DAY = 3_600_000, 86_400_000
# A Thursday, at noon.
NOON = 1_767_225_600_000 + 12 * HOUR


def past(at, ratio=0.1, **more):
    return Batch(1, at, metrics={"compounds": 100.0, "live": 1.0, "orphan_ratio": ratio} | more)


def every(step, number, **more):
    return [past(NOON - step * each, **more) for each in range(number, 0, -1)]


def of_this_hour(number):
    return [past(NOON + each * HOUR // 12) for each in range(number)]


@pytest.mark.parametrize(
    ("before", "number", "by"),
    [
        # An hour of batches is of the same weekday and hour, and says nothing about it.
        (of_this_hour(11), 11, ANY),
        (every(DAY, 8), 8, SAME_HOUR),
        (every(DAY, 7), 7, ANY),
        (every(7 * DAY, 8), 8, SAME_WEEKDAY_AND_HOUR),
        (every(7 * DAY, 8) + every(HOUR, 20), 8, SAME_WEEKDAY_AND_HOUR),
        # Those of one day only, beside one of another.
        ([past(NOON - DAY + HOUR), *of_this_hour(11)], 12, ANY),
        ([past(NOON - DAY), *of_this_hour(11)], 12, SAME_HOUR),
    ],
)
def test_comparable_batches(before, number, by):
    found, common = comparable(NOON, before)
    assert (len(found), common) == (number, by)


def test_replays_and_empty_batches_are_not_comparable():
    assert comparable(NOON, [past(NOON, live=0.0), past(NOON, compounds=0.0)])[0] == []


def test_seven_batches_say_nothing_and_no_compounds_neither():
    assert ratio_against(0.9, 100, [0.1] * 7) == {}
    assert ratio_against(0.0, 0, [0.1] * 8) == {}


def test_one_wild_batch_before_widens_nothing():
    before = [0.08 + 0.001 * number for number in range(41)]
    calm, wild = ratio_against(0.5, 10_000, before), ratio_against(0.5, 10_000, [*before, 1.0])
    assert wild["orphan_ratio_deviation"] == pytest.approx(calm["orphan_ratio_deviation"], rel=0.1)
    assert calm["orphan_ratio_deviation"] > 20


def test_chance_in_a_small_batch_is_no_deviation():
    before = [0.0] * 20
    assert abs(ratio_against(1 / 10, 10, before)["orphan_ratio_deviation"]) < 2
    assert ratio_against(1_000 / 10_000, 10_000, before)["orphan_ratio_deviation"] > 100


def test_too_few_orphans_are_a_deviation_too():
    assert ratio_against(0.0, 10_000, [0.1] * 8)["orphan_ratio_deviation"] < -20
