"""The pages of batches: which is looked at first, which are kept, what they say, also of what is not there."""

from __future__ import annotations

import html
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError

from include.config.pipeline import Quality
from spark_jobs.quality import pages
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.orphan_section import orphan_section, sentences
from spark_jobs.quality.rendering import render
from spark_jobs.quality.suite import INFO, Check, JudgedCheck, Verdict, checks
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger_rows import PAIRED
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.pages import pages_in
from tests.helpers.timeline import CALLS

COUNTS = (
    "planned offset_gaps landed accepted open_before pair left_only right_only corrections collapsed rejected open_after backlog"
).split()
OLD = dict.fromkeys([*COUNTS, *(f"rejected_{reason}" for reason in Reason)], 0.0)
ORPHANS = OLD | {
    "live": 1.0, "compounds": 5_000.0, "left_only": 318.0, "right_only": 200.0, "orphan_ratio": 0.1036, "orphan_ratio_left": 0.066,
    "orphan_age_median_left": 301_000.0, "orphan_age_max_left": 900_000.0,
    "top_user_share": 0.8, "comparable_batches": 50.0, "comparable_by": 1.0, "orphan_ratio_median": 0.02, "orphan_ratio_spread": 0.004,
    "orphan_ratio_deviation": 20.9, "late_left": 40.0, "late_right": 3.0, "late_healable": 37.0,
    "skew_median": -1200.0, "skew_q1": -3000.0, "skew_q3": 900.0,
}  # fmt: skip
BREAKDOWNS = [
    Breakdown("miss_left", 150, 75_000), Breakdown("miss_right", 100, 75_000), Breakdown("miss_left", 100, 90_000),
    Breakdown("miss_right", 62, 90_000), Breakdown("miss_right", 106), Breakdown("top_user", 412, None, "user1", "<ann>"),
    Breakdown("users", 12, field="user1"), Breakdown("grace_needed", 43, 3_600_000), Breakdown("hour_pair", 9, 1_767_225_600_000),
    Breakdown("hour_left_only", 3, 1_767_229_200_000), Breakdown("hour_left_only", 2, -1), Breakdown("partition_left_only", 300, 2),
    Breakdown("partition_left_only", 18, 0),
]  # fmt: skip


def row(batch_id=7):
    return SimpleNamespace(batch_id=batch_id, kind="live", pipeline=CALLS, config_hash="ab", counts={}, clock=None)


def page_of(folder, metrics, verdict=None, breakdowns=()):
    verdict = verdict or Verdict([], "<head></head>")
    batch = Batch(7, 0, {PAIRED: row()}, metrics, breakdowns, verdict=verdict)
    return Path(pages.write_pages(pages_in(folder), batch, "")).read_text()


def test_the_newest_pages_are_kept_however_old_they_are(tmp_path):
    def names():
        return sorted(path.name for path in tmp_path.iterdir())

    for number in (1, 2, 99, 100, 102):
        for name in (f"batch-{number}.html", f"batch-{number}-expectations.html"):
            (tmp_path / name).touch()
    for other in ("index.html", "trend.html", "batch-notes.txt"):
        (tmp_path / other).touch()
    pages.prune_pages(pages_in(tmp_path), 101)
    assert "batch-2.html" in names() and "batch-1.html" not in names() and "batch-1-expectations.html" not in names()
    pages.prune_pages(pages_in(tmp_path), 3)
    assert names() == [
        "batch-100-expectations.html", "batch-100.html", "batch-102-expectations.html", "batch-102.html", "batch-notes.txt",
        "index.html", "trend.html",
    ]  # fmt: skip


def test_what_nobody_can_judge_has_a_state_of_its_own(tmp_path):
    check = Check("delivery_not_judged", 0, 0, INFO, "every message was read back: not judgeable, because retention …")
    page = page_of(tmp_path, ORPHANS, Verdict([JudgedCheck(check, False, 2.0)], "<head></head>"))
    assert '<span class="badge warning">passed, not all of it judged</span>' in page
    assert '<td class="warning">not judgeable</td>' in page and "failed" not in page.partition("<main>")[2]


def test_what_the_orphans_say():
    told = list(sentences(ORPHANS, BREAKDOWNS))
    assert told == [
        "518 of 5,000 compounds are one-sided: 10.4%.",
        "The 50 comparable batches before it of this hour had 2.0% ± 0.4% (median and spread): this one is +20.9 spreads off.",
        "318 left events were given up, 6.6% of that side: 5 min after their timestamp (median), at most 15 min.",
        "300 of the 318 left ones are of partition 2, one of 2 that have any.",
        "412 of the 518 are of user1=<ann>, one of 12 values of user1 that have orphans.",
        "Right events are -1,200 ms from their left ones (median; the middle half from -3,000 to +900 ms).",
    ]


def test_the_section_has_its_charts_and_their_numbers_and_loads_nothing_from_elsewhere(tmp_path):
    page = page_of(tmp_path, ORPHANS, breakdowns=BREAKDOWNS)
    assert page.count('<figure role="img" aria-label=') == page.count("<figure") == 3
    assert not re.findall(r"(?:src|href)=.(?:https?:)?//|url\(|@import", page)
    assert re.findall("<script.*?>", page) == ['<script src="theme.js">', '<script src="charts.js">']
    assert "user1=&lt;ann&gt;" in page and "<ann>" not in page
    assert '<th scope="row">up to 75 s</th><td class="number">150</td><td class="number">100</td>' in page
    assert "2026-01-01 01:00" in page and "far from now" in page
    assert "<style" not in page and re.findall('<link rel="stylesheet" href="(.*?)">', page) == ["page.css"]
    assert len(page) < 30_000


def test_a_row_of_an_earlier_version_has_its_page(tmp_path):
    page = page_of(tmp_path, OLD)
    assert "<h2>Rejected</h2>" in page and "<figure" not in page
    assert orphan_section(CALLS, OLD) == ""


def test_an_empty_batch_has_its_page(tmp_path):
    page = page_of(tmp_path, OLD | {"live": 1.0, "compounds": 0.0, "orphan_ratio": 0.0, "comparable_batches": 3.0})
    assert "0 of 0 compounds are one-sided" in page and "3 comparable batches before it, 8 are needed" in page
    assert "<figure" not in page


@pytest.mark.parametrize(
    ("broken", "state"),
    [
        ([], '<span class="badge passed">passed</span>'),
        (["lost"], '<span class="badge warning">warning</span>'),
        (["lost", "pairing_difference_left"], '<span class="badge critical">failed</span>'),
    ],
)
def test_the_heading_says_the_worst(broken, state, tmp_path):
    judged = [JudgedCheck(check, check.metric not in broken, 3.0) for check in checks(Quality(), {})]
    page = page_of(tmp_path, OLD, Verdict(judged, "<head></head>"))
    assert state in page
    for name in broken:
        sentence = next(check.sentence for check in checks(Quality(), {}) if check.metric == name)
        assert re.search(
            rf"{re.escape(html.escape(sentence))}</th><td class=\"number\">3</td><td class=\"number\">0</td>", page
        )


def test_a_report_that_could_not_be_made_has_a_page(tmp_path):
    place = pages_in(tmp_path / "quality")
    pages.write_unjudged(place, "calls", 7, ValueError("no <b>\nat all"))
    page = (tmp_path / "quality" / "batch-7.html").read_text()
    assert "calls: batch 7" in page and "not judged" in page and "ValueError: no &lt;b&gt; at all" in page


def test_a_template_escapes_what_it_is_given_and_lacks_nothing():
    page = render("unjudged.html", title="<b>'\"&", error="<script>")
    assert page.count("&lt;b&gt;&#39;&#34;&amp;") == 2 and "&lt;script&gt;" in page and "<b>" not in page
    with pytest.raises(UndefinedError, match="'error' is undefined"):
        render("unjudged.html", title="x")


def test_large_counts_keep_their_digits():
    steps = {"paired": ledger_row(7, "paired", pair=2**63 - 1)}
    assert "pair 9,223,372,036,854,775,807" in pages.batch_details(Batch.of(steps), [])


def test_times_are_no_numbers():
    steps = {"paired": ledger_row(7, "paired"), "landed": ledger_row(7, "landed", held=3, held_since=1_795_474_800_000)}
    text = pages.batch_details(Batch.of(steps), [])
    assert "held since 2026-11-23T23:00:00.000Z" in text and "795,474" not in text
