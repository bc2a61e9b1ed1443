"""The trend's file: added to, never read anew as long as it is whole; and what it says of a batch."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from spark_jobs.quality import trend as trends
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import FAILED, PASSED, WARNED, Breakdown
from spark_jobs.quality.trend import Trend
from spark_jobs.quality.trend_files import write_trend
from spark_jobs.tables.ledger_rows import PAIRED, PUBLISHED
from tests.helpers import batch_history
from tests.helpers.batch_history import history
from tests.helpers.pages import pages_in


def never():
    raise AssertionError("the tables were read, though there is a trend")


def told(folder):
    text = (folder / trends.FILE).read_text()
    return json.loads(text.removeprefix("trend=").removesuffix(";\n"))


def id_of(batch):
    return batch.steps[PAIRED].batch_id


def test_batches_are_added_to_what_is_there(tmp_path):
    batches = history(200)
    write_trend(pages_in(tmp_path), "calls", batches[:1], list)
    for before, after in pairwise((1, 2, 150, 200)):
        write_trend(pages_in(tmp_path), "calls", batches[before:after], never)
    found = told(tmp_path)
    assert found["batch"] == list(range(1, 201))
    assert found["values"]["landed"] == [round(batch.metrics["landed"]) for batch in batches]
    assert {len(column) for column in found["values"].values()} == {200}
    back = {name: 199 - each for each, name in ((batch_history.BROKEN, "failed"), (batch_history.WARNED_OF, "warned"))}
    states = {PASSED: 198, WARNED: 1, FAILED: 1}
    assert {state: found["state"].count(state) for state in states} == states
    assert (found["state"][back["failed"]], found["state"][back["warned"]]) == (FAILED, WARNED)


def test_replays_rewinds_and_settings_are_told(tmp_path):
    batches = history(200)
    write_trend(pages_in(tmp_path), "calls", batches, list)
    found = told(tmp_path)
    replay, rewind, change = (199 - back for back in (batch_history.REPLAYED, batch_history.REWOUND, batch_history.RESET))
    assert [index for index, kind in enumerate(found["kind"]) if kind] == [rewind, replay]
    assert found["to"][rewind] == batches[rewind].steps[PAIRED].rewind.to_batch
    assert [index for index, (one, two) in enumerate(pairwise(found["settings"]), 1) if one != two] == [change]
    assert [found["hashes"][each] for each in found["settings"]] == [batch.steps[PAIRED].config_hash for batch in batches]
    assert found["values"]["landed_seconds"][replay] is None, "a replay lands nothing"


def test_a_trend_made_anew_says_what_was_removed_before_it(tmp_path):
    batches = history(20)
    write_trend(pages_in(tmp_path), "calls", batches[10:19], list, lambda: 10)
    assert told(tmp_path)["removed"] == 10
    write_trend(pages_in(tmp_path), "calls", batches[19:], never, never)
    assert (told(tmp_path)["removed"], told(tmp_path)["batch"]) == (10, list(range(11, 21)))


def test_a_trend_of_an_earlier_version_is_added_to(tmp_path):
    write_trend(pages_in(tmp_path), "calls", history(2)[:1], list)
    found = told(tmp_path)
    del found["removed"]
    (tmp_path / trends.FILE).write_text(f"trend={json.dumps(found)};\n")
    assert write_trend(pages_in(tmp_path), "calls", history(2)[1:], never, never).removed == 0


def test_the_same_batches_again_are_there_once(tmp_path):
    """A report that dies behind its pages is made again."""
    batches = history(5)
    write_trend(pages_in(tmp_path), "calls", batches[:4], list)
    again = [replace(batch, state=FAILED) for batch in batches[2:]]
    write_trend(pages_in(tmp_path), "calls", again, never)
    assert (told(tmp_path)["batch"], told(tmp_path)["state"]) == ([1, 2, 3, 4, 5], [PASSED, PASSED, FAILED, FAILED, FAILED])


@pytest.mark.parametrize("broken", ["", "trend={", 'trend={"format":1};\n', "trend=[];\n", "cut", b"\xff"])
def test_a_file_that_cannot_be_understood_is_made_anew(broken, tmp_path):
    batches = history(20)
    write_trend(pages_in(tmp_path), "calls", batches[:10], list)
    file = tmp_path / trends.FILE
    whole = file.read_text()
    text = whole.replace('"batch":[1,', '"batch":[') if broken == "cut" else broken
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    write_trend(pages_in(tmp_path), "calls", batches[10:], lambda: batches[:10])
    assert told(tmp_path)["batch"] == list(range(1, 21))


def test_only_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(trends, "KEPT", 7)
    batches = history(20)
    for batch in batches:
        write_trend(pages_in(tmp_path), "calls", [batch], list)
    found = told(tmp_path)
    assert found["batch"] == list(range(14, 21))
    assert {len(column) for column in found["values"].values()} == {7}


def test_metrics_that_come_later_and_histograms(tmp_path):
    """Rows of older batches lack what newer ones have; a histogram is no line in a chart."""
    one, two = history(2)
    two = replace(
        two,
        metrics={**two.metrics, "late_healable": 3.0, "silence:quiet_ms_left": 1.0},
        breakdowns=[Breakdown("miss_left", 4, 100)],
    )
    write_trend(pages_in(tmp_path), "calls", [one], list)
    write_trend(pages_in(tmp_path), "calls", [two], never)
    values = told(tmp_path)["values"]
    assert values["late_healable"] == [None, 3]
    assert not [name for name in values if ":" in name or name.startswith("miss_")]


def test_what_the_ledger_tells():
    (batch,) = history(1)
    rows = batch.steps
    found = trends.ledger_values(rows)
    assert found["clock_lag_seconds"] == (rows[PAIRED].wall_time - rows[PAIRED].clock) / 1000 == 1
    assert found["delay_seconds"] == pytest.approx(
        (rows[PUBLISHED].finished_at - rows["planned"].started_at).total_seconds(), abs=0.001
    )
    assert found["planned_seconds"] == 0.4
    without = Batch.of({step: row for step, row in rows.items() if step != PUBLISHED}, {}, PASSED)
    assert "delay_seconds" not in trends.ledger_values(without.steps)


def test_of_no_batch_nothing_is_told(tmp_path):
    assert Trend.load(pages_in(tmp_path), "calls") is None
    assert write_trend(pages_in(tmp_path), "calls", [], list).newest() == {}
