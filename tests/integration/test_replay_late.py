"""Late events that ask for their replays: of exactly what they touch, when it is over, the same at every call, and never again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.config.time_text import point_in_time
from spark_jobs import publish_compounds, replay_interval, replay_late, rewind
from spark_jobs.tables.records import Window
from tests.helpers import stream_clock
from tests.helpers.reading import table_rows
from tests.helpers.stream_clock import run

pytestmark = pytest.mark.integration

send, begun = stream_clock.send, stream_clock.begun
plain = stream_clock.pipeline


@pytest.fixture
def pipeline(plain):
    return replace(plain, late="replay")


@pytest.fixture
def asked(warehouse, begun):
    """asked(after) in ms of `send`: [(batch, start, end)], waiting, settled; the run ids are checked."""

    def windows(after=0, of=warehouse):
        found = replay_late.main(of, after)
        ids = [one["run_id"] for one in found["replays"]]
        assert len(set(ids)) == len(ids)
        replays = []
        for one in found["replays"]:
            assert one["run_id"].startswith(f"late__batch_{one['batch_id']}_")
            edges = [point_in_time(one[name]) - begun for name in ("window_start", "window_end")]
            replays.append((one["batch_id"], *edges))
        return replays, found["waiting"], found["settled"]

    return windows


def replayed(warehouse, begun, start, end):
    found = replay_interval.main(warehouse, Window(begun + start, begun + end))
    return {name: found[name] for name in ("new", "changed", "retracted", "unchanged")}


HOURS = 2 * 3_600_000


@pytest.mark.long
def test_late_events_ask_for_what_they_touch_until_it_is_replayed(warehouse, send, begun, asked):
    # y talks on and on, so that its session is open from 60 on.
    talk = " ".join(f"{'am'[number % 2]}{60 + number * 150}:y" for number in range(13))
    send(f"a0:x m-{HOURS}:w {talk} a2000:tick m2000:tick")
    run(warehouse)
    # What was said of tables that are no more, or were put back, is not said of these.
    assert asked() == asked(after=412) == ([], 0, 1)
    # Partners that came too late: of x, whose interval reaches into y's session, and of w, two hours before.
    send(f"m90:x a-{HOURS - 30}:w")
    assert run(warehouse)["late"] == 2
    of_w = (2, -HOURS, -HOURS + 31)
    assert asked() == ([of_w], 1, 1)

    # What is over asks beside it; a message that came once more changes nothing.
    send("m50:z a0:x m90:x a4000:tick m4000:tick")
    assert run(warehouse)["late"] == 3
    assert asked() == ([of_w, (2, 0, 91), (3, 50, 51)], 0, 3)
    assert asked(after=2) == ([(3, 50, 51)], 0, 3)
    assert replay_late.main(warehouse) == replay_late.main(warehouse), "by the same ids"

    # Replayed is replayed, whoever asked for it and how much more he took.
    assert replayed(warehouse, begun, -HOURS, -HOURS + 31) == {"new": 1, "changed": 0, "retracted": 1, "unchanged": 0}
    assert replayed(warehouse, begun, 0, 200) == {"new": 1, "changed": 1, "retracted": 0, "unchanged": 1}
    assert asked() == ([], 0, 5)
    late = [row["offset"] for row in table_rows(warehouse, "rejected_events") if row["reason"] == "late"]
    assert len(late) == 5


@pytest.mark.long
def test_a_rewind_gives_up_what_was_asked_and_asks_again_for_what_it_took_back(warehouse, send, begun, asked):
    send("a0:x a2000:tick m2000:tick")
    run(warehouse)
    send("m50:x a4000:tick m4000:tick")
    run(warehouse)
    assert asked() == ([(2, 0, 51)], 0, 2)
    first = replay_late.main(warehouse)["replays"][0]["run_id"]
    replayed(warehouse, begun, 0, 51)
    publish_compounds.main(warehouse)
    assert asked(after=2) == ([], 0, 3)
    rewind.main(warehouse, 2)
    # Although everything up to batch 3 was settled; and by a run of another name.
    assert asked(after=3) == ([(2, 0, 51)], 0, 4)
    assert replay_late.main(warehouse, 3)["replays"][0]["run_id"] == f"{first}_after_rewind_4"
    publish_compounds.main(warehouse)
    rewind.main(warehouse, 1)
    assert asked(after=4) == ([], 0, 5)
    assert run(warehouse)["late"] == 1
    assert asked(after=5) == ([(6, 0, 51)], 0, 6)


@pytest.mark.long
def test_of_an_endless_chain_as_much_as_a_session_reaches(warehouse, send, asked):
    short = replace(warehouse, pipeline=replace(warehouse.pipeline, max_session_ms=400))
    chain = " ".join(f"{'am'[number % 2]}{number * 150}:x" for number in range(20))
    send(f"{chain} a3000:tick m3000:tick")
    run(short)
    # 1,501 is in the middle of it; with late: dead_letter nobody would ask.
    dead = replace(short, pipeline=replace(short.pipeline, late="dead_letter"))
    send("a1501:x=other a5000:tick m5000:tick")
    run(short)
    send("a1502:x=another a7000:tick m7000:tick")
    run(dead)
    assert asked(of=short) == ([(2, 1_101, 1_902)], 0, 3)
