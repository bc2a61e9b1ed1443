"""When a side counts as silent: timelines of batches, boundary pairs side by side. Times are epoch ms, `m` minutes after noon."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from include.config.pipeline import FEWEST_ORPHANS, Quality
from spark_jobs.quality import suite
from spark_jobs.quality.silence import (
    PASSED,
    WARNING,
    LandedSide,
    SideState,
    _carried,
    _judged,
    checked_sentences,
    next_states,
    notices,
    state_of,
)
from tests.helpers.timeline import CALLS

NOON, MINUTE = 1_769_860_800_000, 60_000
QUALITY = Quality(silence_ms=30 * MINUTE)


class Batch(NamedTuple):
    """`at`: its wall time; `left`, `right`: record timestamps that it accepted; `alone`: left_only, right_only. Times in minutes after noon."""

    at: float
    left: tuple[float, ...] = ()
    right: tuple[float, ...] = ()
    alone: tuple[int, int] = (0, 0)
    pairs: int = 0
    refused: tuple[int, int] = (0, 0)
    unread: tuple[bool, bool] = (False, False)


def ms(minutes):
    return NOON + round(minutes * MINUTE)


def play(*batches, quality=QUALITY, before=None):
    """The metrics of each batch, as far as they are about silence."""
    found = []
    metrics = before or {}
    for batch in batches:
        old = [state_of(metrics, side) for side in ("left", "right")]
        landed = [
            LandedSide(len(times), refused, ms(min(times, default=0)), ms(max(times, default=0)), not unread)
            for times, refused, unread in zip((batch.left, batch.right), batch.refused, batch.unread, strict=True)
        ]
        new = next_states(quality, ms(batch.at), old, landed, batch.alone, batch.pairs)
        metrics = _carried(new) | _judged(old, new) | {"live": 1.0, "wall_time": float(ms(batch.at))}
        found.append(metrics)
    return found


def said(metrics, pipeline=CALLS):
    return [notice.text for notice in notices(replace(pipeline, quality=QUALITY), metrics)]


def news(metrics):
    return [notice.text for notice in notices(replace(CALLS, quality=QUALITY), metrics) if notice.is_news]


BOTH = Batch(0, left=(-1,), right=(-1,), pairs=1)
MS = 1 / MINUTE


@pytest.mark.parametrize(("last", "silent"), [(31, False), (31 + MS, True)], ids=["exactly", "one ms beyond"])
def test_a_side_is_silent_once_the_other_has_sent_alone_for_longer(last, silent):
    """Since the other side's first record after the side's last one."""
    after = play(BOTH, Batch(5, right=(1,)), Batch(32, right=(20, last), alone=(0, 7)))[-1]
    assert after["silent_left"] == (last - 1) * MINUTE
    assert after["is_silent_left"] == silent
    assert after["is_silent_right"] == 0
    (check,) = (each for each in suite.checks(QUALITY, after) if each.metric == "silent_left")
    assert (check.severity, check.least <= after["silent_left"] <= check.most) == (suite.WARNING, not silent)


def test_it_says_which_topic_since_when_and_what_came_out():
    begun, goes_on, still = play(
        BOTH,
        Batch(5, right=(1, 4), alone=(0, 2)),
        Batch(33, right=(10, 32), alone=(0, 300)),
        Batch(38, right=(37,), alone=(0, 1_010)),
        Batch(43),
    )[-3:]
    silent = "analyticsTopic has been silent since 2026-01-31 11:59 UTC: "
    assert said(begun) == [f"{silent}302 right_only since; metricsTopic goes on, up to 2026-01-31 12:32 UTC"] == news(begun)
    assert said(goes_on) == [f"{silent}1,312 right_only since; metricsTopic goes on, up to 2026-01-31 12:37 UTC"]
    # Nothing came from either: still true, and no news.
    assert (said(still), news(goes_on), news(still)) == (said(goes_on), [], [])
    assert checked_sentences(notices(CALLS, begun)) == {"silent_left": said(begun)[0]}


def test_one_record_ends_it_and_the_end_is_told_once():
    *_, silent, back, later = play(
        BOTH,
        Batch(5, right=(1,)),
        Batch(33, right=(20, 32), alone=(0, 300)),
        Batch(38, left=(37,), right=(37,), alone=(0, 5)),
        Batch(43, left=(42,), right=(42,), pairs=9),
    )
    assert (silent["is_silent_left"], back["is_silent_left"], back["silent_left"]) == (1, 0, 0)
    assert said(back) == ["analyticsTopic sends again: it was silent since 2026-01-31 11:59 UTC, with 300 right_only"]
    assert notices(CALLS, back)[0].style == PASSED and news(back) == said(back)
    assert said(later) == [] and later["orphans_since_left"] == 0


def test_a_side_that_never_had_a_record():
    first, last = play(Batch(5, right=(1,)), Batch(35, right=(20, 32), alone=(0, 3)))
    assert first["is_silent_left"] == 0
    assert said(last) == [
        "analyticsTopic has not had one accepted record, while metricsTopic sends since 2026-01-31 12:01 UTC: 3 right_only since; "
        "metricsTopic goes on, up to 2026-01-31 12:32 UTC"
    ]
    # A first batch that lands what a topic holds since hours need not wait for a second one.
    (only,) = play(Batch(60, right=(1, 32)))
    assert only["is_silent_left"] == 1


def test_records_that_are_all_refused_are_silence_and_said_to_be_there():
    *_, last = play(BOTH, Batch(5, right=(1,), refused=(40, 0)), Batch(33, right=(20, 32), refused=(60, 0), alone=(0, 9)))
    assert said(last)[0].startswith(
        "analyticsTopic has been silent since 2026-01-31 11:59 UTC: 9 right_only since, all 100 records that came were refused;"
    )


def test_a_night_is_no_silence():
    """Neither sends; in the morning one of them is first, by less than what is allowed."""
    evening = (BOTH, Batch(5, right=(1,)))
    night = [Batch(10 + 5 * number) for number in range(90)]
    morning = Batch(485, right=(480,)), Batch(490, left=(486,), right=(486,), pairs=1)
    assert [each["is_silent_left"] for each in play(*evening, *night, *morning)] == [0] * 94
    assert [each["is_silent_left"] for each in play(*evening, *night, morning[0], Batch(512, right=(490, 511)))][-1] == 1


@pytest.mark.parametrize(("first", "silent"), [(31, True), (31 + MS, False)], ids=["a pause as long", "one ms longer"])
def test_a_longer_pause_of_the_other_side_begins_the_count_anew(first, silent):
    assert play(BOTH, Batch(5, right=(1,)), Batch(40, right=(first, 39)))[-1]["is_silent_left"] == silent


def test_a_silence_that_was_told_does_not_end_with_a_pause():
    *_, before, after = play(BOTH, Batch(5, right=(1,)), Batch(33, right=(20, 32)), Batch(485, right=(480,)))
    assert (before["is_silent_left"], after["is_silent_left"]) == (1, 1)
    assert news(after) == []


def test_nothing_from_either_is_said_as_what_it_is():
    *_, short, long = play(BOTH, Batch(29), Batch(29 + MS))
    assert said(short) == []
    assert said(long) == ["neither analyticsTopic nor metricsTopic has had an accepted record since 2026-01-31 11:59 UTC"]
    assert news(long) == [] and checked_sentences(notices(CALLS, long)) == {}
    assert said(play(Batch(0))[0]) == ["neither analyticsTopic nor metricsTopic has had an accepted record yet"]


def test_what_is_unread_may_be_the_record():
    unread = Batch(33, right=(20, 32), unread=(True, False))
    assert play(BOTH, Batch(5, right=(1,)), unread)[-1]["is_silent_left"] == 0
    # The other side's backlog is older than the last record.
    old = [Batch(5 * number, right=(-300 + 60 * number, -250 + 60 * number), unread=(False, True)) for number in range(1, 4)]
    assert [each["silent_left"] for each in play(Batch(0, left=(-1,), right=(-300,), unread=(False, True)), *old)] == [0] * 4
    after = play(
        Batch(0, left=(-1,), right=(-9,), unread=(False, True)),
        Batch(1, right=(-3, -2), unread=(False, True)),
        Batch(11, right=(10,)),
    )[-1]
    assert after["silent_left"] == 0, "alone it sends from its first record after the other side's last"


@pytest.mark.parametrize("clock", [-10_000, 10_000], ids=["a week behind", "a week ahead"])
def test_a_producer_s_broken_clock_makes_nothing_silent(clock):
    batches = [Batch(5 * number, left=(5 * number + clock,), right=(5 * number - 1,)) for number in range(20)]
    assert {each[f"is_silent_{side}"] for each in play(*batches) for side in ("left", "right")} == {0}
    # And when it does fall silent that is noticed within what the batches tell of the time.
    alone = [Batch(100 + 5 * number, right=(99 + 5 * number,)) for number in range(9)]
    found = [each["is_silent_left"] for each in play(*batches, *alone)][20:]
    assert found == [0] * 7 + [1] * 2


def test_both_sides_are_alike():
    swapped = play(BOTH, Batch(5, left=(1,)), Batch(33, left=(20, 32), alone=(7, 0)))[-1]
    assert (swapped["is_silent_left"], swapped["is_silent_right"], swapped["orphans_since_right"]) == (0, 1, 7)
    assert said(swapped)[0].startswith("metricsTopic has been silent since 2026-01-31 11:59 UTC: 7 left_only since;")


def sending(at, alone, pairs=0):
    return Batch(at, left=(at - 1,), right=(at - 1,), alone=alone, pairs=pairs)


@pytest.mark.parametrize(("last", "unpaired"), [(34, False), (34 + MS, True)], ids=["exactly", "one ms beyond"])
def test_both_send_and_nothing_pairs(last, unpaired):
    """From the first record of the first such batch to the wall time of the last."""
    after = play(BOTH, sending(5, (20, 22)), Batch(last, left=(5,), right=(5,), alone=(292, 276)))[-1]
    assert [after[f"is_unpaired_{side}"] for side in ("left", "right")] == [unpaired, unpaired]
    told = "analyticsTopic and metricsTopic both send, but nearly nothing has paired since 2026-01-31 12:04 UTC: 312 left_only, 298 right_only since"
    assert said(after) == ([told] if unpaired else [])
    assert news(after) == said(after)


@pytest.mark.parametrize(("pairs", "unpaired"), [(5, True), (6, False)], ids=["a share of exactly 95 %", "less"])
def test_nearly_nothing_is_the_share_and_above(pairs, unpaired):
    after = play(BOTH, sending(5, (0, 95), pairs), sending(35, (0, 95), pairs))[-1]
    assert (after["is_unpaired_right"], after["is_unpaired_left"]) == (unpaired, 0)
    told = "metricsTopic sends, but nearly none of its events has found a partner of analyticsTopic since 2026-01-31 12:04 UTC: 190 right_only since"
    assert said(after) == ([told] if unpaired else [])


def test_few_orphans_may_be_chance():
    for orphans in (FEWEST_ORPHANS - 1, FEWEST_ORPHANS):
        after = play(BOTH, sending(5, (1, 0)), sending(35, (orphans - 1, 0)))[-1]
        assert after["is_unpaired_left"] == (orphans == FEWEST_ORPHANS)


def test_pairs_end_it_and_a_silent_side_explains_it():
    *_, unpaired, again = play(BOTH, sending(5, (20, 20)), sending(35, (20, 20)), sending(45, (1, 0), pairs=19))
    assert unpaired["is_unpaired_left"] == 1 and again["is_unpaired_left"] == 0
    assert news(again) == [
        "analyticsTopic finds partners of metricsTopic again: it found nearly none since 2026-01-31 12:04 UTC, with 40 left_only",
        "metricsTopic finds partners of analyticsTopic again: it found nearly none since 2026-01-31 12:04 UTC, with 40 right_only",
    ]
    silent = play(BOTH, sending(5, (0, 20)), Batch(30, right=(6, 20)), Batch(40, right=(39,), alone=(0, 20)))[-1]
    assert (silent["is_silent_left"], silent["is_unpaired_right"]) == (1, 0)
    assert len(said(silent)) == 1


def test_a_few_orphans_around_a_night_are_no_run():
    night = [Batch(10 + 5 * number) for number in range(90)]
    assert play(BOTH, sending(5, (20, 0)), *night, sending(465, (20, 0)))[-1]["is_unpaired_left"] == 0


def test_a_batch_that_closes_nothing_says_nothing():
    before, after = play(BOTH, sending(5, (20, 20)), sending(10, (0, 0)))[1:]
    assert state_of(after, "left")._replace(last_record=0, read_to=0) == state_of(before, "left")._replace(
        last_record=0, read_to=0
    )


def test_a_state_is_carried_through_metrics_as_it_is():
    states = [SideState(1.0, 2.0, 3.0, 4.0, 1.0, 5.0, 6.0, 7.0, 8.0, 9.0, 1.0), SideState()]
    assert [state_of(_carried(states), side) for side in ("left", "right")] == states


def test_switched_off_there_is_no_check():
    after = play(BOTH, Batch(33, right=(1, 32)))[-1]
    assert not any(
        "silent" in check.metric or "unpaired" in check.metric for check in suite.checks(Quality(silence_ms=None), after)
    )


def test_the_sentence_stands_with_its_check():
    after = play(BOTH, Batch(33, right=(1, 32)))[-1]
    warned = checked_sentences(notices(CALLS, after))
    sentences = {check.metric: check.sentence for check in suite.checks(QUALITY, after, warned)}
    assert sentences["silent_left"].startswith("analyticsTopic has been silent since 2026-01-31 11:59 UTC")
    assert sentences["silent_right"] == "the right side is not silent while the other one sends, in ms"
    assert notices(CALLS, after)[0].style == WARNING
