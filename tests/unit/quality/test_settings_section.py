"""What the page says about tolerance, gap and grace: sentences with numbers of the data, and the picture of them."""

from __future__ import annotations

from dataclasses import replace

from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.settings_section import settings_section
from tests.helpers.timeline import CALLS

LIVE = {"live": 1.0}
PAIRS = [Breakdown("distance", 60, 250), Breakdown("distance", 39, 5_000), Breakdown("distance", 1, 60_000)]
LATE = [Breakdown("grace_needed", 60, 240_000), Breakdown("grace_needed", 37, 600_000), Breakdown("grace_needed", 3)]
MISSES = [Breakdown("miss_left", 250, 75_000), Breakdown("miss_right", 162, 90_000), Breakdown("miss_right", 106)]


def sentences(pipeline, *batches):
    page = settings_section(pipeline, LIVE, batches)
    return [line.removeprefix("<li>").removesuffix("</li>") for line in page.splitlines() if line.startswith("<li>")]


def test_each_setting_has_what_the_data_say():
    assert sentences(CALLS, [*PAIRS, *LATE, *MISSES]) == [
        "60 % of 100 pairs are at most 250 ms apart.",
        "99 % of 100 pairs are at most 5 s apart.",
        "106 of 518 orphans have no unpaired event of the other side with their key near them: no T pairs these.",
        "T = 75 s (and gap = 75 s) would pair up to 250 of 518.",
        "T = 90 s (and gap = 90 s) would pair up to 412 of 518.",
        "A compound is decided at the earliest 4 min (gap + grace) after the last event of its session.",
        "99 % of the pairs are at most 5 s apart: a shorter gap would split others.",
        "100 events came late.",
        "R = 4 min would have taken 60 % of the late events in time; every compound would wait as long.",
        "R = 10 min would have taken 97 % of the late events in time; every compound would wait as long.",
        "3 came more than 1 d late: a replay pairs them, no grace does.",
    ]


def test_all_is_only_said_of_all():
    assert "99.9 % of 10,000 pairs are at most 100 ms apart." in sentences(
        CALLS, [Breakdown("distance", 9_999, 100), Breakdown("distance", 1, 250)]
    )


def test_batches_before_count_with_it():
    page = settings_section(CALLS, LIVE, [PAIRS, PAIRS, []])
    assert "60 % of 200 pairs" in page and "what the last 3 batches say" in page
    assert page.count('<svg class="bars"') == 2 and "T is 1 min" in page and ">T = 1 min</text>" in page
    assert '<th scope="row">up to 250 ms</th><td class="number">120</td><td class="number">0</td>' in page


def test_a_gap_below_the_tolerance_is_told_from_it():
    pipeline = replace(CALLS, tolerance_ms=90_000, gap_ms=60_000)
    assert "412 orphans have a partner within T, but beyond the gap: gap = T may pair them." in sentences(
        pipeline, [*MISSES, Breakdown("miss_left", 7, 60_000), Breakdown("miss_left", 9, 120_000)]
    )


def test_all_events_say_how_much_grace_they_needed():
    of_all = [
        Breakdown("grace_of_all", 9_800, 0),
        Breakdown("grace_of_all", 103, 20_000),
        Breakdown("grace_of_all", 90, 240_000),
    ]
    found = [*of_all, Breakdown("grace_of_all", 7, None), Breakdown("grace_needed", 60, 240_000)]
    assert sentences(CALLS, found)[-5:-2] == [
        "98 % of 10,000 events would have been in time with R = 0.",
        "R = 20 s takes 99 % of all events in time.",
        "R = 4 min takes 99.9 % of all events in time.",
    ]
    page = settings_section(CALLS, LIVE, [found])
    assert page.count('<svg class="bars"') == 1 and '<th scope="row">none</th><td class="number">9,800</td>' in page
    # 60 of the 90 were late, the others came into sessions that were open.
    assert '<th scope="row">up to 4 min</th><td class="number">30</td><td class="number">60</td>' in page
    assert sentences(CALLS, of_all[:1])[-2:] == [
        "100 % of 9,800 events would have been in time with R = 0.",
        "No event came late.",
    ]


def test_a_grace_that_is_there_is_not_proposed():
    assert sentences(replace(CALLS, grace_ms=600_000), LATE)[-2:] == [
        "100 events came late.",
        "3 came more than 1 d late: a replay pairs them, no grace does.",
    ]


def test_without_data_there_are_the_values():
    assert sentences(CALLS, [])[-1] == "No event came late."
    page = settings_section(CALLS, LIVE, [[]])
    assert "T = 1 min" in page and "<svg" not in page and "this batch says" in page
    assert "--pipeline calls</code>" in page
    assert sentences(replace(CALLS, matching="collapse"), [])[0] == "With matching: collapse it decides nothing."
    assert settings_section(CALLS, {"live": 0.0}, [PAIRS]) == ""
