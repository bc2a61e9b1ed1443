"""The trend page's markup: nothing from the internet, the library as it was published."""

from __future__ import annotations

import hashlib
import re

from spark_jobs.quality import pages, rendering, trend_files
from spark_jobs.quality.assets import assets
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.catalogue import MEANINGS
from spark_jobs.quality.offenders import SHOWN, Offender
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED, PUBLISHED
from spark_jobs.tables.records import REWIND, CorrectedBatches
from tests.helpers.batch_history import history, offenders
from tests.helpers.ledger_rows import ledger_rows
from tests.helpers.timeline import CALLS

VENDORED = rendering._HERE / "vendored" / "uplot"


def test_the_library_is_the_published_one():
    listed = dict(re.findall(r"^\| `(uPlot[\w.]+)` \| `([0-9a-f]{64})` \|$", (VENDORED / "README.md").read_text(), re.M))
    files = {path.name: path for path in VENDORED.glob("uPlot.*")}
    assert set(listed) == set(files) and len(files) == 2
    assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert "MIT License" in (VENDORED / "LICENSE").read_text()


def test_everything_is_in_the_page_or_beside_it():
    text = trend_files.trend_page("calls")
    assert "<!--" not in text
    assert re.findall(r'(?:src|href)="([^"#$]+)"', text) == [
        "theme.js", "trend.css", "index.html", "index.html", "charts.js", "trend-data.js", "trend.js",
    ]  # fmt: skip
    text += "".join(assets().values())
    assert not re.findall(r"url\(|@import|fetch\(|XMLHttpRequest|https?://(?!github\.com/leeoniya/uPlot)", text)


def test_what_is_drawn_is_known():
    drawn = set(re.findall(r'\["([a-z_]+)", "[^"]*"\]', (rendering._HERE / "scripts" / "series.js").read_text()))
    assert drawn >= {"landed", "pair", "backlog", "rejected_late", "clock_lag_seconds", "orphan_ratio"}
    assert not drawn - set(MEANINGS)


def test_details_tell_steps_offsets_and_events():
    (batch,) = history(1)
    text = pages.batch_details(batch, offenders(batch))
    assert [step for step in batch.steps if f"<td>{step}</td>" in text] == [
        "planned",
        "landed",
        "paired",
        "published",
        "reported",
    ]
    assert text.count("analyticsTopic-") - text.count("<code>analyticsTopic-") == 4, "a line a partition"
    duplicates = batch.metrics["rejected_duplicate"]
    assert duplicates > SHOWN and f"And {duplicates - SHOWN:,.0f} more." in text
    assert text.count("<code>") == sum(min(count, SHOWN) for count in events(batch).values())


def test_details_tell_the_numbers_of_the_plan_and_of_the_output_topic():
    rows = ledger_rows(
        7, (PLANNED, PAIRED, PUBLISHED), REWIND, CALLS, to_batch=3, open_before=1_200, corrected=CorrectedBatches(4, 7), compounds=5, retracted=5,
        partitions=2, ends={1: 30, 0: 2_000}, sent={1: 5}, position=7,
    )  # fmt: skip
    text = pages.batch_details(Batch.of({row.step: row for row in rows}), [])
    assert re.findall(r"<td>(\w+)</td><td>[^<]*</td><td class=\"number\"></td><td>([^<]*)</td>", text) == [
        ("planned", "open before 1,200, corrected from 4, corrected to 7, to batch 3"),
        ("paired", "open before 1,200, compounds 5, retracted 5"),
        ("published", "compounds 5, position 7, partitions 2, end 0 2,000, end 1 30, partition 1 5"),
    ]


def events(batch):
    counts = {str(reason): batch.metrics[f"rejected_{reason}"] for reason in Reason}
    return counts | {name: batch.metrics[name] for name in ("left_only", "right_only")}


def test_exactly_as_many_as_are_shown_and_one_more():
    (batch,) = history(1)
    batch_id = batch.steps[PAIRED].batch_id
    found = [Offender(batch_id, "late", "t", 0, offset, 0) for offset in range(SHOWN + 1)]
    for many, more in ((SHOWN, False), (SHOWN + 1, True)):
        text = pages.batch_details(Batch.of(batch.steps, {"rejected_late": many}), found[:many])
        assert (text.count("<code>"), "And 1 more." in text, "more" in text) == (SHOWN, more, more)


def test_names_are_no_markup():
    (batch,) = history(1)
    evil = [Offender(batch.steps[PAIRED].batch_id, "<b>", "<script>alert(1)</script>", 0, 0, -5)]
    text = pages.batch_details(batch, evil)
    assert "<script" not in text and "<b>" not in text and "&lt;script&gt;" in text
    assert pages.details_script(7, '</script>"\n').startswith('batchDetails(7,"')
