"""What a page says of a check that failed: from its runbook, or in words; never a path alone where there is more to say."""

from __future__ import annotations

import pytest

from include.config.advice import advice, as_html
from include.config.pipeline import Quality
from spark_jobs.quality.problem_texts import runbook_of
from spark_jobs.quality.suite import checks
from tests.helpers.timeline import ROOT

EVERY = dict.fromkeys(
    ["identity_difference_left", "identity_difference_right", "delivery_difference", "dead_letter_difference", "orphan_ratio_deviation",
     "skew_drift", "silent_left", "silent_right", "unpaired_left", "unpaired_right", "foreign_changes"], 0.0,
) | {"delivery_not_judged": 2.0, "dead_letters_not_judged": 1.0}  # fmt: skip


@pytest.mark.parametrize("check", checks(Quality(), EVERY), ids=lambda check: check.metric)
def test_every_check_has_its_meaning_and_what_to_do(check):
    found = advice(check.metric, runbook_of(check.metric))
    assert found.meaning.startswith("<p>") and len(found.meaning) > 30 and len(found.steps) > 100
    assert not found.runbook or ((ROOT / found.runbook).is_file() and found.title)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/runbooks").glob("*.md")), ids=lambda page: page.stem)
def test_every_runbook_can_be_shown(page):
    found = advice("lost", f"docs/runbooks/{page.name}")
    assert found.title and found.meaning and "<a " not in found.meaning + found.steps
    assert "**" not in found.meaning.replace("<code>", "").partition("<pre>")[0]


def test_the_row_of_the_check_comes_before_what_is_true_of_all():
    found = advice("cumulative_difference_right", "docs/runbooks/counts-do-not-add-up.md")
    assert "the same over all batches since" in found.meaning and "The report counted the tables afresh" in found.steps


@pytest.mark.parametrize("runbook", ["docs/runbooks/none.md", "docs/runbooks/../glossary.md", "/etc/passwd", "README.md"])
def test_what_is_no_runbook_is_named_only(runbook):
    assert advice("lost", runbook) == ("", "", "", runbook)


def test_markup_in_a_text_stays_text():
    assert (
        as_html("see [the page](x.md) and <b>`a|b`</b>") == "<p>see the page and &lt;b&gt;<code>a|b</code>&lt;/b&gt;</p>\n"
    )
