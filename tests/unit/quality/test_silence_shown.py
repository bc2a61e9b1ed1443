"""A silent side on the pages, in the trend, the metrics text and the alerts; also where the topic's name is hostile."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.airflow import alerts
from include.airflow import operators as pairing_operator
from include.config.pipeline import PIPELINES, Quality, Side
from spark_jobs.quality import metrics_text, pages, suite
from spark_jobs.quality import trend as trends
from spark_jobs.quality.batch import Batch as StoredBatch
from spark_jobs.quality.facts import Facts
from spark_jobs.quality.metrics import rewind_targets
from spark_jobs.quality.silence import checked_sentences, notices, silence_metrics, state_of
from spark_jobs.quality.trend import Trend
from spark_jobs.quality.trend_files import write_trend
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED
from spark_jobs.tables.records import REPLAY, REWIND
from tests.helpers.alert_listener import listening
from tests.helpers.ledger_rows import ledger_row, ledger_rows
from tests.helpers.pages import pages_in
from tests.helpers.silent_history import HOSTILE, silent_history
from tests.helpers.timeline import CALLS
from tests.unit.quality.test_pages import OLD
from tests.unit.quality.test_silence import BOTH, QUALITY, Batch, play
from tests.unit.quality.test_suite import GOOD

SILENT = play(BOTH, Batch(33, right=(1, 32), alone=(0, 312)))[-1]
NAMED = replace(CALLS, left=Side(HOSTILE, "analytics"))
SAID = checked_sentences(notices(NAMED, SILENT))


def test_the_page_begins_with_the_sentence(tmp_path):
    row = ledger_row(7, PAIRED, pipeline=NAMED, config_hash="ab")
    verdict = suite.Verdict(
        [suite.JudgedCheck(check, False, 1.0) for check in suite.checks(QUALITY, SILENT, SAID)], "<head></head>"
    )
    batch = StoredBatch(7, 0, {PAIRED: row}, OLD | SILENT | {"compounds": 312.0}, verdict=verdict)
    page = Path(pages.write_pages(pages_in(tmp_path), batch, "")).read_text()
    sentence = html.escape(SAID["silent_left"])
    assert sentence.startswith("&lt;img") and page.count(sentence) == 2, "above, and with its check"
    assert page.index(sentence) < page.index("laws hold") < page.rindex(sentence)
    assert HOSTILE not in page


def test_great_expectations_says_it_and_does_not_run_it():
    verdict = suite.judge(GOOD | SILENT, QUALITY, SAID)
    (judged,) = (judged for judged in verdict.checks if not judged.passed)
    assert (judged.check.metric, judged.check.severity) == ("silent_left", suite.WARNING)
    assert judged.check.sentence == SAID["silent_left"] and verdict.failed == []
    page = pages.expectations_page(verdict.page, "calls: batch 7", "batch-7.html", notices(NAMED, SILENT))
    assert "has been silent since 2026-01-31 11:59 UTC: 312 right_only since" in page
    assert "<img" not in page


def test_the_trend_has_the_sentence_while_it_lasts_and_its_begin_and_end(tmp_path):
    batches = silent_history(20, 12, 16)
    write_trend(pages_in(tmp_path), "calls", batches[:15], list)
    trend = Trend.load(pages_in(tmp_path), "calls")
    assert len(trend.now) == 1 and trend.now[0].startswith(f"{HOSTILE} has been silent since")
    write_trend(pages_in(tmp_path), "calls", batches[15:], list)
    text = (tmp_path / trends.FILE).read_text()
    found = json.loads(text.removeprefix("trend=").removesuffix(";\n"))
    assert {row: said.removeprefix(HOSTILE)[:12] for row, said in enumerate(found["said"]) if said} == {
        11: " has been si", 15: " sends again",
    }  # fmt: skip
    assert found["now"] == []
    assert found["values"]["is_silent_left"] == [0] * 11 + [1] * 4 + [0] * 5


def test_the_metrics_text_has_what_an_alert_of_prometheus_needs():
    trend = Trend("calls")
    trend.add(silent_history(14, 12, 99))
    lines = metrics_text.exposition(trend).splitlines()
    assert 'event_pairing_is_silent_left{pipeline="calls"} 1' in lines
    assert 'event_pairing_is_silent_right{pipeline="calls"} 0' in lines
    seconds = {line.split("{")[0]: float(line.split()[-1]) for line in lines if "_seconds{" in line}
    assert seconds["event_pairing_silent_left_seconds"] > QUALITY.silence_ms / 1000
    assert seconds["event_pairing_last_record_right_seconds"] > seconds["event_pairing_last_record_left_seconds"] + 1_800


class _Rows(SimpleNamespace):
    """A Warehouse's metrics rows."""

    def small_rows(self, table, first, last):
        return [row for row in self.rows if first <= row["batch_id"] <= last]


def test_a_replay_hands_on_what_it_goes_on_from_and_is_not_judged():
    replay = StoredBatch.of({row.step: row for row in ledger_rows(7, (PLANNED, PAIRED), REPLAY)})
    carried = silence_metrics(replay, Facts({}), {}, SILENT, QUALITY)
    assert [state_of(carried, side) for side in ("left", "right")] == [state_of(SILENT, side) for side in ("left", "right")]
    assert notices(CALLS, carried) == []
    assert [check for check in suite.checks(QUALITY, carried) if "silent" in check.metric] == []
    assert silence_metrics(replay, Facts({}), {}, SILENT, Quality(silence_ms=None)) == {}


def test_a_rewind_beyond_the_history_still_knows_its_target():
    rows = [
        {
            "batch_id": number,
            "judged_at": datetime(2026, 1, 1, tzinfo=UTC),
            "metrics": {"wall_time": 1.0, "n": number},
            "breakdowns": [],
            "success": True,
        }
        for number in (3, 60)
    ]
    warehouse = _Rows(rows=rows)
    rewind = StoredBatch(61, 1, {PAIRED: ledger_row(61, PAIRED, REWIND, to_batch=3)})
    recent = [StoredBatch(60, 1)]
    assert [past.metrics["n"] for past in rewind_targets(warehouse, [rewind], recent)] == [3]
    assert rewind_targets(warehouse, [rewind], [StoredBatch(3, 1), *recent]) == [], "it is there already"
    assert rewind_targets(warehouse, [StoredBatch(61, 1, {PAIRED: ledger_row(61, PAIRED)})], recent) == []


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_news_are_told_by_the_address_of_alerts_however_the_job_ends(ends, monkeypatch, tmp_path):
    """SparkSubmitOperator is stood in for by what the job leaves."""
    line = (
        "analyticsTopic has been silent since 2026-01-31 14:05 UTC: 312 right_only since; metricsTopic goes on, up to 14:40"
    )

    def submitted(operator, context):
        with open(pairing_operator.os.environ["PAIRING_OUTCOME"], "w") as file:
            json.dump({"ok": ends == "well", "news": [line], "error": "no", "retry": False, "counts": {"batch_id": 7}}, file)
        if ends == "badly":
            raise pairing_operator.AirflowException("ended")

    for name in ("PYTHONPATH", "PAIRING_KAFKA", "PAIRING_OUTCOME", "PAIRING_TASK_LOCK"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    monkeypatch.setattr(pairing_operator.SparkSubmitOperator, "execute", submitted)
    monkeypatch.setattr(pairing_operator, "all_kafka_settings", lambda _: {})
    monkeypatch.setattr(pairing_operator, "note_batch", lambda *_: None)
    operator = pairing_operator.PairingJobOperator(job="report_quality", pipeline_file=PIPELINES / "calls.yaml")
    task = SimpleNamespace(dag_id="calls", run_id="r1", task_id="report_quality")
    with listening() as (address, heard):
        monkeypatch.setenv(alerts.URL_VARIABLE, address)
        try:
            operator.execute({"ti": task, "params": {}, "outlet_events": {}})
        except pairing_operator.AirflowException:
            assert ends == "badly"
    assert heard == [
        {
            "text": f"calls: {line}", "dag": "calls", "run": "r1", "task": "report_quality", "severity": "warning", "reason": line,
            "batch": 7, "runbook": "docs/runbooks/topic-silent.md",
        }
    ]  # fmt: skip
