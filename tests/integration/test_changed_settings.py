"""Settings that change between two batches: shown before, applied by the next plan, recorded; and those that are refused, in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import obstore
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, NewPartitions

from include.config.pipeline import Alerts, Maintenance, Quality, Side
from include.config.pipeline_file import load_pipeline
from include.config.setting_changes import Change
from include.config.store import pages_store, read_text, warehouse_store
from spark_jobs import check_pipelines, land_events, pair_events, publish_compounds, report_quality
from spark_jobs.changes.plan import CHANGED, UNCHANGED, plan_changes
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PLANNED
from spark_jobs.tables.schemas import OPEN, schemas
from tests.helpers import stored_tables, stream_clock
from tests.helpers.all_stages import land, run_all
from tests.helpers.pipeline_files import file_of
from tests.helpers.reading import table_rows
from tests.helpers.stores import root_on, table_of
from tests.helpers.stream_clock import run
from tests.helpers.timeless_traffic import timeless
from tests.helpers.timeline import ROOT
from tests.integration.test_publishing import recreate, wait_for_partitions

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun
# T = 100, G = 200, R = 500. Closes what the first batch of a case leaves open.
LATER = "a3000:tick m3000:tick"


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def with_settings(warehouse, **settings):
    return replace(warehouse, pipeline=replace(warehouse.pipeline, **settings))


def steps(warehouse, batch_id):
    return {row.step: row for row in Ledger(warehouse).rows(batch_id, batch_id)}


def listed(plan):
    return [each.change.setting for each in plan.changes]


def versions(warehouse):
    return {table: table_of(warehouse.root, warehouse.pipeline, table).version() for table in schemas(warehouse.pipeline)}


# Each: settings before, settings that change, first records, records after the change, and what the second batch then counts. Without the
# change it would count otherwise.
CASES = {
    "tolerance": ({}, {"tolerance_ms": 20}, "a0:x m50:x a600:tick m600:tick", LATER, {"pair": 1, "left_only": 1, "right_only": 1}),
    "gap": ({"tolerance_ms": 1000}, {"gap_ms": 1000}, "a0:x a600:tick m600:tick", f"m900:x {LATER}", {"pair": 2, "left_only": 0}),
    # Nothing new comes, and the clock stays: the session is over by the new grace.
    "grace": ({}, {"grace_ms": 0}, "a0:x a600:tick m600:tick", "", {"pair": 0, "left_only": 1, "open_after": 2}),
    "max_session": ({}, {"max_session_ms": 200}, "a0:x a150:x m230:x a400:tick m400:tick", LATER, {"pair": 1, "left_only": 2, "right_only": 1}),
    "matching": ({}, {"matching": "collapse"}, "a0:x a50:x m60:x a600:tick m600:tick", LATER, {"pair": 2, "left_only": 0, "collapsed": 1}),
    "drop_duplicates": ({"drop_duplicates": False}, {"drop_duplicates": True}, "a0:x=1 a0:x=1 a600:tick m600:tick", LATER, {"duplicate": 1, "left_only": 1}),
    # Silence closes sessions from now on.
    "clock": ({}, {"clock": "lag_aware"}, "a0:x a600:tick m600:tick", "", {"pair": 1, "left_only": 1, "open_after": 0}),
    # Minutes ahead of the wall clock; the record does not move the clock of the stream.
    "max_future": ({}, {"max_future_ms": 0}, "a0:x a600:tick m600:tick", "a3900000:f", {"accepted": 0, "rejected": 1, "pair": 0}),
    # No record has such a field: those that come now take their record timestamps, an hour later than x.
    "timestamp": ({"tolerance_ms": 100}, {"timestamp": "at"}, "a0:x a600:tick m600:tick", "m50:x", {"accepted": 1, "pair": 0, "open_after": 4}),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_an_allowed_change_counts_from_the_next_batch_on(name, warehouse, send):
    before, change, first, second, expected = CASES[name]
    old = with_settings(warehouse, **before)
    new = with_settings(old, **change)
    send(first)
    run(old)
    shown = plan_changes(warehouse.root, new.pipeline)
    assert (shown.state, listed(shown), shown.batch_id) == (CHANGED, [name], 1)
    assert shown.effect.events == len(table_rows(warehouse, OPEN))
    send(second)
    counts = run(new)
    assert {key: counts[key] for key in expected} == expected
    assert (steps(new, 1)[PLANNED].pipeline, steps(new, 2)[PLANNED].pipeline) == (old.pipeline, new.pipeline)
    assert plan_changes(warehouse.root, new.pipeline).state == UNCHANGED
    # What was shown of the sessions that close whatever is read has come true.
    if not second and name != "clock":
        assert shown.effect.new.closed_next == counts["left_only"]


@pytest.mark.long
def test_settings_of_landing(warehouse, send, admin):
    send("a0:x a1:y")
    run(warehouse)
    new = with_settings(warehouse, max_records_per_batch=1, consumer_group="lag-after-the-change")
    assert listed(plan_changes(warehouse.root, new.pipeline)) == ["max_records_per_batch", "consumer_group"]
    send("a2:x a3:y")
    land_events.main(new, new.pipeline.max_records_per_batch)
    assert steps(new, 2)[LANDED].landed.planned == 1
    asked = ConsumerGroupTopicPartitions("lag-after-the-change")
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    committed = {(place.topic, place.partition): place.offset for place in answer.result(timeout=20).topic_partitions}
    assert committed[warehouse.pipeline.left.topic, 0] == 3


@pytest.mark.long
def test_what_changes_is_shown_applied_recorded_and_reported(warehouse, send, broker, admin, tmp_path, capsys):
    send("a0:x m50:x a150:z a300:z m310:z a600:tick m600:tick")
    run_all(warehouse)
    quality = Quality(max_orphan_ratio=0.25, silence_ms=None, keep_pages=100)
    new = with_settings(
        warehouse, tolerance_ms=20, grace_ms=0, max_session_ms=200, schedule=None, run_deadline_ms=60_000, replay_schedule="0 0 * * *",
        late="replay", offset_gaps="fail", quality=quality, alerts=Alerts("slack_calls"), maintenance=Maintenance(schedule=None, raw_retention_ms=2**34),
    )  # fmt: skip
    settings = [
        *"tolerance grace max_session late offset_gaps schedule run_deadline replay_schedule".split(),
        *(f"quality.{name}" for name in ("max_orphan_ratio", "keep_pages", "silence")),
        *("alerts.slack", "maintenance.schedule", "maintenance.raw_retention"),
    ]
    # Two partitions more of an input and of the output topic.
    left, output = warehouse.pipeline.left.topic, warehouse.pipeline.output_topic
    for topic, partitions in ((left, 2), (output, 4)):
        admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(timeout=20)
        wait_for_partitions(admin, topic, partitions)
    before = versions(warehouse)
    shown = plan_changes(warehouse.root, new.pipeline)
    partitions = [Change(f"partitions of {left}", "1", "2"), Change(f"partitions of {output}", "2", "4")]
    assert sorted(listed(shown)) == sorted([*settings, *(each.setting for each in partitions)])
    assert [each.change for each in shown.changes][-2:] == partitions
    found = shown.effect
    assert (found.events, found.old.sessions, found.new.sessions) == (7, 3, 3)
    # x and z are over at 50 and 310 by the new grace; the clock is 600, and 50 + 200 and 310 + 200 are before it.
    assert (found.old.closed_next, found.new.closed_next) == (0, 2)
    assert (found.old.pair, found.new.pair, found.new.left_only, found.new.right_only) == (3, 2, 2, 1)
    assert (found.earlier, found.same, found.later) == (3, 0, 0)
    assert versions(warehouse) == before, "it only reads"
    assert check_pipelines.main(warehouse.root, [file_of(new.pipeline, tmp_path / "new")], False) == 3
    assert f"{warehouse.pipeline.name}: 16 changes against batch 1" in capsys.readouterr().out

    answer = run_all(new)
    assert (answer["pair"], answer["left_only"], answer["right_only"], answer["open_after"]) == (1, 2, 1, 2)
    planned = steps(new, 2)[PLANNED]
    assert (planned.pipeline, planned.config_hash) == (new.pipeline, new.pipeline.config_hash)
    assert [at.partition for at in planned.offsets if at.topic == left] == [0, 1]
    assert steps(new, 2)["published"].output_state.partitions == 4
    assert (
        "from batch 2 on settings changed: tolerance 100ms -> 20ms, grace 500ms -> 0s, max_session 1h -> 200ms"
        in answer["says"]
    )
    page = read_text(pages_store(warehouse.pipeline.name, warehouse.root), "batch-2.html")
    assert "From this batch on, settings changed: tolerance 100ms" in page and "quality.silence 30m" in page
    assert plan_changes(warehouse.root, new.pipeline).state == UNCHANGED


IDENTITY = {
    "left.topic": lambda p: {"left": replace(p.left, topic="elsewhere")},
    "left.payload": lambda p: {"left": replace(p.left, payload="other")},
    "right.topic": lambda p: {"right": replace(p.right, topic="elsewhere")},
    "right.payload": lambda p: {"right": Side(p.right.topic, "other")},
    "right.compounds": lambda p: {"right": replace(p.right, compounds=True)},
    "output.topic": lambda p: {"output_topic": "elsewhere"},
    "output.key": lambda p: {"output_key": "json"},
    "key": lambda p: {"key": p.key[::-1]},
    "key_order": lambda p: {"key_order": "any"},
}


def test_what_is_forbidden_is_refused_in_the_same_words_and_nothing_is_done(
    warehouse, send, broker, admin, tmp_path, capsys
):
    send("a0:x m50:x a600:tick m600:tick")
    run(warehouse)
    send("a3000:tick m3000:tick")
    run(warehouse)
    publish_compounds.main(warehouse)
    before, written = versions(warehouse), Ledger(warehouse).rows(1)
    for setting, change in IDENTITY.items():
        new = with_settings(warehouse, **change(warehouse.pipeline))
        shown = plan_changes(warehouse.root, new.pipeline)
        assert (listed(shown), shown.effect) == ([setting], None)
        for job in (land, pair_events.main, report_quality.main):
            with pytest.raises(NeedsOperator) as refused:
                job(new)
            assert shown.forbidden == (str(refused.value),), (setting, job)
    file = file_of(new.pipeline, tmp_path)
    assert check_pipelines.main(warehouse.root, [file], False) == 4
    assert f"refused: {refused.value}" in capsys.readouterr().out

    # Of the topics. With fewer partitions an input topic can only be another one.
    admin.create_partitions([NewPartitions(warehouse.pipeline.left.topic, 2)])[warehouse.pipeline.left.topic].result(
        timeout=20
    )
    wait_for_partitions(admin, warehouse.pipeline.left.topic, 2)
    land(warehouse)
    pair_events.main(warehouse)
    before, written = versions(warehouse), Ledger(warehouse).rows(1)
    recreate(admin, broker, replace(warehouse.pipeline, output_topic=warehouse.pipeline.left.topic), 1)
    recreate(admin, broker, warehouse.pipeline, 1)
    shown = plan_changes(warehouse.root, warehouse.pipeline)
    refusals = []
    for job in (land, publish_compounds.main):
        with pytest.raises(NeedsOperator) as refused:
            job(warehouse)
        refusals.append(str(refused.value))
    partition = f"partition 1 of {warehouse.pipeline.left.topic} is gone"
    assert [line for line in shown.forbidden if not line.startswith(partition)] == refusals
    assert len(shown.forbidden) == 3
    assert (versions(warehouse), Ledger(warehouse).rows(1)) == (before, written)


def command(*arguments, **environment):
    """The command as operators run it."""
    line = [sys.executable, "-m", "include.check_pipelines", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(line, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False)


def test_the_command_says_by_its_status_what_there_is_to_see(tmp_path, capsys, monkeypatch):
    pipeline = load_pipeline(timeless(stored_tables.NAME, "stored", tmp_path / "jobs")[1])
    same = file_of(pipeline, tmp_path / "same")
    other = file_of(replace(pipeline, grace_ms=60_000, clock="lag_aware"), tmp_path / "other")
    moved = file_of(replace(pipeline, output_topic="elsewhere"), tmp_path / "moved")
    folder, against = stored_tables.FOLDER, "--against"
    # The example of the page.
    shown = (ROOT / "docs" / "upgrading.md").read_text().partition("<!-- change-plan -->")[2].split("```\n")[1]
    done = command(f"{against}={folder}", "--pipeline", "calls", other)
    assert (done.returncode, done.stdout) == (3, shown), done.stderr
    done = command(against, folder, "--pipeline", "other", same)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)

    def answer(root, *files):
        status = check_pipelines.main(str(root), list(files), False)
        said = capsys.readouterr()
        return status, said.out.splitlines()[0] if said.out else "", said.err.splitlines()

    monkeypatch.delenv(VARIABLE, raising=False)
    assert answer(folder, same) == (0, "calls: nothing would change against batch 6", [])
    assert answer(folder, same, other, moved)[0] == 4
    empty = f"calls: new: {tmp_path}/empty/calls has no tables yet, and it begins at the topics' first offsets"
    assert answer(tmp_path / "empty", same) == (3, empty, [])
    broken = tmp_path / "calls.yaml"
    broken.write_text(same.read_text().replace("grace: 3m", "grice: 3m"))
    refused = f"error: {broken}: grace: missing; without it nothing says how long to wait for late events"
    assert (answer(folder, other, broken)[::2], answer(folder, broken, moved)[0]) == ((1, [refused]), 4)
    monkeypatch.setenv(VARIABLE, "{")
    status, _, (line,) = answer(folder, same)
    assert (status, line.partition(":")[2].strip().startswith(f"{VARIABLE} is not JSON")) == (1, True)


@pytest.mark.long
def test_the_command_reads_a_store_as_a_folder(s3, tmp_path, monkeypatch):
    pipeline = load_pipeline(timeless(stored_tables.NAME, "stored", tmp_path / "jobs")[1])
    other = file_of(replace(pipeline, grace_ms=0, gap_ms=1), tmp_path)
    root = root_on(s3, "against", monkeypatch)
    place = warehouse_store(root)
    for path in stored_tables.FOLDER.rglob("*"):
        if path.is_file():
            obstore.put(place.client, str(path.relative_to(stored_tables.FOLDER)), path.read_bytes())
    here, there = (command("--against", where, "--json", other) for where in (stored_tables.FOLDER, root))
    assert (here.returncode, there.returncode) == (3, 3), there.stderr
    answers = [json.loads(each.stdout) for each in (here, there)]
    assert [each.pop("place") for each in answers] == [f"{stored_tables.FOLDER}/calls", f"{root}/calls"]
    assert answers[0] == answers[1]
    assert answers[0]["open_events"]["events"] == 7 and answers[0]["open_events"]["earlier"] == 7
