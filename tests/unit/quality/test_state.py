"""The state that a report makes: from the one before where that knows exactly the batches before it, else anew from the tables."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from include.config.health import FAILED, HEALTHY, WARNING, Lag, acknowledge, add_finding, heal, read_state
from spark_jobs.quality import state as states
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.suite import Verdict, judge_bounds
from spark_jobs.quality.trend import Trend
from tests.helpers.pages import pages_in
from tests.unit.quality.test_problems import GOOD, LAW, ORPHANS, PIPELINE, batch


class Reports:
    """The reports of one pipeline, without tables: `stored` stands in for quality_metrics."""

    def __init__(self, folder, monkeypatch):
        self.pages, self.stored, self.trend, self.read = pages_in(folder), {}, Trend("calls"), 0
        self.warehouse = SimpleNamespace(pipeline=PIPELINE, root="")
        monkeypatch.setattr(states, "pages_store", lambda *_: self.pages)
        monkeypatch.setattr(states, "reported_before", self._before)
        monkeypatch.setattr(
            states,
            "stored_batches",
            lambda _, first, last: [self.stored[n] for n in range(first, last + 1) if n in self.stored],
        )

        monkeypatch.setattr(states, "chosen_batches", lambda _, chosen: [self.stored[number] for number in chosen])

    def _before(self, warehouse, ledger, batch_id, oldest):
        self.read += 1
        return [each for number, each in sorted(self.stored.items()) if oldest <= number < batch_id]

    def report(self, *batches, reported=None):
        """A report of the batches, and the state after it."""
        if reported is None:
            reported = max((number for number in self.stored if number < batches[0].batch_id), default=0)
        again = {each.batch_id for each in batches if each.batch_id in self.stored}
        for each in batches:
            self.stored.setdefault(each.batch_id, replace(each, verdict=None))
        self.trend.add([*batches])
        return states.add_to_state(self.warehouse, None, self.trend, batches, reported, again, Lag(unread=3))


@pytest.fixture
def reports(tmp_path, monkeypatch):
    return Reports(tmp_path, monkeypatch)


def test_it_goes_on_from_the_one_before(reports):
    reports.report(batch(1, **ORPHANS))
    state = reports.report(batch(2))
    assert (state.verdict, state.batch, state.at, state.lag.unread, reports.read) == (WARNING, 2, 120.0, 3, 0)
    assert read_state(reports.pages) == state
    assert reports.report(batch(3, **GOOD)).verdict == HEALTHY


def test_news_are_what_began_and_ended_and_a_report_that_is_made_again_has_them_again(reports):
    text = reports.report(batch(1, **ORPHANS)).problems[0].text
    assert read_state(reports.pages).news == (text,) == reports.report(batch(1, **ORPHANS)).news
    assert reports.report(batch(2)).news == ()
    assert reports.report(batch(3, **GOOD)).news == (f"over: {text}",) == reports.report(batch(3, **GOOD)).news
    # A failed check is told by the task that fails.
    assert reports.report(batch(4, **{LAW: 1.0})).news == ()


LATE_BATCH = replace(batch(6, late_healable=4.0, left_only=4.0), breakdowns=[
    Breakdown("late", 4, 0, "until", "60000"), Breakdown("late_healable", 4, 0, "until", "60000"), Breakdown("late_times", 4, 0, "ms after", "5 7 89 90"),
])  # fmt: skip
STORY = [
    batch(1, **ORPHANS), batch(2, **{LAW: 3.0}), batch(3, pair=9.0), batch(4, lost=2.0), batch(5, kind="rewind", to_batch=3, live=0.0),
    LATE_BATCH, replace(batch(7, kind="replay", live=0.0), breakdowns=[Breakdown("late_looked", 1, 5, "until", "90")]), batch(8),
]  # fmt: skip


@pytest.mark.parametrize("lost", ["gone", "unreadable", "of an older batch", "of a newer batch"])
def test_one_that_is_made_anew_equals_the_one_that_was_kept(reports, tmp_path, lost):
    for each in STORY[:-1]:
        reports.report(each)
        if each.batch_id == 5:
            old = (tmp_path / "state.json").read_text()
    before = (tmp_path / "state.json").read_text()
    kept = reports.report(STORY[-1])
    assert {each.name for each in kept.problems} == {"orphan_ratio", LAW, "late_healable"} and reports.read == 0
    assert "late events of the last 7 days that a replay would pair: 1" in {each.text for each in kept.problems}
    file = tmp_path / "state.json"
    match lost:
        case "gone":
            file.unlink()
        case "unreadable":
            file.write_bytes(b"\xff{")
        case "of an older batch":
            file.write_text(old)
        case "of a newer batch":
            file.write_text(before.replace('"batch":7', '"batch":9', 1))
    anew = reports.report(STORY[-1])
    assert reports.read == 1 and anew.model_copy(update={"news": ()}) == kept.model_copy(update={"news": ()})


def test_two_batches_of_one_report_are_added_in_their_order(reports):
    state = reports.report(batch(1, **ORPHANS), batch(2, **GOOD), batch(3, **{LAW: 1.0}))
    assert [each.name for each in state.problems] == [LAW]


def test_a_batch_that_is_judged_anew_replaces_what_it_said_before(reports):
    """It was not published, so its row is not in the tables yet."""
    broken, good = batch(2, publishing_difference=4.0), batch(2)
    reports.report(batch(1))
    reports.report(broken)
    del reports.stored[2]
    assert reports.report(good).verdict == HEALTHY


def test_a_law_that_a_second_report_finds_kept_stays_healed_when_all_is_made_anew(reports, tmp_path):
    reports.report(batch(1, **{LAW: 1.0}))
    assert reports.report(batch(2, **{LAW: 3.0})).problems[0].newest == 2
    # The table was restored: the second batch is right, the first one still is not.
    (problem,) = reports.report(batch(2)).problems
    assert (problem.batch, problem.newest) == (1, 1)
    (tmp_path / "state.json").unlink()
    assert reports.report(batch(3)).problems == (problem,)
    # Broken again, it counts again.
    assert reports.report(batch(3, **{LAW: 1.0})).problems[0].newest == 3


def test_an_acknowledgement_ends_with_its_problem_or_when_that_gets_worse(reports):
    reports.report(batch(1, **ORPHANS))
    acknowledge(reports.pages, "orphan_ratio", "ann", "known")
    state = reports.report(batch(2, **ORPHANS))
    assert (state.verdict, state.problems[0].acknowledged.by) == (HEALTHY, "ann")
    reports.warehouse.pipeline = replace(PIPELINE, quality=replace(PIPELINE.quality, severities=(("orphan_ratio", "fail"),)))
    worse = batch(3, pipeline=reports.warehouse.pipeline, **ORPHANS)
    assert reports.report(worse).verdict == FAILED
    reports.warehouse.pipeline = PIPELINE
    reports.report(batch(4, **GOOD))
    assert reports.report(batch(5, **ORPHANS)).verdict == WARNING


def test_an_acknowledgement_while_a_report_is_made_is_not_lost(reports, monkeypatch):
    reports.report(batch(1, **ORPHANS))
    made = states.windows_of

    def meanwhile(trend):
        acknowledge(reports.pages, "orphan_ratio", "ann", "known")
        return made(trend)

    monkeypatch.setattr(states, "windows_of", meanwhile)
    assert reports.report(batch(2)).verdict == HEALTHY == read_state(reports.pages).verdict


def test_findings_stay_until_they_are_healed_whatever_batches_say(reports):
    reports.report(batch(1))
    add_finding(reports.pages, "reconcile", "failed", "3 messages are missing", "docs/runbooks/does-not-add-up.md")
    assert read_state(reports.pages).verdict == FAILED
    state = reports.report(batch(2, **GOOD))
    assert (state.verdict, state.problems[0].batch, state.news) == (FAILED, 1, ())
    heal(reports.pages, "reconcile")
    assert read_state(reports.pages).verdict == HEALTHY == reports.report(batch(3)).verdict


def test_a_law_is_healed_by_a_command_as_far_as_it_looked(reports, tmp_path):
    reports.report(batch(1, **{LAW: 1.0}))
    reports.report(batch(2, **{LAW: 1.0}))
    heal(reports.pages, LAW, through=1)
    assert read_state(reports.pages).verdict == FAILED
    heal(reports.pages, LAW)
    assert read_state(reports.pages).verdict == HEALTHY == reports.report(batch(3)).verdict
    (tmp_path / "state.json").unlink()
    assert reports.report(batch(4)).verdict == HEALTHY
    # Broken again at once, it is a new problem.
    reports.report(batch(5, **{LAW: 1.0}))
    heal(reports.pages, LAW)
    assert reports.report(batch(6, **{LAW: 1.0})).problems[0].batch == 6


def test_bounds_judge_as_the_suite_does():
    found = judge_bounds(batch(1, **ORPHANS).metrics, PIPELINE.quality)
    assert [each.check.metric for each in Verdict(found, "").checks if not each.passed] == ["orphan_ratio"]
