"""What begins, what ends and what outlives a batch; the same batches give the same problems, however they are added."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.config.health import FAILED, WARNING
from include.config.pipeline import Quality
from include.config.problem_marks import HealMark
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.quality.problems import LATE, late_problem, problems_after
from spark_jobs.quality.suite import LAWS, Verdict, judge_bounds
from spark_jobs.quality.windows import LateEvents
from tests.helpers.ledger_rows import ledger_rows
from tests.helpers.timeline import CALLS

PIPELINE = replace(CALLS, quality=Quality(max_orphan_ratio=0.5, silence_ms=None))
EMPTY = dict.fromkeys(LAWS, 0.0) | {"live": 1.0, "lost": 0.0, "orphan_ratio": 0.0, "wall_time": 0.0}
EMPTY |= dict.fromkeys(("compounds", "pair", "left_only", "right_only"), 0.0)
LAW = "pairing_difference_left"


def batch(number, kind="live", judged=True, pipeline=PIPELINE, **metrics):
    """A batch, judged by the bounds as it would be by Great Expectations."""
    counts = EMPTY | {"wall_time": number * 60_000.0} | metrics
    counts["compounds"] = counts["pair"] + counts["left_only"] + counts["right_only"]
    if counts["compounds"]:
        counts["orphan_ratio"] = (counts["left_only"] + counts["right_only"]) / counts["compounds"]
    own = {"to_batch": metrics.pop("to_batch")} if kind == "rewind" else {}
    steps = {
        row.step: row for row in ledger_rows(number, ("planned", "paired"), kind, pipeline, wall_time=number * 60_000, **own)
    }
    verdict = Verdict(judge_bounds(counts, pipeline.quality), "")
    return Batch(number, number * 60_000, steps, counts, state=verdict.state, verdict=verdict if judged else None)


def after(*batches, healed=None, pipeline=PIPELINE):
    problems = {}
    for each in batches:
        problems = problems_after(each, problems, pipeline, healed or {})
    return problems


ORPHANS = {"left_only": 1_001.0}
GOOD = {"pair": 10.0}


def test_an_empty_batch_neither_raises_nor_heals_a_ratio():
    assert after(batch(1)) == {}
    problems = after(batch(1, **ORPHANS), batch(2), batch(3))
    (problem,) = problems.values()
    assert (problem.name, problem.severity, problem.batch, problem.newest) == ("orphan_ratio", WARNING, 1, 1)
    assert (problem.since, problem.last, problem.runbook) == (60.0, 60.0, "docs/runbooks/orphans.md")
    assert problem.text == (
        "1,001 of 1,001 compounds of batch 1 are one-sided: 100.0% where quality.max_orphan_ratio allows 50.0%"
    )


def test_a_ratio_is_healed_by_enough_compounds_within_the_bound():
    bad = batch(1, **ORPHANS)
    assert list(after(bad, batch(2, pair=9.0))) == ["orphan_ratio"]
    assert after(bad, batch(2, **GOOD)) == {}
    # Those of several batches count together, until one breaks the bound again.
    assert after(bad, batch(2, pair=9.0), batch(3), batch(4, pair=1.0)) == {}
    again = after(bad, batch(2, pair=9.0), batch(3, left_only=2.0), batch(4, pair=9.0))
    assert (again["orphan_ratio"].batch, again["orphan_ratio"].newest, again["orphan_ratio"].calm) == (1, 3, 9)


def test_a_deviation_and_a_drift_are_left_alone_by_batches_without_them():
    warned = after(batch(1, orphan_ratio_deviation=9.0, skew_drift=40_000.0, **GOOD))
    assert sorted(warned) == ["orphan_ratio_deviation", "skew_drift"]
    assert sorted(after(batch(1, orphan_ratio_deviation=9.0, skew_drift=40_000.0, **GOOD), batch(2, **GOOD))) == sorted(
        warned
    )
    # Compounds without a pair say nothing of the clocks.
    calm = batch(2, orphan_ratio_deviation=0.0, skew_drift=0.0, left_only=5.0, pair=5.0)
    assert list(after(batch(1, orphan_ratio_deviation=9.0, skew_drift=40_000.0, **GOOD), calm)) == ["skew_drift"]


def test_a_broken_law_outlives_good_batches_and_a_loss_does_too():
    problems = after(batch(1, **{LAW: 3.0}), batch(2, lost=5.0), batch(3, **GOOD))
    assert {name: each.severity for name, each in problems.items()} == {LAW: FAILED, "lost": WARNING}
    assert problems[LAW].text.endswith(f"{LAW} is 3.0, allowed 0 to 0")
    assert problems["lost"].text == "batch 2 gave up 5 records that the broker had lost"


def test_a_rewind_ends_what_began_in_batches_that_it_gives_up():
    rewind = batch(4, kind="rewind", to_batch=2, live=0.0)
    assert after(batch(1, **ORPHANS), batch(3, **{LAW: 3.0}), rewind).keys() == {"orphan_ratio"}
    assert after(batch(2, **{LAW: 3.0}), batch(3, **{LAW: 3.0}), rewind).keys() == {LAW}


def test_a_replay_says_nothing_of_ratios():
    replay = batch(2, kind="replay", live=0.0, left_only=900.0)
    assert after(replay) == {} and list(after(batch(1, **ORPHANS), replay)) == ["orphan_ratio"]


def test_what_was_mended_is_no_problem_of_the_tables_but_of_a_batch_that_is_judged_now():
    for healed in (HealMark(batch=2), HealMark(alone=(2,))):
        assert after(batch(2, judged=False, **{LAW: 3.0}), healed={LAW: healed}) == {}
        assert after(batch(3, judged=False, **{LAW: 3.0}), healed={LAW: healed}).keys() == {LAW}
        assert after(batch(2, **{LAW: 3.0}), healed={LAW: healed}).keys() == {LAW}


def test_a_check_that_is_to_fail_is_a_failed_problem():
    strict = replace(PIPELINE, quality=replace(PIPELINE.quality, severities=(("orphan_ratio", "fail"),)))
    found = after(batch(1, pipeline=strict, **ORPHANS), pipeline=strict)
    assert found["orphan_ratio"].severity == FAILED


def test_what_cannot_be_judged_is_no_problem():
    assert after(batch(1, delivery_not_judged=float(NotJudged.RETENTION))) == {}


def test_silence_lasts_while_its_check_is_broken():
    pipeline = replace(PIPELINE, quality=Quality(silence_ms=60_000))
    long = {"silent_left": 70_000.0, "silent_right": 0.0, "unpaired_left": 0.0, "unpaired_right": 0.0}
    problems = after(batch(1, pipeline=pipeline, **long), batch(2, pipeline=pipeline, **long), pipeline=pipeline)
    assert (problems["silent_left"].batch, problems["silent_left"].newest) == (1, 2)
    assert after(batch(1, pipeline=pipeline, **long), batch(2, pipeline=pipeline, **long | {"silent_left": 0.0})) == {}


def test_the_tables_give_the_problems_that_were_kept():
    """Rows of quality_metrics have no verdict."""
    story = [
        {**ORPHANS}, {}, {"pair": 9.0}, {LAW: 3.0}, {"lost": 1.0, "pair": 1.0}, {"left_only": 3.0}, {"skew_drift": 50_000.0, "pair": 20.0},
    ]  # fmt: skip
    kept = after(*(batch(number, **metrics) for number, metrics in enumerate(story, 1)))
    assert kept.keys() == {LAW, "lost", "skew_drift"}
    assert after(*(batch(number, judged=False, **metrics) for number, metrics in enumerate(story, 1))) == kept


@pytest.mark.parametrize(
    ("late", "waited", "is_told"), [("dead_letter", 0, True), ("replay", 3_600, False), ("replay", 3_601, True)]
)
def test_late_events_are_a_problem_unless_the_pipeline_is_about_to_heal_them(late, waited, is_told):
    events = LateEvents(14, 3, 1_000.0, 5, 1_600.0)
    problems = late_problem(events, replace(CALLS, late=late), 1_000.0 + waited)
    assert bool(problems) == is_told
    if is_told:
        assert problems[LATE].text == "late events of the last 7 days that a replay would pair: 14"
        assert (problems[LATE].batch, problems[LATE].since, problems[LATE].newest) == (3, 1_000.0, 5)
    assert late_problem(LateEvents(0), CALLS, 0.0) == {}
