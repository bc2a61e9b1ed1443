"""Replay: an interval is paired again, late events included, and consumers are told the difference, once."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from deltalake import DeltaTable

from spark_jobs import land_events, pair_events, publish_compounds, reconcile, replay_interval, report_quality, rewind
from spark_jobs.corrections import replay_events as replayed_events
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.story.from_files import BatchFile, read_batches, rehearse
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED
from spark_jobs.tables.records import Window
from tests.helpers import stream_clock
from tests.helpers.pages import pages_folder
from tests.helpers.reading import consume, table_rows
from tests.helpers.stream_clock import consumed, killed_at, run, stories
from tests.helpers.timeline import ROOT

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun


@pytest.fixture
def replay(warehouse, begun):
    """replay(0, 1000): of the interval from 0 to 1000 ms of `send`."""
    return lambda start, end, of=warehouse: replay_interval.main(of, Window(begun + start, begun + end))


@pytest.fixture
def late_partners(warehouse, send):
    """Two batches: x and y have told of their left sides alone, and their right sides came late."""
    send("a0:x a300:y a2000:tick m2000:tick")
    run(warehouse)
    send("m50:x m350:y a4000:tick m4000:tick")
    run(warehouse)


@pytest.fixture
def told(warehouse, broker):
    """What a consumer has once everything is published, in words: `pair a0:x m50:x`, sorted."""

    def words():
        publish_compounds.main(warehouse)
        sides = [
            (kind, json.loads(value)["analytics"], json.loads(value)["metrics"])
            for kind, value in consumed(warehouse, broker).values()
        ]
        return sorted(" ".join(word for word in said if word) for said in sides)

    return words


def state(warehouse):
    return {
        table: warehouse.version(table) for table in ("compound_events", "rejected_events", "batch_ledger", "open_events")
    }


def documented_consumer(tmp_path, bootstrap, topic):
    """What the program of docs/consuming.md prints: pair_id -> value."""
    text = (ROOT / "docs" / "consuming.md").read_text()
    (program,) = re.findall(r"<!-- consumer -->\n\n```python\n(.*?)^```$", text, re.M | re.S)
    assert len(program.splitlines()) <= 20 and "poll(10)" in program
    # Ten seconds are for people.
    (tmp_path / "consumer.py").write_text(program.replace("poll(10)", "poll(4)"))
    command = [sys.executable, tmp_path / "consumer.py", bootstrap, topic]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def counts(given):
    return {name: given[name] for name in ("new", "changed", "retracted", "unchanged")}


def canonical(warehouse, tmp_path):
    """One pairing of all raw events by the rehearsal, which knows neither Spark nor tables, as `told` says it."""
    file = tmp_path / "all.jsonl"
    with file.open("w") as lines:
        for side in warehouse.pipeline.sides:
            for row in table_rows(warehouse, f"raw_{side.payload}"):
                place = {name: row[name] for name in ("topic", "partition", "offset")}
                record = place | {"ts": row["record_timestamp"], "key": None, "payload": row["value"].decode()}
                lines.write(json.dumps(record) + "\n")
    clock = Ledger(warehouse).last_batch()[PAIRED].clock
    rows = map(json.loads, rehearse(warehouse.pipeline, read_batches(warehouse.pipeline, [BatchFile(file, clock)])))
    compounds = [row for row in rows if row["table"] == "compound_events"]
    return sorted(" ".join(word for word in (row["kind"], row["analytics"], row["metrics"]) if word) for row in compounds)


def test_late_partners_are_told_as_corrections(warehouse, broker, send, replay, told, tmp_path):
    send("a0:x m50:x a300:y m500:z a2000:tick m2000:tick")
    run(warehouse)
    assert told() == ["left_only a300:y", "pair a0:x m50:x", "right_only m500:z"]
    # The partners of y and z, a call that nobody had heard of, and one message again.
    send("m350:y a480:z a700:new m710:new m50:x a4000:tick m4000:tick")
    assert run(warehouse)["late"] == 5
    before = told()
    assert before == ["left_only a300:y", "pair a0:x m50:x", "pair a2000:tick m2000:tick", "right_only m500:z"]

    # y is changed; z has its id of the left event now; what comes at the end belongs to the next interval.
    assert counts(replay(0, 700)) == {"new": 1, "changed": 1, "retracted": 1, "unchanged": 1}
    assert told() == ["pair a0:x m50:x", "pair a2000:tick m2000:tick", "pair a300:y m350:y", "pair a480:z m500:z"]
    assert counts(replay(700, 701)) == {"new": 1, "changed": 0, "retracted": 0, "unchanged": 0}
    assert "pair a700:new m710:new" in told()

    # The second time nothing is written, and so nothing sent.
    done, rows = state(warehouse), table_rows(warehouse, "compound_events")
    assert counts(replay(0, 2000)) == {"new": 0, "changed": 0, "retracted": 0, "unchanged": 4}
    assert state(warehouse) == done and publish_compounds.main(warehouse) == {}
    retracted = [row for row in rows if row["op"] == "retract"]
    assert [(row["kind"], row["revision"]) for row in retracted] == [("right_only", 1)]

    # The consumer of the documentation ends with the same; one that knows no headers has seen every pair.
    applied = documented_consumer(tmp_path, broker.bootstrap, warehouse.pipeline.output_topic)
    held = {pair_id: value for pair_id, (_, value) in consumed(warehouse, broker).items()}
    assert {pair_id: value for pair_id, value in applied.items() if value != "null"} == held
    assert [pair_id for pair_id, value in applied.items() if value == "null"] == [row["pair_id"] for row in retracted]
    values = [json.dumps(message["value"]) for message in consume(broker.bootstrap, warehouse.pipeline.output_topic)]
    assert set(held.values()) <= set(values) - {"null"}
    # A compacted topic keeps the last message of a key, so the pair of z comes behind the retraction of the later m500.
    last_of = {message["key"]: message["value"] for message in consume(broker.bootstrap, warehouse.pipeline.output_topic)}
    assert last_of["z-v"]["metrics"] == "m500:z"

    # The live batches go on behind it, and the report knows what it was.
    send("a6000:tick m6000:tick")
    assert run(warehouse)["batch_id"] == 5
    told()
    assert any("by batch 3, a replay of" in line for line in stories(warehouse)["z"])
    assert report_quality.main(warehouse)["batches"] == 5
    page = (pages_folder(warehouse.root, warehouse.pipeline.name) / "batch-3.html").read_text()
    assert re.search(r"batch 3, a replay of .*passed", page, re.S)
    assert re.search(r"compounds corrected, by a rewind or replay</th><td class=\"number\">3<", page)


@pytest.mark.long
def test_sessions_over_the_edges_are_read_whole(warehouse, send, replay, told):
    # Of x everything came in time but m90, of the call that began in the interval before.
    send("a0:x m150:x a250:x a300:y m2500:tick a2500:tick")
    run(warehouse)
    assert told() == ["left_only a0:x", "left_only a300:y", "pair a250:x m150:x"]
    send("m90:x m399:y a5000:tick m5000:tick")
    run(warehouse)
    # m90 is the partner of a0 and m150 stays that of a250: seen only if all four are read.
    assert counts(replay(100, 300)) == {"new": 0, "changed": 0, "retracted": 0, "unchanged": 1}
    assert counts(replay(0, 1)) == {"new": 0, "changed": 1, "retracted": 0, "unchanged": 0}
    assert counts(replay(300, 301)) == {"new": 0, "changed": 1, "retracted": 0, "unchanged": 0}
    assert [word for word in told() if "tick" not in word] == ["pair a0:x m90:x", "pair a250:x m150:x", "pair a300:y m399:y"]


@pytest.mark.long
def test_a_chain_that_began_long_before_is_followed_to_its_begin(warehouse, send, replay, told, tmp_path, monkeypatch):
    short = replace(warehouse, pipeline=replace(warehouse.pipeline, max_session_ms=500))
    # Cut every 500 ms from the first event on: who begins to read in the middle cuts elsewhere.
    chain = [f"{'am'[number % 2]}{number * 90}:x" for number in range(1, 80)]
    send(" ".join([*chain[::2], "a9000:tick"]))
    send(" ".join([*chain[1::2], "m9000:tick"]))
    run(short)
    send("a0:x m3:x a12000:tick m12000:tick")
    run(short)
    assert canonical(short, tmp_path) != told()
    read_on, steps = replayed_events._read_on, []

    def watched(around, step):
        steps.append((step, len(around.before.cut_off.key)))
        read_on(around, step)

    with monkeypatch.context() as patched:
        patched.setattr(replayed_events, "_read_on", watched)
        found = counts(replay(6_000, 6_500, short))
    assert found["new"] + found["changed"] > 0 and [keys for _, keys in steps] == [1] * 5
    assert [step for step, _ in steps] == [200, 400, 800, 1_600, 3_200]
    for start in (0, 3_000, 6_500):
        replay(start, start + 3_500, short)
    assert canonical(short, tmp_path) == told()


@pytest.mark.long
def test_compounds_whose_events_are_on_both_sides_of_an_edge(warehouse, send, replay, told):
    # Published with a tolerance and a gap that hold no more, so no chain leads from one side to the other.
    loose = replace(warehouse, pipeline=replace(warehouse.pipeline, tolerance_ms=300, gap_ms=300))
    send("m0:x a250:x m1000:y a1250:y a1500:z a3000:tick m3000:tick")
    run(loose)
    assert told() == ["left_only a1500:z", "pair a1250:y m1000:y", "pair a250:x m0:x"]
    # The compound of the interval has the id of an event behind it, and leaves it.
    assert counts(replay(0, 10)) == {"new": 1, "changed": 1, "retracted": 0, "unchanged": 0}
    assert counts(replay(0, 10)) == {"new": 0, "changed": 0, "retracted": 0, "unchanged": 1}
    # The compound of an event of the interval was before it.
    assert counts(replay(1_200, 1_300)) == {"new": 0, "changed": 1, "retracted": 0, "unchanged": 0}
    assert counts(replay(900, 1_100)) == {"new": 1, "changed": 0, "retracted": 0, "unchanged": 0}
    # The compound of an event behind the interval comes into it.
    send("m1450:z a5000:tick m5000:tick")
    assert run(warehouse)["late"] == 1
    assert counts(replay(1_440, 1_460)) == {"new": 0, "changed": 1, "retracted": 0, "unchanged": 0}
    assert [word for word in told() if "tick" not in word] == [
        "left_only a1250:y",
        "left_only a250:x",
        "pair a1500:z m1450:z",
        "right_only m0:x",
        "right_only m1000:y",
    ]


@pytest.mark.long
def test_what_is_not_closed_is_refused(warehouse, send, replay, begun):
    with pytest.raises(NeedsOperator, match=r"no batch yet, so there is nothing to replay: run land_events"):
        replay(0, 1)
    send("a0:x m50:x a1000:long m1100:long")
    run(warehouse)
    # Gap and grace are 700 ms: 300 is the first moment of which an event might still be open at a clock of 1000.
    with pytest.raises(
        NeedsOperator, match=rf"not closed yet.*everything before .*\({begun + 300}\) is; .*\({begun + 1001}\)"
    ):
        replay(0, 301)
    done = state(warehouse)
    assert counts(replay(0, 300))["unchanged"] == 1
    with pytest.raises(NeedsOperator, match="is empty"):
        replay(300, 300)
    # A session that began in closed time and has not ended.
    send("a1250:long m1450:long a1650:long m1850:long a1990:tick m1990:tick")
    run(warehouse)
    with pytest.raises(NeedsOperator, match=rf"still open, .* up to .*\({begun + 1850}\); .*\({begun + 2551}\)"):
        replay(900, 1200)
    assert state(warehouse)["compound_events"] == done["compound_events"]


@pytest.mark.long
def test_an_event_that_live_batches_still_hold_open_is_left_to_them(warehouse, send, replay, told):
    # In the live batches a1100 began a session of its own, since what was before was published. Of all events together it
    # is the last of a session that max_session cuts, and so over.
    short = replace(warehouse, pipeline=replace(warehouse.pipeline, max_session_ms=400))
    send("a1000:x m1010:x m1200:x a1800:tick m1800:tick")
    run(short)
    send("a1990:x a2000:x m2350:x m2300:tick a2300:tick")
    run(short)
    send("a1210:x a1390:x a1590:x a1790:x m2400:tick a2400:tick")
    run(short)
    with pytest.raises(NeedsOperator, match="are still open"):
        replay(1000, 1700, short)


@pytest.mark.long
def test_an_interval_whose_raw_events_are_gone_is_refused(warehouse, send, replay, begun):
    send("a0:x m50:x a300:y m2000:tick a2000:tick")
    run(warehouse)
    raw = DeltaTable(warehouse.path("raw_analytics"))
    raw.delete(f"ts = {begun}")
    done = state(warehouse)
    with pytest.raises(NeedsOperator, match=r"cannot be replayed: 1 events of its published compounds are no longer"):
        replay(0, 100)
    assert state(warehouse) == done
    assert counts(replay(300, 400))["unchanged"] == 1


@pytest.mark.long
@pytest.mark.parametrize("point", ["after_planned", "after_compound_events"])
def test_a_killed_replay_is_finished_by_whoever_comes_next(point, warehouse, late_partners, send, replay, told, monkeypatch):
    with killed_at(monkeypatch, point):
        replay(0, 1000)
    assert Ledger(warehouse).last_ids()[PLANNED] == 3 and Ledger(warehouse).last_ids()[PAIRED] == 2
    if point == "after_planned":
        send("a6000:tick m6000:tick")
        assert run(warehouse)["batch_id"] == 4
    else:
        # The same again finds its own work done.
        assert counts(replay(0, 1000)) == {"new": 0, "changed": 0, "retracted": 0, "unchanged": 2}
    assert [word for word in told() if "tick" not in word] == ["pair a0:x m50:x", "pair a300:y m350:y"]
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_a_live_batch_that_is_not_finished_comes_first(warehouse, send, replay, told):
    send("a0:x a2000:tick m2000:tick")
    run(warehouse)
    send("m50:x a300:y m350:y a4000:tick m4000:tick")
    land_events.main(warehouse, 1_000_000, ())
    assert replay(0, 1000)["batch_id"] == 3
    # Its task finds nothing left to do.
    assert pair_events.main(warehouse) == {}
    assert [word for word in told() if "tick" not in word] == ["pair a0:x m50:x", "pair a300:y m350:y"]


@pytest.mark.long
def test_a_rewind_takes_a_replay_back_and_a_replay_follows_a_rewind(warehouse, late_partners, replay, told):
    replay(0, 100)
    assert "pair a0:x m50:x" in told() and "left_only a300:y" in told()
    rewind.main(warehouse, 1)
    assert told() == ["left_only a0:x", "left_only a300:y"]
    run(warehouse)
    replay(0, 1000)
    assert told() == ["pair a0:x m50:x", "pair a2000:tick m2000:tick", "pair a300:y m350:y"]
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_a_write_that_is_not_what_was_found_fails(late_partners, replay, monkeypatch):
    monkeypatch.setattr("spark_jobs.corrections.replay.commit_frame", lambda *_: None)
    with pytest.raises(BrokenInvariant, match="replay 3 was to write"):
        replay(0, 1000)


def late_traffic(chance, portions, calls):
    """Portions of calls, 1 s each, one event in ten coming one to three portions after its time, and a tick at the end of each."""
    found = [[] for _ in range(portions + 3)]
    for _ in range(calls):
        at, user = chance.randrange(portions * 1000), f"u{chance.randrange(9)}"
        words = [f"a{at}:{user}", f"m{at + chance.randrange(120)}:{user}"]
        for word in words[chance.random() < 0.1 :]:
            found[at // 1000 + (chance.randint(1, 3) if chance.random() < 0.1 else 0)].append(word)
    for number, portion in enumerate(found):
        chance.shuffle(portion)
        portion += [f"{side}{number * 1000 + 1900}:tick" for side in "am"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("portions", [2, 8])
def test_replaying_everything_gives_one_canonical_pairing(portions, warehouse, send, replay, told, begun, tmp_path):
    chance = random.Random(20261122)
    traffic, replays = late_traffic(chance, portions, 30 * portions), 0
    for number, portion in enumerate(traffic):
        send(" ".join(portion))
        run(warehouse)
        if number == portions:
            # Beside the live batches; what comes late afterwards, other replays will find.
            replays += replay(0, 1_000).get("batch_id", 0) > 0
    last = Ledger(warehouse).last_batch()[PAIRED]
    assert last.batch_id == len(traffic) + replays
    rejected = [row["reason"] for row in table_rows(warehouse, "rejected_events")]
    assert rejected.count("late") >= 2 * portions
    canon = canonical(warehouse, tmp_path)
    assert told() != canon
    closed = last.clock - begun - 700
    edges = sorted({0, 1_111, 2_500, 2_501, *range(4_000, closed, 1_777), closed})
    intervals = list(pairwise(edges))
    chance.shuffle(intervals)
    for start, end in intervals:
        replay(start, end)
    assert told() == canon
    assert reconcile.main(warehouse).offenders == []
    done = state(warehouse)
    assert counts(replay(0, closed)) == {"new": 0, "changed": 0, "retracted": 0, "unchanged": len(canon)}
    assert state(warehouse) == done
