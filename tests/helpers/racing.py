"""Two processes that change one table at the same moment, round after round, by what the jobs change it with.

Each waits before its commit for the other to come to its own; so their puts meet, whoever is faster up to there.
They have no Spark: the columns of the tables, which only Spark can read out of their declarations, are given to them.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partialmethod
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from include.config.pipeline import MS_PER_UNIT, Pipeline
from spark_jobs.maintenance.files import compact, make_checkpoint, vacuum
from spark_jobs.tables import schemas as tables
from spark_jobs.tables.commit import ALL_BATCHES, commit, commit_rows, remove_batches
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PLANNED, PUBLISHED
from spark_jobs.tables.parquet_files import FileWriter, NewFile
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, OPEN, raw_table
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.ledger_rows import ledger_row

WHO = ("one", "other")
ROWS = 3
# Removal leaves so many batches.
KEPT_BATCHES = 5
# Maintenance looks after files and log in one round of so many.
_CARE_EVERY = 10
_WITHIN_S = 400.0
_COMMITS_A_ROUND = 4
# The other may have nothing to commit in this round.
_PATIENCE_S = 0.1
# The column that says who wrote a row.
MARKS = {OPEN: "topic", COMPOUNDS: "left_topic", LEDGER: "config"}


def mark_of(table: str) -> str:
    return MARKS.get(table, "topic")


def rows_by(who: str, table: str, batch_id: int) -> list[dict[str, Any]]:
    """The rows that one of them writes for a batch; of columns that are not named there is nothing."""
    return [{"batch_id": batch_id, "ts": number, mark_of(table): who} for number in range(ROWS)]


def _files(warehouse: Warehouse, table: str, who: str, batch_id: int) -> list[NewFile]:
    place = warehouse.place_for_files(table)
    with FileWriter(place.store) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows_by(who, table, batch_id), schema=place.schema))
        written = writer.finish()
    return [written] if written else []


def land(warehouse: Warehouse, who: str, batch_id: int) -> None:
    raw = raw_table(warehouse.pipeline.left)
    commit(warehouse, raw, _files(warehouse, raw, who, batch_id), raw, batch_id)


def plan(warehouse: Warehouse, who: str, batch_id: int) -> str:
    """Gives who made the plan that counts."""
    row = ledger_row(batch_id, PLANNED, pipeline=warehouse.pipeline, config_hash=who, wall_time=1)
    return Ledger(warehouse).plan(row).config_hash


def pair(warehouse: Warehouse, who: str, batch_id: int) -> None:
    commit(warehouse, COMPOUNDS, _files(warehouse, COMPOUNDS, who, batch_id), COMPOUNDS, batch_id)
    commit(warehouse, OPEN, _files(warehouse, OPEN, who, batch_id), OPEN, batch_id, ALL_BATCHES)


def record_planned(warehouse: Warehouse, who: str, batch_id: int) -> None:
    commit_rows(warehouse, LEDGER, rows_of_ledger(who, batch_id), PLANNED, batch_id)


def record_published(warehouse: Warehouse, who: str, batch_id: int) -> None:
    commit_rows(warehouse, LEDGER, rows_of_ledger(who, batch_id), PUBLISHED, batch_id)


def rows_of_ledger(who: str, batch_id: int) -> list[dict[str, Any]]:
    return [{"batch_id": batch_id, "wall_time": number, "config": who} for number in range(ROWS)]


def maintain(warehouse: Warehouse, who: str, number: int) -> None:
    raw = raw_table(warehouse.pipeline.left)
    compact(warehouse, raw)
    if number % _CARE_EVERY == 0:
        # Another time each time, for that is a commit.
        kept = 3 * MS_PER_UNIT["h"] + number * 1_000
        vacuum(warehouse, raw, kept)
        make_checkpoint(warehouse, raw, kept)


def land_and_maintain(warehouse: Warehouse, who: str, number: int) -> None:
    land(warehouse, who, number)
    maintain(warehouse, who, number)


def remove(warehouse: Warehouse, who: str, batch_id: int) -> None:
    remove_batches(warehouse, raw_table(warehouse.pipeline.left), batch_id - KEPT_BATCHES)


_meeting: Meeting
WORK: Mapping[str, Callable[[Warehouse, str, int], str | None]] = {
    each.__name__: each for each in (land, plan, pair, record_planned, record_published, maintain, land_and_maintain, remove)
}


class Meeting:
    """Where the two are: `at[number]` grows with every commit that a process comes to."""

    def __init__(self, number: int, at: Any) -> None:
        self.number, self.at = number, at
        self.round = 0
        self.met: set[tuple[str, str]] = set()

    def begin(self, number: int) -> None:
        self.round, self.met = number, set()

    def arrive(self, table: str, change: str) -> None:
        """Returns when the other is at its own change, too, or does not come; at once if this one was tried before."""
        if (table, change) in self.met:
            return
        self.met.add((table, change))
        mine = self.at[self.number] = self.round * _COMMITS_A_ROUND + len(self.met)
        give_up = time.monotonic() + _PATIENCE_S
        while self.at[1 - self.number] < mine and time.monotonic() < give_up:
            time.sleep(0.0002)


class Course(NamedTuple):
    """What one process does: `work` with the batches 1..rounds."""

    work: str
    who: str
    root: str
    pipeline: Pipeline
    rounds: int


class Done(NamedTuple):
    """`problems`: what escaped, by its text; `answers`: of each round."""

    problems: list[str]
    answers: list[str | None]


class Racers:
    """Two processes that begin every round together."""

    def __init__(self, columns: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        # The parent's goes with the last name that it has here.
        self.starts = context.Barrier(len(WHO))
        self.at = context.Array("q", len(WHO), lock=False)
        self.connections: list[Connection] = []
        self.processes = []
        for number in range(len(WHO)):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, self.starts, (number, self.at), dict(columns), dict(environment)), daemon=True
            )
            process.start()
            self.processes.append(process)
            self.connections.append(mine)

    def race(self, works: Sequence[str], root: str, pipeline: Pipeline, rounds: int) -> list[Done]:
        """Both do their work with the batches 1..rounds; gives what came of it."""
        for connection, work, who in zip(self.connections, works, WHO, strict=True):
            connection.send(Course(work, who, root, pipeline, rounds))
        done = []
        for connection in self.connections:
            assert connection.poll(_WITHIN_S), f"{works}: no end after {_WITHIN_S:.0f} s"
            done.append(connection.recv())
        return done

    def end(self) -> None:
        for connection, process in zip(self.connections, self.processes, strict=True):
            connection.send(None)
            process.join(10)


@contextmanager
def racers(columns: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Racers]:
    """`columns`: the JSON of each table's columns, by their declaration."""
    pair_of_them = Racers(columns, environment)
    try:
        yield pair_of_them
    finally:
        pair_of_them.end()


def _serve(
    connection: Connection,
    starts: threading.Barrier,
    meeting: tuple[int, Any],
    columns: Mapping[str, Any],
    environment: Mapping[str, str],
) -> None:
    global _meeting
    _meeting = Meeting(*meeting)
    os.environ.update(environment)
    DeltaTable.create_write_transaction = partialmethod(_commit_together, DeltaTable.create_write_transaction)
    tables._columns = lambda declaration: StructType.fromJson(columns[declaration])
    while (course := connection.recv()) is not None:
        connection.send(_run(course, starts))


def _commit_together(table: DeltaTable, commit: Callable[..., None], *given: Any, **named: Any) -> None:
    _meeting.arrive(table.table_uri, named["commit_properties"].custom_metadata["userMetadata"])
    commit(table, *given, **named)


def _run(course: Course, starts: threading.Barrier) -> Done:
    warehouse = Tables(course.root, course.pipeline)
    done = Done([], [])
    for number in range(1, course.rounds + 1):
        _meeting.begin(number)
        starts.wait(_WITHIN_S)
        try:
            done.answers.append(WORK[course.work](warehouse, course.who, number))
        except Exception:
            # Whatever it is, it is told; the other goes on.
            done.problems.append(f"{course.work} {number}: {traceback.format_exc()}")
    return done
