"""The index and the metrics say what is so now, also if an acknowledgement and a report come at the same moment."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from include.config.health import Problem, State, acknowledge, read_state, write_state
from spark_jobs.quality import current_pages, pages
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.suite import Verdict
from spark_jobs.quality.trend import FILE as TREND
from spark_jobs.quality.trend import Trend
from spark_jobs.tables.ledger_rows import PAIRED
from tests.helpers.batch_history import history
from tests.helpers.pages import pages_in
from tests.unit.quality.test_pages import row

VERDICT = Verdict([], "<head></head>")
PROBLEM = Problem(
    name="orphan_ratio",
    severity="warning",
    text="too many <!-- /health --> orphans",
    batch=1,
    since=100.0,
    last=160.0,
    newest=1,
)
OPEN, TAKEN = 'acknowledged="false"} 100', 'acknowledged="true"} 100'


def test_the_index_is_the_newest_batch_whoever_writes_last(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_batch_page", lambda batch, *_, **__: f"page of {batch.batch_id}")
    place = pages_in(tmp_path / "quality")
    for batch_id, newest in ((9, 9), (10, 10), (9, 10), (11, 11)):
        page = Path(pages.write_pages(place, Batch(batch_id, 0, {PAIRED: row(batch_id)}, verdict=VERDICT), ""))
        current_pages.write_index(place, batch_id)
        assert (page.name, page.read_text()) == (f"batch-{batch_id}.html", f"page of {batch_id}")
        assert (tmp_path / "quality" / "index.html").read_text() == f"page of {newest}"


class Place:
    """The pages of a pipeline whose first batch has a problem."""

    def __init__(self, folder):
        folder.mkdir(exist_ok=True)
        self.folder, self.pages, self.batches = folder, pages_in(folder), history(3)
        self.report(1)

    def report(self, number):
        """What a report does beside the tables."""
        trend = Trend("calls")
        trend.add(self.batches[:number])
        (self.folder / TREND).write_text(trend.text())
        state = State(pipeline="calls", at=160.0, batch=self.batches[number - 1].batch_id, problems=(PROBLEM,))
        write_state(self.pages, state)
        batch = replace(self.batches[number - 1], verdict=VERDICT)
        pages.write_pages(self.pages, batch, "", read_state(self.pages))
        current_pages.write_index(self.pages, batch.batch_id, trend)

    def acknowledge(self):
        acknowledge(self.pages, "orphan_ratio", "ann", "it is being mended")
        current_pages.write_current(self.pages)

    def read(self, name):
        return (self.folder / name).read_text()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_an_acknowledgement_is_seen_at_once(place):
    assert OPEN in place.read("metrics.prom") and "took it over" not in place.read("index.html")
    place.acknowledge()
    assert TAKEN in place.read("metrics.prom") and 'event_pairing_state{pipeline="calls"} 0' in place.read("metrics.prom")
    index = place.read("index.html")
    assert "calls is healthy, 1 problem taken over" in index and "ann took it over" in index
    # What a text says ends nothing.
    assert index.count("<!-- /health -->") == 1 and index.rstrip().endswith("</html>")
    # The rest of the page is that of its batch, which says how it was then.
    number = place.batches[0].batch_id
    assert index.partition("<main>")[0] == place.read(f"batch-{number}.html").partition("<main>")[0]
    assert "took it over" not in place.read(f"batch-{number}.html")


def test_a_page_that_the_state_is_not_of_stays_as_it_is(place):
    pages.write_unjudged(place.pages, "calls", 9, ValueError("no"))
    current_pages.write_index(place.pages, 9)
    place.acknowledge()
    assert place.read("index.html") == place.read("batch-9.html") and TAKEN in place.read("metrics.prom")


def test_without_a_report_there_is_nothing_to_write(tmp_path):
    current_pages.write_current(pages_in(tmp_path))
    assert [*tmp_path.iterdir()] == []


STEPS = ("read_state", "read_text", "write_text", "etag", "etags")


def overtaken(monkeypatch, moment, mine, other):
    """Does `mine`, with all of `other` before its access number `moment` to the store; returns whether it has so many."""
    left = [moment]

    def overtaking(step):
        def taken(*given):
            left[0] -= 1
            if left[0] == -1:
                other()
            return step(*given)

        return taken

    with monkeypatch.context() as patch:
        for name in STEPS:
            patch.setattr(current_pages, name, overtaking(getattr(current_pages, name)))
        mine()
    return left[0] < 0


@pytest.mark.parametrize("is_report", [False, True], ids=["an acknowledgement", "a report"])
def test_whoever_is_overtaken_at_any_moment_both_are_seen(is_report, tmp_path, monkeypatch):
    moment, goes_on = 0, True
    while goes_on:
        place = Place(tmp_path / str(moment))
        both = [place.acknowledge, partial(place.report, 2)]
        goes_on = overtaken(monkeypatch, moment, *(reversed(both) if is_report else both))
        if not goes_on:
            break
        number = place.batches[1].batch_id
        index, metrics = place.read("index.html"), place.read("metrics.prom")
        assert f"When batch {number} was reported" in index and "ann took it over" in index, moment
        assert f'event_pairing_batch{{pipeline="calls",kind="live"}} {number}' in metrics and TAKEN in metrics, moment
        moment += 1
    assert moment > 10
