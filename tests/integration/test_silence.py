"""One topic falls silent while the other goes on, and comes back: real topics, real tables, all four jobs."""

from __future__ import annotations

import html
import json
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from include.config.pipeline import Quality
from spark_jobs import report_quality
from spark_jobs.job.arguments import OUTCOME_VARIABLE
from spark_jobs.kafka.settings import kafka_settings
from tests.helpers.all_stages import run_all
from tests.helpers.pages import pages_folder
from tests.helpers.reading import table_rows

pytestmark = pytest.mark.integration

SILENCE_MS = 2_000


@pytest.fixture
def pipeline(pipeline):
    """With sessions that are over in no time, and little patience."""
    return replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100, quality=Quality(silence_ms=SILENCE_MS))


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """Where a job leaves word for Airflow's operator."""
    file = tmp_path / "outcome.json"
    monkeypatch.setenv(OUTCOME_VARIABLE, str(file))
    return file


def send(side, users, now=None):
    """An event of each user, stamped now if no time is given; and that time, their record timestamp, too."""
    producer, now = Producer(kafka_settings()), now or time.time_ns() // 1_000_000
    for user in users:
        body = {"user1": user, "user2": "v", "timestamp": now, side.payload: 1}
        producer.produce(side.topic, key=user, value=json.dumps(body), timestamp=now)
    assert producer.flush(20) == 0
    return now


def minute(ms):
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ms // 1_000))


def nothing_is_told(reported):
    """But that both may stand still: the jobs may take longer than that."""
    says, news, *_ = reported
    assert (news, "silent" in says) == ([], False), says


@pytest.mark.long
def test_a_silent_topic_is_told_of_by_name_until_it_comes_back(warehouse, pipeline, outcome):
    left, right = pipeline.sides
    folder = pages_folder(warehouse.root, pipeline.name)

    def report():
        """A batch by all jobs: what it says, what is news, its metrics, its page."""
        outcome.unlink(missing_ok=True)
        time.sleep(0.4)
        counts = run_all(warehouse)
        (row,) = (row for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == counts["batch_id"])
        news = json.loads(outcome.read_text()).get("news", []) if outcome.exists() else []
        return counts.get("says", ""), news, dict(row["metrics"]), (folder / "index.html").read_text()

    heard = send(left, ["a"])
    send(right, ["a"], heard)
    nothing_is_told(report())
    # A moment of it says nothing yet.
    send(right, ["b", "c"])
    nothing_is_told(report())
    send(right, ["d"])
    time.sleep(SILENCE_MS / 1_000 + 0.1)
    newest = send(right, ["e"])
    said, news, metrics, page = report()
    silent = f"{left.topic} has been silent since {minute(heard)}: "
    assert said == f"{silent}4 right_only since; {right.topic} goes on, up to {minute(newest)}"
    assert news == [said]
    assert (metrics["is_silent_left"], metrics["is_silent_right"], metrics["orphans_since_left"]) == (1, 0, 4)
    assert SILENCE_MS < metrics["silent_left"] < 60_000
    assert metrics["last_record_left"] == heard
    assert f"</span> {html.escape(said)}</h3>" in page and '<span class="badge warning">warning</span>' in page
    assert html.escape(said) in (folder / "batch-3-expectations.html").read_text()
    assert html.escape(said) in page.partition("laws hold")[2]
    assert said in (folder / "trend-data.js").read_text()
    assert "event_pairing_is_silent_left" in (folder / "metrics.prom").read_text()
    # It goes on, which is no news; an empty batch changes nothing.
    send(right, ["f"])
    said, news, metrics, _ = report()
    assert (said.startswith(f"{silent}5 right_only since"), news) == (True, [])
    said, news, metrics, _ = report()
    assert (said.startswith(f"{silent}5 right_only since"), news, metrics["landed"]) == (True, [], 0)
    send(right, ["g"], send(left, ["g"]))
    said, news, metrics, page = report()
    assert said == f"{left.topic} sends again: it was silent since {minute(heard)}, with 5 right_only"
    assert news == [said] and f'<p class="notice passed">{said}.</p>' in page
    assert (metrics["is_silent_left"], metrics["silent_left"], metrics["pair"]) == (0, 0, 1)
    # A try that died before it could tell is made up for by the next one, which has nothing to report.
    outcome.unlink()
    assert report_quality.main(warehouse) == {}
    told = json.loads(outcome.read_text())
    assert told["news"] == news and told["over"] == news
    nothing_is_told(report())
