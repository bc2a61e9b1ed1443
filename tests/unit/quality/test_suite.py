"""The checks that Great Expectations makes: none passes on nothing, none is milder or stricter than it says, none is silent."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from include.config.pipeline import Quality
from spark_jobs.quality import suite
from spark_jobs.quality.assets import assets
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.quality.pages import expectations_page
from spark_jobs.quality.suite import judge_elsewhere
from tests.helpers.timeline import ROOT

OPTIONAL = {
    "identity_difference_left": 0.0,
    "identity_difference_right": 0.0,
    "delivery_difference": 0.0,
    "dead_letter_difference": 0.0,
    "orphan_ratio_deviation": 1.0,
    "skew_drift": 10.0,
}
GOOD = {check.metric: 0.0 for check in suite.checks(Quality(), OPTIONAL)} | OPTIONAL
CRITICAL = [check.metric for check in suite.checks(Quality(), GOOD) if check.severity == suite.CRITICAL]
WARNINGS = [check.metric for check in suite.checks(Quality(), GOOD) if check.severity == suite.WARNING]


def failed(verdict):
    return {judged.check.metric: judged.check.severity for judged in verdict.checks if not judged.passed}


def test_a_good_batch_passes_and_every_check_has_looked_at_its_number():
    verdict = suite.judge(GOOD, Quality())
    assert {judged.check.metric: judged.observed for judged in verdict.checks} == GOOD
    assert failed(verdict) == {} and verdict.failed == []


def test_a_law_is_broken_by_one_in_either_direction():
    for number in (-1.0, 1.0):
        verdict = suite.judge(GOOD | dict.fromkeys(CRITICAL, number), Quality())
        assert [judged.check.metric for judged in verdict.failed] == CRITICAL


def test_a_warning_stays_a_warning():
    verdict = suite.judge(GOOD | dict.fromkeys(WARNINGS, 1e9), Quality())
    assert failed(verdict) == dict.fromkeys(WARNINGS, suite.WARNING)
    assert verdict.failed == []


@pytest.mark.parametrize(
    ("thresholds", "metrics", "outside"),
    [
        (Quality(max_orphan_ratio=0.25), {"orphan_ratio": 0.25}, []),
        (Quality(max_orphan_ratio=0.25), {"orphan_ratio": 0.2501}, ["orphan_ratio"]),
        (Quality(orphan_ratio_mads=3.0), {"orphan_ratio_deviation": -3.0}, []),
        (Quality(orphan_ratio_mads=3.0), {"orphan_ratio_deviation": -3.01}, ["orphan_ratio_deviation"]),
        (Quality(orphan_ratio_mads=3.0), {"orphan_ratio_deviation": 3.01}, ["orphan_ratio_deviation"]),
        (Quality(max_skew_drift_ms=500), {"skew_drift": 500.0}, []),
        (Quality(max_skew_drift_ms=500), {"skew_drift": -501.0}, ["skew_drift"]),
    ],
)
def test_bounds_are_those_of_the_settings_and_inclusive(thresholds, metrics, outside):
    assert list(failed(suite.judge(GOOD | metrics, thresholds))) == outside


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_nothing_never_passes(nothing):
    """Bounds on values pass when there is no value."""
    verdict = suite.judge(dict.fromkeys(GOOD, nothing), Quality())
    # A warning that could not be looked at is critical, too.
    assert failed(verdict) == dict.fromkeys(GOOD, suite.CRITICAL)


def test_a_number_that_is_not_there_fails_its_check_and_no_other():
    for missing in ("pairing_difference_left", "lost"):
        verdict = suite.judge({name: value for name, value in GOOD.items() if name != missing}, Quality())
        assert failed(verdict) == {missing: suite.CRITICAL}
        assert next(j for j in verdict.checks if j.check.metric == missing).observed is None


def test_no_row_and_two_rows_are_no_verdict(monkeypatch):
    import pandas

    for rows in (0, 2):
        monkeypatch.setattr(suite, "_row", lambda found, _, rows=rows: pandas.DataFrame([found] * rows, columns=list(found)))
        with pytest.raises(RuntimeError, match="the metrics are not one row"):
            suite.judge(GOOD, Quality())


def test_an_expectation_that_raises_is_critical_and_the_others_are_judged(monkeypatch):
    gx = suite.warm_up()

    class Raising(gx.expectations.ExpectColumnMaxToBeBetween):
        expectation_type = "expect_something_that_raises"

        def _validate(self, *_, **__):
            raise ValueError("cannot")

    bound = suite._bound
    monkeypatch.setattr(
        suite,
        "_bound",
        lambda gx, check: (
            Raising(column=check.metric, min_value=0, max_value=0, severity=check.severity)
            if check.metric == "lost"
            else bound(gx, check)
        ),
    )
    assert failed(suite.judge(GOOD | {"orphan_ratio": 0.5}, Quality(max_orphan_ratio=0.1))) == {
        "lost": suite.CRITICAL,
        "orphan_ratio": suite.WARNING,
    }


def test_what_is_not_for_every_batch_is_checked_where_its_number_is():
    required = {check.metric for check in suite.checks(Quality(), {})}
    assert set(GOOD) - required == set(OPTIONAL)
    assert "publishing_difference" not in {c.metric for c in suite.checks(replace(Quality(), gate="before_publish"), GOOD)}


@pytest.mark.parametrize("why", [*NotJudged])
def test_what_nobody_can_judge_neither_passes_nor_fails(why):
    metrics = {name: value for name, value in GOOD.items() if name != "delivery_difference"} | {
        "delivery_not_judged": float(why)
    }
    verdict = suite.judge(metrics, Quality())
    assert verdict.failed == [] and failed(verdict) == {"delivery_not_judged": suite.INFO}
    (judged,) = (judged for judged in verdict.checks if judged.check.severity == suite.INFO)
    assert judged.check.sentence.endswith(f": not judgeable, because {why.sentence}")


def test_sentences_have_both_numbers():
    page = suite.judge(GOOD | {"pairing_difference_left": 3.0}, Quality()).page
    assert re.search(r"pairing_difference_left", page) and ">3<" in re.sub(r"\s+", "", page)


def test_a_page_is_small_and_loads_nothing():
    broken = GOOD | {"pairing_difference_left": 3.0}
    page = expectations_page(suite.judge(broken, Quality()).page, "calls: batch <7>", "batch-7.html")
    assert len(page) < 100_000
    assert not re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?\s*(?:https?:)?//[^"')\s]*""", page)
    assert re.findall("<script.*?>", page) == ['<script src="theme.js">']
    assert not re.findall("onclick|@import|<style|style=", page)
    # Neither to pages that are not there, nor to a mark that is a letter of a font that is not loaded.
    assert (
        set(re.findall(r'href="([^#"][^"]*)"', page)) == {"batch-7.html", "page.css"}
        and "calls: batch &lt;7&gt;</a>" in page
    )
    assert re.findall("<title>.*?</title>", page) == ["<title>calls: batch &lt;7&gt;, expectations</title>"]
    marks = set(re.findall(r"<i class=\"[^\"]*(text-\w+)\"", page))
    assert marks == {"text-success", "text-danger"} and all(f"i.{mark}::before" in assets()["page.css"] for mark in marks)


def test_it_is_quiet_and_looks_for_no_spark(tmp_path):
    """Its loggers would fill the task's log, its context leave files behind, and it would connect to the job's Spark."""
    code = (
        "import json, os, sys\n"
        "from include.config.pipeline import Quality\n"
        "from spark_jobs.quality import suite\n"
        "suite.judge(json.loads(sys.argv[1]), Quality())\n"
        "assert 'SPARK_REMOTE' not in os.environ\n"
    )
    environment = os.environ | {"SPARK_REMOTE": "sc://nowhere:1", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(GOOD)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.rglob("gx*")) == []


def test_the_process_beside_says_the_same():
    broken = GOOD | {"rejection_difference_right": 2.0}
    with judge_elsewhere() as judge:
        verdicts = [judge(metrics, Quality(max_orphan_ratio=0.1)) for metrics in (GOOD, broken)]
    here = suite.judge(broken, Quality(max_orphan_ratio=0.1))
    assert [verdict.failed for verdict in verdicts] == [[], here.failed]
    assert verdicts[1].checks == here.checks


def test_a_process_that_died_is_no_verdict():
    with judge_elsewhere() as judge:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Great Expectations ended with status 1"):
                judge(None, Quality())
