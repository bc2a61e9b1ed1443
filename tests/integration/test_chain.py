"""Pipelines that chain: what the first one corrects and takes back, the second one understands, from Kafka to Kafka.

Everything is done twice: by the job itself, which has few rows, and by Spark's workers.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from include.local.broker import create_topics
from spark_jobs import reconcile, report_quality
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.tables.schemas import COMPOUNDS, METRICS
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers import stream_clock
from tests.helpers.chained import Traffic, chain, heal, run, state, words
from tests.helpers.comparing import differences
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

begun = stream_clock.begun


@pytest.fixture
def three(broker, spark, request, tmp_path, monkeypatch, begun):
    """The first pipeline, the second one, the second one by Spark's workers, and what sends to them."""
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    first, second = chain(request.node)
    spread = replace(second, name=f"{second.name}s", output_topic=f"{second.output_topic}-spread")
    names = {topic for each in (first, second, spread) for topic in each.topics}
    create_topics(broker.bootstrap, dict.fromkeys(names, 1), {"retention.ms": "-1"})
    warehouses = [Warehouse(str(tmp_path / "warehouse"), each, spark) for each in (first, second, spread)]
    return *warehouses, Traffic(broker, first, second, begun)


def both(monkeypatch, second, spread, job):
    """What the job answers for the second pipeline; for the other one it answers the same."""
    answer = job(second)
    with monkeypatch.context() as patch:
        patch.setenv(FEW_VARIABLE, "0")
        assert job(spread) == answer
    return answer


def counted(found):
    names = ("revised", "superseded", "duplicate", "retraction", "not_compound", "late")
    return {name: found[name] for name in names if found.get(name)}


def test_corrections_and_retractions_go_through_the_chain(three, broker, monkeypatch):
    first, second, spread, traffic = three
    # ann lacks a callee and cat a caller: these come late.
    traffic.send("a0:ann a100:bob m120:bob m300:cat a2000:tick m2000:tick s10:ann s110:bob s305:cat s2000:tick")
    run(first)
    found = both(monkeypatch, second, spread, run)
    assert (found["accepted"], found["open_after"]) == (7, 7)

    # Corrected while its event waits: as if the new revision had come alone.
    traffic.send("m20:ann a4000:tick m4000:tick s4000:tick")
    run(first)
    assert len(heal(first)) == 1
    traffic.repeat(first.pipeline.output_topic, consume(broker.bootstrap, first.pipeline.output_topic)[1])
    found = both(monkeypatch, second, spread, run)
    assert counted(found) == {"revised": 1, "superseded": 1, "duplicate": 1}
    healthy = ["- m300:cat s305:cat", "a0:ann m20:ann s10:ann", "a100:bob m120:bob s110:bob"]
    assert words(state(broker, second.pipeline.output_topic)) == healthy

    # Corrected and taken back when all is published: healed by the replay that this asks for.
    traffic.send("a310:cat a6000:tick m6000:tick s6000:tick")
    run(first)
    assert len(heal(first)) == 1
    found = both(monkeypatch, second, spread, run)
    assert counted(found) == {"revised": 1, "retraction": 1, "late": 1}
    assert len(both(monkeypatch, second, spread, heal)) == 1
    assert both(monkeypatch, second, spread, heal) == []
    healed = sorted([*healthy[1:], "a310:cat m300:cat s305:cat", "a2000:tick m2000:tick s2000:tick"])
    assert words(state(broker, second.pipeline.output_topic)) == healed
    assert differences(broker.bootstrap, second.root, second.pipeline, spread.pipeline) == []

    # Every record is in one count, and every compound names the revision that it is made of.
    report_quality.main(second)
    metrics = {row["batch_id"]: dict(row["metrics"]) for row in table_rows(second, METRICS)}
    assert [metrics[2][f"rejected_{name}"] for name in ("superseded", "duplicate", "retraction")] == [1, 1, 0]
    assert [metrics[3][name] for name in ("revised", "rejected_retraction", "rejected_late")] == [1, 1, 1]
    assert reconcile.main(second).offenders == []
    sources = {(row["user1"], row["left_source_revision"]) for row in table_rows(second, COMPOUNDS)}
    assert sources == {("ann", 1), ("bob", 0), ("cat", 0), ("tick", 0)}
