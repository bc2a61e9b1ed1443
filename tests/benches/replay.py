"""A replay of a short interval in the middle of much traffic (`make bench-replay`).

    python -m tests.benches.replay [--calls 1000] [--minutes 20 60] [--window 120] [--rounds 3] [--tables FOLDER]

The tables have so many minutes of so many calls a second, landed in batches of five minutes and paired by `pair_batch`. One event in a
hundred comes ten minutes late, so there is something to correct; three in a thousand are stamped ten years ahead. `replay_interval` is run
whole, from its plan to its last commit, each time on a copy of the same tables. Rows are compared by a hash of all that it has written,
which is the same for every version of the code; `--tables` keeps the tables for another one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_jobs import replay_interval
from spark_jobs.stages import pair
from spark_jobs.tables.commit import commit
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, OffsetRange
from spark_jobs.tables.parquet_files import write_file
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.measuring import PeakMemory, Times, scratch, spark_of_two_cores
from tests.benches.pairing import raw_rows
from tests.benches.traffic import EVENTS_A_SLOT, slots
from tests.helpers.ledger_rows import ledger_rows
from tests.helpers.timeline import CALLS

AT_MOST_S = 60.0
_SLOT_S, _BATCH_MS, _TEN_YEARS_MS = 720, 300_000, 3_650 * 86_400_000
_LATE, _FUTURE, _LATE_BATCHES = 0.01, 0.003, 2
_ROWS_AT_ONCE = 65_536


class Traffic:
    """`minutes` of about `calls` calls a second up to `now`, cut into batches of five minutes."""

    def __init__(self, calls: int, minutes: int, now: int) -> None:
        self.now, self.count = now, -(-minutes * 60_000 // _BATCH_MS)
        self.random = np.random.default_rng(20261125)
        # Each copy has keys of its own, and its slots begin at another time.
        copies = max(1, round(calls * 2 * _SLOT_S / EVENTS_A_SLOT))
        events = (minutes * 60 // _SLOT_S + 2) * EVENTS_A_SLOT
        self.pieces = [
            self._of_copy(slot, copy)
            for copy in range(copies)
            for slot in slots(events, now + 600_000 - copy * _SLOT_S * 1000 // copies, seed=copy)
        ]

    def _of_copy(self, slot: pa.Table, copy: int) -> pa.Table:
        users = pc.binary_join_element_wise(slot["user1"], f"{copy}", "-")
        drawn = self.random.random(slot.num_rows)
        number = (slot["ts"].to_numpy() - (self.now - self.count * _BATCH_MS)) // _BATCH_MS
        number[drawn < _LATE] += _LATE_BATCHES
        slot = slot.set_column(1, "user1", users).append_column("batch", pa.array(number))
        return slot.append_column("future", pa.array(drawn > 1 - _FUTURE))

    def batches(self) -> Iterator[tuple[int, pa.Table]]:
        """The wall time of each batch, and what is landed by it, in the order of time."""
        for number in range(self.count):
            mine = [piece.filter(pc.equal(piece["batch"], number)) for piece in self.pieces]
            yield self.now - (self.count - 1 - number) * _BATCH_MS, pa.concat_tables(mine).sort_by("ts")


def fill(warehouse: Warehouse, traffic: Traffic) -> None:
    """Lands and pairs all batches; the rows of the raw tables are written directly."""
    create_missing(warehouse)
    ledger, clock, open_after = Ledger(warehouse), None, 0
    ends = dict.fromkeys(CALLS.sides, 0)
    for batch_id, (wall_time, events) in enumerate(traffic.batches(), 1):
        begins = dict(ends)
        for rank, side in enumerate(CALLS.sides):
            ends[side] += _land(warehouse, rank, events.filter(pc.equal(events["side"], rank)), ends[side], batch_id)
        accepted = events.num_rows - pc.sum(events["future"]).as_py()
        offsets = tuple(
            OffsetRange(side.topic, number, begins[side] // 2, ends[side] // 2, ends[side] // 2)
            for side in CALLS.sides
            for number in range(2)
        )
        planned, landed = ledger_rows(
            batch_id,
            (PLANNED, LANDED),
            pipeline=CALLS,
            offsets=offsets,
            wall_time=wall_time,
            versions={OPEN: warehouse.version(OPEN)},
            open_before=open_after,
            accepted=accepted,
            landed=events.num_rows,
            clock=clock,
        )
        clock = wall_time
        landed = replace(landed, clock=clock)
        ledger.append(planned)
        ledger.append(landed)
        open_after = pair.pair_batch(warehouse, ledger, planned, landed).paired.open_after


def _land(warehouse: Warehouse, rank: int, events: pa.Table, first: int, batch_id: int) -> int:
    """Writes the events of one side, an even number of them, as landing does; returns how many."""
    table = raw_table(CALLS.sides[rank])
    place = warehouse.place_for_files(table)
    rows = raw_rows(events, rank, first, place.schema, batch_id)
    ts = pc.if_else(events["future"], pc.add(rows["ts"], _TEN_YEARS_MS), rows["ts"])
    problem = pc.if_else(events["future"], "future", pa.scalar(None, pa.string()))
    for name, column in {"ts": ts, "problem": problem}.items():
        rows = rows.set_column(rows.schema.get_field_index(name), place.schema.field(name), column)
    parts = (rows.filter(pc.equal(rows["partition"], number)) for number in range(2))
    files = [write_file(place.store, part.to_batches(_ROWS_AT_ONCE)) for part in parts]
    commit(warehouse, table, [file for file in files if file], table, batch_id)
    # Offsets begin anew behind an even number.
    return rows.num_rows + rows.num_rows % 2


def written(warehouse: Warehouse) -> str:
    """A hash of all rows that the last batch has in compound_events."""
    rows = (
        DeltaTable(warehouse.path(COMPOUNDS))
        .to_pyarrow_dataset()
        .to_table(filter=pc.field("batch_id") == Ledger(warehouse).last_batch()[PAIRED].batch_id)
    )
    return hashlib.sha256("\n".join(sorted(map(repr, rows.to_pylist()))).encode()).hexdigest()[:16]


def replay(tables: Warehouse, folder: Path, window: Window) -> tuple[float, PeakMemory, dict[str, Any], str]:
    """Seconds, memory and CPU time, counts and hash of one replay, on a copy of the tables."""
    copy = replace(tables, root=str(folder / "copy"))
    shutil.copytree(tables.root, copy.root, copy_function=os.link)
    with PeakMemory() as peak:
        begin = time.perf_counter()
        counts = dict(replay_interval.main(copy, window))
        seconds = time.perf_counter() - begin
    found = written(copy)
    shutil.rmtree(copy.root)
    return seconds, peak, {name: counts[name] for name in ("new", "changed", "retracted", "unchanged")}, found


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.replay", description=__doc__)
    arguments.add_argument("--calls", type=int, default=1_000, help="calls a second")
    arguments.add_argument("--minutes", type=int, nargs="+", default=[20, 60], help="of traffic in the tables")
    arguments.add_argument("--window", type=int, nargs="+", default=[120], help="seconds that are replayed")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--tables", type=Path, help="keeps the tables there, and takes those that are there")
    given = arguments.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        spark = stack.enter_context(spark_of_two_cores(folder))
        for minutes in given.minutes:
            root = (given.tables or folder) / f"{given.calls}-{minutes}"
            warehouse = Warehouse(str(root), CALLS, spark)
            if not root.exists():
                now = time.time_ns() // _BATCH_MS // 1_000_000 * _BATCH_MS
                fill(warehouse, Traffic(given.calls, minutes, now))
            last = Ledger(warehouse).last_batch()[PAIRED]
            for seconds in given.window:
                middle = last.wall_time - minutes * 30_000
                window = Window(middle - seconds * 500, middle + seconds * 500)
                replay(warehouse, folder, window)
                rounds = [replay(warehouse, folder, window) for _ in range(given.rounds)]
                times = Times([each[0] for each in rounds])
                _, _, counts, found = rounds[0]
                worker, jvm, cpu = (
                    max(getattr(each[1], name) for each in rounds) for name in ("worker_mb", "jvm_mb", "cpu_s")
                )
                verdict = (
                    ""
                    if seconds != 120
                    else f"; at most {AT_MOST_S:.0f} s: {'met' if times.median <= AT_MOST_S else 'MISSED'}"
                )
                print(f"{seconds} s of {minutes} min at {given.calls:,} calls/s: {times}{verdict}", flush=True)
                print(
                    f"  {counts}, rows {found}; at most {cpu:.0f} s of CPU, largest worker {worker:.0f} MB, JVM {jvm:.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
