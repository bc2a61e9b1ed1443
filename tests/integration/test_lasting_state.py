"""The state of a pipeline outlives the batch that made it: orphans warn, an empty batch changes nothing, a good one heals. All four jobs."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from include.airflow.pages import runbook
from include.config.health import FAILED, HEALTHY, WARNING, Lag, read_state
from include.config.pipeline import Quality
from spark_jobs import acknowledge, land_events, pair_events, publish_compounds, report_quality
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.arguments import OUTCOME_VARIABLE
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.stages.report import BrokenBatch
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import run_all
from tests.helpers.pages import pages_folder, pages_in

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(pipeline):
    """With sessions that are over in no time, and at most half of the compounds one-sided."""
    quality = Quality(max_orphan_ratio=0.5, silence_ms=None)
    return replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100, quality=quality)


def send(sides, users):
    producer, now = Producer(kafka_settings()), time.time_ns() // 1_000_000
    for side in sides:
        for user in users:
            body = {"user1": user, "user2": "v", "timestamp": now, side.payload: 1}
            producer.produce(side.topic, key=user, value=json.dumps(body), timestamp=now)
    assert producer.flush(20) == 0
    time.sleep(0.3)
    return now


def of_metrics(folder, name):
    lines = (folder / "metrics.prom").read_text().splitlines()
    return {line.split("{")[1].split("}")[0]: float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")}


def test_orphans_warn_until_a_good_batch_heals_them(warehouse, pipeline, tmp_path, monkeypatch, capsys):
    folder, outcome = pages_folder(warehouse.root, pipeline.name), tmp_path / "outcome.json"
    monkeypatch.setenv(OUTCOME_VARIABLE, str(outcome))

    def batch():
        """All jobs: what the run note says, the news, the state."""
        outcome.unlink(missing_ok=True)
        says = run_all(warehouse).get("says", "")
        return (
            says,
            json.loads(outcome.read_text()).get("news", []) if outcome.exists() else [],
            read_state(pages_in(folder)),
        )

    orphans = [f"o{number}" for number in range(12)]
    send(pipeline.sides[:1], orphans)
    text = "12 of 12 compounds of batch 1 are one-sided: 100.0% where quality.max_orphan_ratio allows 50.0%"
    says, news, state = batch()
    assert says == f"warning since batch 1: {text}" and news == [text]
    assert json.loads(outcome.read_text())["over"] == []
    assert (state.verdict, [each.name for each in state.problems]) == (WARNING, ["orphan_ratio"])
    assert state.problems[0].runbook == "docs/runbooks/orphans.md"
    assert (state.windows["1h"].left_only, state.windows["7d"].landed, state.hours[-1].left_only) == (12, 12, 12)
    assert '<span class="badge warning">warning</span>' in (folder / "index.html").read_text()
    assert " warning </span>" in " ".join((folder / "batch-1-expectations.html").read_text().split())
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith(f"batch 1: warning; warning since batch 1: {text}; quality report: ")

    # Five minutes later nothing has come.
    says, news, state = batch()
    assert says == f"warning since batch 1: {text}" and news == []
    assert (state.verdict, state.batch, state.problems[0].newest) == (WARNING, 2, 1)
    index = (folder / "index.html").read_text()
    assert (
        '<span class="badge passed">passed</span>' in index
        and text in index
        and "one-sided compounds stay below" not in index
    )
    assert list(of_metrics(folder, "event_pairing_state").values()) == [1]
    assert list(of_metrics(folder, "event_pairing_check_state").values()) == [0]
    name = f'pipeline="{pipeline.name}"'
    assert of_metrics(folder, "event_pairing_in_window")[f'{name},window="1h",of="left_only"'] == 12
    assert of_metrics(folder, "event_pairing_all_batches_total")[f'{name},of="left_only"'] == 12

    # Somebody takes it over; the state of a file that is gone is made anew from the tables, with that.
    given = Namespace(list=False, problem="orphan_ratio", by="ann", note="the producer is being mended")
    (line,) = acknowledge.main(pages_in(folder), given)
    assert line == f"orphan_ratio of batch 1 is acknowledged by ann: {text}"
    kept = read_state(pages_in(folder))
    assert kept.verdict == HEALTHY
    assert list(of_metrics(folder, "event_pairing_state").values()) == [0]
    assert "ann took it over" in (folder / "index.html").read_text()
    (folder / "state.json").unlink()
    with pytest.raises(NeedsOperator, match="there is no problem 'orphan_ratio' to acknowledge; the pipeline has: none"):
        acknowledge.main(pages_in(folder), given)
    report_quality.main(warehouse, again=True)
    anew = read_state(pages_in(folder))
    assert (anew.problems, anew.windows, anew.hours) == (kept.problems, kept.windows, kept.hours)
    assert (
        acknowledge.main(pages_in(folder), Namespace(list=True, problem=None))[0]
        == f"{pipeline.name}: healthy after batch 2"
    )

    # A few pairs say little; enough of them heal it.
    send(pipeline.sides, ["p1", "p2"])
    says, news, state = batch()
    assert (says, news, [each.calm for each in state.problems]) == ("", [], [2])
    send(pipeline.sides, [f"q{number}" for number in range(9)])
    says, news, state = batch()
    assert (says, news, state.problems) == ("", [f"over: {text}"], ())
    assert (state.windows["1h"].pair, state.verdict) == (11, HEALTHY)
    # A second try has nothing to report, and tells what the first one may have died before telling.
    outcome.unlink()
    assert report_quality.main(warehouse) == {}
    told = json.loads(outcome.read_text())
    assert told["news"] == news and told["over"] == news


@pytest.mark.long
def test_what_waits_is_said_and_a_check_that_is_to_fail_fails_the_run(warehouse, pipeline):
    folder = pages_folder(warehouse.root, pipeline.name)
    strict = replace(pipeline, quality=replace(pipeline.quality, severities=(("orphan_ratio", "fail"),)))
    warehouse = Warehouse(warehouse.root, strict, warehouse.spark)
    now = send(pipeline.sides[:1], [f"o{number}" for number in range(4)])
    land_events.main(warehouse, 2, ())
    for job in (pair_events, publish_compounds, report_quality):
        job.main(warehouse)
    state = read_state(pages_in(folder))
    assert state.lag == Lag(unread=2, oldest_unread=now / 1_000, oldest_open=now / 1_000) and state.verdict == HEALTHY
    with pytest.raises(BrokenBatch) as broken:
        run_all(warehouse)
    line = str(broken.value)
    assert line.startswith("checks failed that quality.severities sets to fail: batch 2: one-sided compounds stay below")
    assert runbook(line) == "docs/runbooks/orphans.md"
    state = read_state(pages_in(folder))
    assert (state.verdict, state.problems[0].severity, state.news, state.lag) == (FAILED, "failed", (), Lag())
    assert '<span class="badge critical">failed</span>' in (folder / "index.html").read_text()
    # It stays red until it is healed, or somebody takes it over.
    with pytest.raises(BrokenBatch, match="batch 2"):
        report_quality.main(warehouse)
    assert run_all(warehouse)["says"].startswith("failed since batch 2: 4 of 4 compounds")
