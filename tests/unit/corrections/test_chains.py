"""How far chains reach beyond an edge: in whatever steps it is read, exactly to the first silence longer than the gap."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from spark_jobs.corrections.chains import AFTER, BEFORE, Edge, Reach, key_numbers
from spark_jobs.tables.records import Window

GAP, START, END, LIMIT = 10, 1_000, 1_100, 1_400


def edge_of(side, chains):
    """`chains`: key -> the last ts of its chain that is known."""
    key, ts = (np.array(each, dtype=np.int64) for each in (list(chains), list(chains.values())))
    read, limit = (END, LIMIT) if side == AFTER else (1 - START, 1)
    return Edge(side, GAP, Reach.of(key, side * ts), read, limit)


def walk(edge, events, step):
    """Reads on until no chain is cut off; returns how far the chains reach, in epoch ms, and the intervals that were read."""
    windows = []
    while len((cut_off := edge.cut_off).key):
        until = min(edge.read + step, edge.limit)
        windows.append(edge.times(edge.read, until))
        known = set(cut_off.key.tolist())
        rows = [(key, ts) for key, ts in events if key in known and windows[-1].start <= ts < windows[-1].end]
        edge.read_on(until, *(np.array([row[place] for row in rows], dtype=np.int64) for place in (0, 1)))
        step *= 2
    return {int(key): edge.side * int(until) for key, until in zip(*edge.reach, strict=True)}, windows


def one_by_one(side, known, events):
    """As `walk`, one event after the other."""
    reach = dict(known)
    for key, ts in sorted(events, key=lambda event: side * event[1]):
        if key in reach and side * (ts - reach[key]) <= GAP and (side == BEFORE or ts < LIMIT):
            reach[key] = max(reach[key], ts, key=lambda each: side * each)
    return reach


def beyond(side, ts):
    return ts >= END if side == AFTER else ts < START


@pytest.mark.parametrize("side", [BEFORE, AFTER])
@pytest.mark.parametrize("step", [1, 7, GAP, 1_000])
def test_chains_end_before_the_first_longer_silence(side, step):
    chance = random.Random(20261125 + step)
    for _ in range(60):
        edge = START if side == BEFORE else END - 1
        events = [(chance.randrange(9), edge + side * chance.randrange(1, 330)) for _ in range(chance.randrange(150))]
        events += chance.sample(events, len(events) // 5)
        known = {key: edge - side * chance.randrange(GAP) for key in range(0, 9, 2)}
        if side == AFTER:
            # Published with other settings, their events are further on.
            known |= {key: END + chance.randrange(200) for key in (2, 7)}
        found = edge_of(side, known)
        reach, _ = walk(found, events, step)
        assert reach == one_by_one(side, known, events)
        counted = [(key, ts) for key, ts in events if key in reach and side * ts <= side * reach[key] and ts < LIMIT]
        assert found.events == len(counted)
        crossing = {key for key, ts in reach.items() if beyond(side, ts)}
        assert set(found.crossing.key.tolist()) == crossing


@pytest.mark.parametrize(("silence", "crosses"), [(GAP, True), (GAP + 1, False)])
@pytest.mark.parametrize("side", [BEFORE, AFTER])
def test_exactly_a_gap_is_no_longer_silence(side, silence, crosses):
    edge = START if side == BEFORE else END - 1
    reach, windows = walk(edge_of(side, {5: edge}), [(5, edge + side * silence)], GAP)
    assert reach == {5: edge + side * silence * crosses}
    # What is not there, nobody looks for twice.
    assert len(windows) == (2 if crosses else 1)


def test_only_what_may_go_on_is_read_and_each_step_is_twice_as_long():
    chain = [(1, END + ts) for ts in range(0, 71, 10)]
    reach, windows = walk(edge_of(AFTER, {1: END - 1, 2: END - GAP, 3: END - GAP - 1}), chain, GAP)
    assert reach == {1: END + 70, 2: END - GAP, 3: END - GAP - 1}
    assert windows == [
        Window(END, END + 10),
        Window(END + 10, END + 30),
        Window(END + 30, END + 70),
        Window(END + 70, END + 150),
    ]
    edge = edge_of(AFTER, {2: END - GAP, 3: END - GAP - 1})
    assert edge.cut_off.key.tolist() == [2]
    _, windows = walk(edge_of(BEFORE, {1: START}), [(1, START - 10), (1, START - 20)], GAP)
    assert windows == [Window(START - 10, START), Window(START - 30, START - 10)]


def test_nothing_is_read_beyond_the_limit_or_the_begin_of_time():
    endless = [(1, ts) for ts in range(END, LIMIT + 500, GAP)]
    reach, windows = walk(edge_of(AFTER, {1: END - 1}), endless, 300)
    assert (reach, windows[-1].end) == ({1: LIMIT - GAP}, LIMIT)
    reach, windows = walk(edge_of(BEFORE, {1: START}), [(1, ts) for ts in range(0, START, GAP)], 300)
    assert (reach, windows[-1].start) == ({1: 0}, 0)


def test_no_chains_no_work():
    edge = Edge(BEFORE, GAP, Reach.none(), 1 - START, 1)
    assert not len(edge.cut_off.key) and not len(edge.crossing.key)
    assert Reach.none().has(np.array([1, 2])).tolist() == [False, False]


def test_what_a_reach_has():
    reach = Reach.of(np.array([-3, 8]), np.array([10, 20]))
    keys = np.array([-3, -3, 8, 9, -9])
    assert reach.has(keys).tolist() == [True, True, True, False, False]
    assert reach.has(keys, np.array([10, 11, 20, 5, 5])).tolist() == [True, False, True, False, False]


def test_keys_have_the_same_number_in_every_process_and_others_another():
    keys = [("x-1", "y"), ("x", "1-y"), ("y", "x-1"), ("", ""), ("é\0", "z"), ("é", "\0z")]
    rows = pa.record_batch([pa.array(column) for column in zip(*keys, strict=True)], ["a", "b"])
    numbers = key_numbers(rows, ("a", "b")).tolist()
    assert len(set(numbers)) == len(keys)
    assert key_numbers(rows.slice(2, 3), ("a", "b")).tolist() == numbers[2:5]
    assert key_numbers(rows.slice(0, 0), ("a", "b")).tolist() == []
    program = (
        "import pyarrow as pa; from spark_jobs.corrections.chains import key_numbers; "
        "print(key_numbers(pa.record_batch([pa.array(['x-1']), pa.array(['y'])], ['a', 'b']), ('a', 'b')).tolist())"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == f"{numbers[:1]}\n"
    )
