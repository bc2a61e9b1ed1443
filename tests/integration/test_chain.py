"""Pipelines that chain: what the first one corrects and takes back, the second one understands, from Kafka to Kafka."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from include.local.broker import create_topics
from spark_jobs import publish_compounds, reconcile, replay_late, report_quality
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, REJECTED
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers import stream_clock
from tests.helpers.all_stages import land
from tests.helpers.chained import Traffic, chain, expected, heal, run, state, with_topic, words
from tests.helpers.comparing import differences
from tests.helpers.reading import consume, table_rows
from tests.helpers.stream_clock import killed_at, stories
from tests.integration.test_rejected_topic import letters
from tests.integration.test_rejected_topic import rejected as rejected_events

pytestmark = pytest.mark.integration

begun = stream_clock.begun


@pytest.fixture
def three(broker, spark, request, tmp_path, monkeypatch, begun):
    """The first pipeline, the second one, the second one by Spark's workers, and what sends to them."""
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    first, second = chain(request.node)
    spread = replace(second, name=f"{second.name}s", output_topic=f"{second.output_topic}-spread")
    names = {topic for each in (first, second, spread) for topic in (*each.input_topics, each.output_topic)}
    create_topics(broker.bootstrap, dict.fromkeys(names, 1), {"retention.ms": "-1"})
    warehouses = [Warehouse(str(tmp_path / "warehouse"), each, spark) for each in (first, second, spread)]
    return *warehouses, Traffic(broker, first, second, begun)


def counted(found):
    names = ("revised", "superseded", "duplicate", "retraction", "not_compound", "late")
    return {name: found[name] for name in names if found.get(name)}


def corrected_in_time_and_too_late(broker, first, second, traffic, each):
    """each(job): what the job answers for the second pipeline."""
    # ann lacks a callee and cat a caller: these come late.
    traffic.send("a0:ann a100:bob m120:bob m300:cat a2000:tick m2000:tick s10:ann s110:bob s305:cat s2000:tick")
    run(first)
    found = each(run)
    assert (found["accepted"], found["open_after"]) == (7, 7)

    # Corrected while its event waits: as if the new revision had come alone. A mirror repeats a message.
    traffic.send("m20:ann a4000:tick m4000:tick s4000:tick")
    run(first)
    assert len(heal(first)) == 1
    traffic.repeat(first.pipeline.output_topic, consume(broker.bootstrap, first.pipeline.output_topic)[1])
    found = each(run)
    assert counted(found) == {"revised": 1, "superseded": 1, "duplicate": 1}
    healthy = ["- m300:cat s305:cat", "a0:ann m20:ann s10:ann", "a100:bob m120:bob s110:bob"]
    assert words(state(broker, second.pipeline.output_topic)) == healthy

    # Corrected and taken back when all is published: healed by the replay that this asks for.
    traffic.send("a310:cat a6000:tick m6000:tick s6000:tick")
    run(first)
    assert len(heal(first)) == 1
    found = each(run)
    assert counted(found) == {"revised": 1, "retraction": 1, "late": 1}
    assert len(each(heal)) == 1
    assert each(heal) == []
    healed = sorted([*healthy[1:], "a310:cat m300:cat s305:cat", "a2000:tick m2000:tick s2000:tick"])
    assert words(state(broker, second.pipeline.output_topic)) == healed


@pytest.mark.long
def test_corrections_and_retractions_go_through_the_chain(three, broker):
    first, second, _, traffic = three
    corrected_in_time_and_too_late(broker, first, second, traffic, lambda job: job(second))


@pytest.mark.long
def test_both_ways_give_the_same_and_every_record_is_in_one_count(three, broker, monkeypatch):
    first, second, spread, traffic = three

    def both(job):
        answer = job(second)
        with monkeypatch.context() as patch:
            patch.setenv(FEW_VARIABLE, "0")
            assert job(spread) == answer
        return answer

    corrected_in_time_and_too_late(broker, first, second, traffic, both)
    assert differences(broker.bootstrap, second.root, second.pipeline, spread.pipeline) == []
    report_quality.main(second)
    metrics = {row["batch_id"]: dict(row["metrics"]) for row in table_rows(second, METRICS)}
    assert [metrics[2][f"rejected_{name}"] for name in ("superseded", "duplicate", "retraction")] == [1, 1, 0]
    assert [metrics[3][name] for name in ("revised", "rejected_retraction", "rejected_late")] == [1, 1, 1]
    assert reconcile.main(second).offenders == []
    sources = {(row["user1"], row["left_source_revision"]) for row in table_rows(second, COMPOUNDS)}
    assert sources == {("ann", 1), ("bob", 0), ("cat", 0), ("tick", 0)}
    told = stories(second)
    assert any("as superseded: a later revision of the same compound has landed" in line for line in told["ann"])
    assert any("as retraction: it takes a compound of another pipeline back" in line for line in told["cat"])


@pytest.mark.long
def test_an_event_that_was_superseded_while_it_waited_is_a_dead_letter(three, broker):
    """Its raw row is that of an earlier batch."""
    first, second, _, traffic = three
    second = with_topic(second, broker, "rejected", 2)
    traffic.send("a100:ann m120:ann a2000:tick m2000:tick s110:ann s2000:tick")
    run(first)
    run(second)
    # Nearer to the callee than the other caller.
    traffic.send("a120:ann a4000:tick m4000:tick s4000:tick")
    run(first)
    assert len(heal(first)) == 1
    run(second)
    assert letters(second, broker) == rejected_events(second)
    assert "superseded" in {reason for _, reason, _ in letters(second, broker)}


@pytest.mark.long
def test_a_retraction_alone_takes_an_event_back_in_time_and_too_late(three, broker):
    """The first pipeline publishes pairs on one topic and orphans on another one, so a pair that becomes an orphan is only taken back."""
    first, second, _, traffic = three
    first = with_topic(first, broker, "orphans", 1)
    # The callee is nearer to the caller that comes late.
    traffic.send("a0:ann m90:ann a500:bob m590:bob a2000:tick m2000:tick s10:ann s510:bob s2000:tick")
    run(first)
    run(second)
    traffic.send("a90:ann a4000:tick m4000:tick s4000:tick")
    run(first)
    assert len(heal(first)) == 1
    run(second)
    traffic.send("a590:bob a6000:tick m6000:tick s6000:tick")
    run(first)
    assert len(heal(first)) == 1
    run(second)
    heal(second)
    last = [word for word in expected(broker, first.pipeline, second.pipeline) if "tick" not in word]
    assert [word for word in words(state(broker, second.pipeline.output_topic)) if "tick" not in word] == last


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_ends_as_the_rule_on_the_final_state_of_the_first(three, broker, seed):
    """Events of three sides, many of them late, any cuts into batches, replays of both pipelines whenever they ask for them."""
    first, second, _, traffic = three
    drawn, has_tables = random.Random(seed), False
    for round_number in range(4):
        at = round_number * 2_000
        sent = [f"{drawn.choice('ams')}{drawn.randrange(at + 900)}:{drawn.choice('xyz')}" for _ in range(12)]
        traffic.send(f"{' '.join(sent)} a{at + 2000}:tick m{at + 2000}:tick s{at + 2000}:tick")
        if drawn.random() < 0.7:
            run(first)
            heal(first)
        if drawn.random() < 0.7:
            run(second)
            has_tables = True
        if drawn.random() < 0.5 and has_tables:
            heal(second)
    traffic.send("a20000:tick m20000:tick s20000:tick")
    run(first)
    heal(first)
    traffic.send("a30000:tick m30000:tick s30000:tick")
    run(first)
    run(second)
    traffic.send("a40000:tick m40000:tick s40000:tick")
    run(first)
    run(second)
    heal(second)
    assert heal(second) == []

    def calls(of):
        return Counter(word for word in of if "tick" not in word)

    assert calls(words(state(broker, second.pipeline.output_topic))) == calls(
        expected(broker, first.pipeline, second.pipeline)
    )
    assert {row["reason"] for row in table_rows(second, REJECTED)} >= {"late"}
    assert reconcile.main(second).offenders == []


@pytest.mark.long
def test_killed_between_its_steps_the_chain_goes_on(three, broker, monkeypatch):
    first, second, _, traffic = three
    traffic.send("a0:ann m300:cat a2000:tick m2000:tick s10:ann s305:cat s2000:tick")
    run(first)
    run(second)
    traffic.send("m20:ann a310:cat a4000:tick m4000:tick s4000:tick")
    run(first)
    heal(first)
    with killed_at(monkeypatch, "after_raw_left"):
        land(second)
    # The next job finishes the batch that was begun, and dies of that.
    with killed_at(monkeypatch, "after_rejected_events"):
        land(second)
    run(second)
    publish_compounds.main(second)
    assert replay_late.main(second)["replays"] == replay_late.main(second)["replays"]
    heal(second)
    traffic.send("a6000:tick m6000:tick s6000:tick")
    run(first)
    run(second)
    last = [word for word in words(state(broker, second.pipeline.output_topic)) if "tick" not in word]
    assert last == ["a0:ann m20:ann s10:ann", "a310:cat m300:cat s305:cat"]
    assert reconcile.main(second).offenders == []


@pytest.mark.long
def test_after_a_night_in_which_the_first_one_stood_still_silence_has_made_orphans_and_stream_time_has_waited(three, broker):
    first, waiting, hurried, traffic = three
    hurried = replace(hurried, pipeline=replace(hurried.pipeline, clock="lag_aware"))

    def ann(of):
        return [word for word in words(state(broker, of.pipeline.output_topic)) if "ann" in word]

    # Without a compound before it nothing would hold the clock.
    traffic.send("a-2000:cat m-2000:cat s-2000:cat a0:tick m0:tick s0:tick")
    run(first)
    run(waiting)
    traffic.send("a100:ann m100:ann s100:ann a9000:tick m9000:tick s9000:tick")
    run(hurried)
    assert run(waiting)["open_after"] == 5
    assert ann(hurried) == ["- - s100:ann"]

    run(first)
    assert run(hurried)["late"] == 2
    assert ann(hurried) == ["- - s100:ann"]
    heal(hurried)
    traffic.send("a18000:tick m18000:tick s18000:tick")
    run(first)
    found = run(waiting)
    assert found["late"] == 0
    assert ann(hurried) == ann(waiting) == ["a100:ann m100:ann s100:ann"]
