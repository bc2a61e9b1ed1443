"""Where lags of equal keys are no chance, and where they are."""

from __future__ import annotations

import numpy as np

from spark_jobs.joining.fields import ABSENT
from spark_jobs.joining.lags import Events, Lags

HOUR = 3_600_000


def events(rng, many: int, keys: int) -> Events:
    return Events(rng.integers(0, keys, many), np.sort(rng.integers(0, HOUR, many)))


def test_pairs_that_are_sent_apart_are_found_where_they_are():
    rng = np.random.default_rng(1)
    left = events(rng, 1_000, 50)
    lag = rng.integers(2_000, 6_000, 1_000)
    peak = Lags(left, Events(left.key, left.at + lag)).peak()
    assert peak is not None and 3_700 <= peak.center <= 4_300 and 1_500 <= peak.width <= 3_000
    assert 850 <= peak.excess <= 1_050 and peak.by_chance < 60


def test_a_part_of_the_pairs_is_enough_and_skewed_clocks_do_not_matter():
    rng = np.random.default_rng(2)
    left, others = events(rng, 1_000, 200), events(rng, 700, 200)
    key, at = np.append(left.key[:300], others.key), np.append(left.at[:300] - 120_000, others.at)
    peak = Lags(left, Events(key, at)).peak()
    assert peak is not None and abs(peak.center + 120_000) < 100 and 270 <= peak.excess <= 310


def test_events_of_other_pairs_are_chance_also_where_more_happens():
    rng = np.random.default_rng(3)
    for keys in (3, 50, 5_000):
        busy = np.sort(np.append(rng.integers(0, HOUR, 500), rng.integers(HOUR // 2, HOUR // 2 + 300_000, 500)))
        sides = [Events(rng.integers(0, keys, 1_000), busy + rng.integers(0, 9_000, 1_000)) for _ in range(2)]
        assert Lags(*sides).peak() is None


def test_the_nearest_partner_is_that_nearest_to_the_center_and_nobody_without_key_or_time_has_one():
    left = Events(np.array([1, 1, 2, ABSENT]), np.array([1_000, 50_000, 1_000, 1_000]))
    right = Events(np.array([1, 1, 1, 3, ABSENT, 2]), np.array([900, 1_400, 50_010, 1_000, 1_000, ABSENT]))
    lags = Lags(left, right)
    assert lags.nearest(0).tolist() == [-100, 10]
    assert lags.nearest(450).tolist() == [400, 10]
    assert lags.neighbours().tolist() == [-49_100, -48_600, -100, 10, 400, 49_010]


def test_without_events_there_is_nothing():
    nothing = Events(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert Lags(nothing, nothing).peak() is None and len(Lags(nothing, nothing).nearest(0)) == 0
