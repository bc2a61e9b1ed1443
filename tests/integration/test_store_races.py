"""Two writers of one table at once, in processes of their own, again and again: no row is lost and none is there twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import obstore
import pytest
from pyspark.sql.types import StructType

from include.config.pipeline import Pipeline
from include.config.store import OPTIONS_VARIABLE, read_bytes, warehouse_store
from include.local.store import LocalS3, LocalStore
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, OPEN, raw_table, schemas
from spark_jobs.tables.tables import Tables
from tests.helpers.racing import KEPT_BATCHES, ROWS, WHO, Racers, mark_of, racers
from tests.helpers.stores import root_on, table_of
from tests.helpers.timeline import CALLS

pytestmark = pytest.mark.integration

ROUNDS, FEWER = 200, 30
RAW = raw_table(CALLS.left)


class Raced(NamedTuple):
    """A warehouse and the two that race on it."""

    racers: Racers
    root: str
    store: LocalStore | None
    rounds: int

    @property
    def batches(self) -> list[int]:
        return list(range(1, self.rounds + 1))

    def race(self, one: str, other: str) -> tuple[Pipeline, list[list[str | None]]]:
        """Gives the pipeline on whose tables they raced, and what each answered in each round. Nothing escaped."""
        pipeline = replace(CALLS, name=f"{one}_{other}")
        warehouse = Tables(self.root, pipeline)
        create_missing(warehouse)
        done = self.racers.race((one, other), self.root, pipeline, self.rounds)
        assert [problem for each in done for problem in each.problems] == []
        return pipeline, [each.answers for each in done]

    def check_they_met(self, pipeline: Pipeline, table: str) -> None:
        """In many rounds a commit was refused because the other's was there first; only the S3 server tells."""
        if isinstance(self.store, LocalS3):
            place = f"{self.root.partition('://')[2]}/{pipeline.name}/{table}/_delta_log/"
            refused = [line for line in self.store.access_log.read_text().splitlines() if place in line and " 412 " in line]
            assert len(refused) > self.rounds // 4, f"{len(refused)} refused commits in {self.rounds} rounds"


@pytest.fixture(
    scope="module",
    params=[("s3", FEWER), *(pytest.param((kind, ROUNDS), marks=pytest.mark.long) for kind in ("s3", "azure", "folder"))],
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def raced(request, spark, tmp_path_factory) -> Iterator[Raced]:
    columns = {declared: json.loads(StructType.fromDDL(declared).json()) for declared in schemas(CALLS).values()}
    with pytest.MonkeyPatch.context() as patch:
        kind, rounds = request.param
        if kind == "folder":
            store, root, environment = None, str(tmp_path_factory.mktemp("races")), {}
        else:
            store = request.getfixturevalue(kind)
            root = root_on(store, f"races-{rounds}", patch)
            environment = {OPTIONS_VARIABLE: json.dumps(store.options)}
        with racers(columns, environment) as both:
            yield Raced(both, root, store, rounds)


class Log:
    """The log of a table, read file by file."""

    def __init__(self, root: str, pipeline: Pipeline, table: str) -> None:
        place = warehouse_store(root).at(pipeline.name, table)
        self.table = table_of(root, pipeline, table)
        names = [file["path"] for file in obstore.list(place.client, "_delta_log").collect()]
        self.versions = sorted(int(name[11:31]) for name in names if name.endswith(".json") and name[11:31].isdigit())
        self.commits = []
        for version in self.versions:
            text = read_bytes(place, f"_delta_log/{version:020d}.json").decode()
            self.commits.append([json.loads(line) for line in text.splitlines()])

    def said(self) -> Counter[str]:
        """What the commits say they are, without their batches."""
        found = [action["commitInfo"] for commit in self.commits for action in commit if "commitInfo" in action]
        return Counter(str(info.get("userMetadata", info["operation"])).partition(" of batch")[0] for info in found)

    def fences(self) -> dict[str, list[int]]:
        """Who changed the table, without the pipeline -> the versions of its transactions, in their order."""
        found: dict[str, list[int]] = {}
        for action in (action["txn"] for commit in self.commits for action in commit if "txn" in action):
            found.setdefault(action["appId"].partition(".")[2], []).append(action["version"])
        return found

    def check(self) -> None:
        """No version is missing, and each one changes exactly what the one before it left."""
        assert self.versions == list(range(self.table.version() + 1))
        there: set[str] = set()
        for version, commit in zip(self.versions, self.commits, strict=True):
            gone = {action["remove"]["path"] for action in commit if "remove" in action}
            new = {action["add"]["path"] for action in commit if "add" in action}
            assert gone <= there, f"version {version} takes away what was not there"
            assert not new & there, f"version {version} adds what was there"
            there = there - gone | new
        assert {uri.rpartition("/")[2] for uri in self.table.file_uris()} == there


def writers(log: Log, table: str) -> dict[int, Counter[str]]:
    """Batch -> how many rows of it are by whom."""
    columns = log.table.to_pyarrow_table(columns=["batch_id", mark_of(table)])
    found: dict[int, Counter[str]] = {}
    for batch_id, who in zip(*(column.to_pylist() for column in columns.columns), strict=True):
        found.setdefault(batch_id, Counter())[who] += 1
    return found


def assert_one_of_both(found: dict[int, Counter[str]], batches: list[int]) -> None:
    assert sorted(found) == batches
    assert [each for each in found.values() if each not in ({WHO[0]: ROWS}, {WHO[1]: ROWS})] == []


def checked_log(raced: Raced, pipeline: Pipeline, table: str) -> Log:
    log = Log(raced.root, pipeline, table)
    log.check()
    return log


def test_the_same_step_of_one_batch_is_done_by_one_of_them(raced):
    pipeline, _ = raced.race("land", "land")
    log = checked_log(raced, pipeline, RAW)
    assert log.fences() == {RAW: raced.batches} and len(log.commits) == 1 + raced.rounds
    assert_one_of_both(writers(log, RAW), raced.batches)
    raced.check_they_met(pipeline, RAW)


def test_two_planners_have_one_plan(raced):
    pipeline, (mine, others) = raced.race("plan", "plan")
    assert mine == others
    log = checked_log(raced, pipeline, LEDGER)
    assert log.fences() == {"planned": raced.batches} and len(log.commits) == 1 + raced.rounds
    rows = log.table.to_pyarrow_table(columns=["batch_id", "config_hash"]).to_pylist()
    assert sorted((row["batch_id"], row["config_hash"]) for row in rows) == list(zip(raced.batches, mine, strict=True))
    raced.check_they_met(pipeline, LEDGER)


def test_a_table_that_both_replace_has_the_rows_of_one_of_them(raced):
    pipeline, _ = raced.race("pair", "pair")
    for table, batches in ((COMPOUNDS, raced.batches), (OPEN, raced.batches[-1:])):
        log = checked_log(raced, pipeline, table)
        assert log.fences() == {table: raced.batches} and len(log.commits) == 1 + raced.rounds
        assert_one_of_both(writers(log, table), batches)
        raced.check_they_met(pipeline, table)
    # Every version had one set of rows, not the newest alone.
    for commit in log.commits[1:]:
        assert [sum(name in action for action in commit) for name in ("add", "remove")] == [
            1,
            int(commit is not log.commits[1]),
        ]


def test_different_steps_on_one_table_are_both_there(raced):
    pipeline, _ = raced.race("record_planned", "record_published")
    log = checked_log(raced, pipeline, LEDGER)
    assert (
        log.fences() == {"planned": raced.batches, "published": raced.batches} and len(log.commits) == 1 + 2 * raced.rounds
    )
    assert writers(log, LEDGER) == {number: dict.fromkeys(WHO, ROWS) for number in raced.batches}
    raced.check_they_met(pipeline, LEDGER)


def test_maintenance_loses_nothing_that_is_landed_meanwhile(raced):
    pipeline, _ = raced.race("maintain", "land")
    log = checked_log(raced, pipeline, RAW)
    assert log.fences() == {RAW: raced.batches}
    assert log.said()[RAW] == raced.rounds and log.said()["compaction"] > raced.rounds // 2
    assert writers(log, RAW) == {number: {WHO[1]: ROWS} for number in raced.batches}
    raced.check_they_met(pipeline, RAW)


def test_removal_takes_old_rows_and_no_new_ones(raced):
    pipeline, _ = raced.race("remove", "land")
    log = checked_log(raced, pipeline, RAW)
    assert log.fences() == {RAW: raced.batches, f"removed_{RAW}": [number - KEPT_BATCHES for number in raced.batches]}
    assert len(log.commits) == 1 + 2 * raced.rounds
    # The last removal may have come before what was landed with it.
    assert writers(log, RAW) == {number: {WHO[1]: ROWS} for number in raced.batches[-KEPT_BATCHES:]}
    raced.check_they_met(pipeline, RAW)


def test_two_who_put_the_same_files_together_double_no_row(raced):
    pipeline, _ = raced.race("land_and_maintain", "land_and_maintain")
    log = checked_log(raced, pipeline, RAW)
    assert log.fences() == {RAW: raced.batches}
    assert log.said()["compaction"] > raced.rounds // 2
    assert_one_of_both(writers(log, RAW), raced.batches)
    raced.check_they_met(pipeline, RAW)
