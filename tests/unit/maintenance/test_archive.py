"""Rows are on the disk, complete and read back, before they may go; whoever repeats it writes the same."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from include.config.pipeline import Maintenance
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.maintenance import archive as archiving
from spark_jobs.maintenance.archive import Archive
from spark_jobs.rules.conservation import BrokenInvariant
from tests.helpers.reading import table_rows
from tests.helpers.story_tables import played, remove_up_to
from tests.helpers.timeline import SMALL

BATCHES = [("a0:x m50:x", 3_000), ("a3100:y", 6_000), ("a6100:z m6150:z", 9_000)]


@pytest.fixture
def folder(tmp_path):
    found = tmp_path / "the archive"
    found.mkdir()
    return found


@pytest.fixture
def warehouse(tmp_path, folder):
    found = played(tmp_path / "warehouse", BATCHES)
    return replace(found, pipeline=replace(SMALL, maintenance=Maintenance(raw_retention_ms=1, archive=str(folder))))


def files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_without_the_setting_there_is_none(warehouse):
    assert Archive.of(replace(warehouse, pipeline=SMALL)) is None


@pytest.mark.parametrize("table", ["raw_analytics", "batch_ledger"])
def test_file_and_table_are_everything(warehouse, folder, table):
    before = table_rows(warehouse, table)
    Archive.of(warehouse).put(warehouse, table, 1, 2)
    assert files(folder) == [f"{SMALL.name}/{table}/batches-0000000001-0000000002.parquet"]
    (file,) = folder.rglob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    remove_up_to(warehouse, table, 2)
    # As DuckDB finds them, with whatever else lies in the folders.
    archived = duckdb.sql(f"SELECT batch_id FROM '{folder}/**/*.parquet'").fetchall()
    kept = [row["batch_id"] for row in table_rows(warehouse, table)]
    assert Counter(each for (each,) in archived) + Counter(kept) == Counter(row["batch_id"] for row in before)
    assert set(kept) == {3} and {each for (each,) in archived} == {1, 2}
    assert Counter(map(str, pq.read_table(file).to_pylist() + table_rows(warehouse, table))) == Counter(map(str, before))


def test_who_repeats_it_writes_the_same_file(warehouse, folder, monkeypatch):
    archive = Archive.of(warehouse)

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(archiving, "_read", die)
        with pytest.raises(KeyboardInterrupt):
            archive.put(warehouse, "raw_analytics", 1, 2)
    # What is not complete has no name that anybody looks for.
    assert list(folder.rglob("*.parquet")) == []
    for _ in range(2):
        archive.put(warehouse, "raw_analytics", 1, 2)
    assert len(files(folder)) == 1
    assert pq.read_metadata(folder / files(folder)[0]).num_rows == 2


def test_what_does_not_come_back_is_not_archived(warehouse, folder, monkeypatch):
    monkeypatch.setattr(archiving, "_read", lambda _: Counter({1: 1}))
    with pytest.raises(BrokenInvariant, match=r"has 1 of the 2 rows that were written into it: .* nothing was deleted"):
        Archive.of(warehouse).put(warehouse, "raw_analytics", 1, 2)
    assert list(folder.rglob("*.parquet")) == []


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing(warehouse, folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "the words of some library")

    monkeypatch.setattr(archiving, "_sync", full)
    line = r"the archive .*/raw_analytics cannot be written \(No space left on device\): free space there .*; nothing was deleted"
    with pytest.raises(JobProblem, match=line):
        Archive.of(warehouse).put(warehouse, "raw_analytics", 1, 2)
    assert files(folder) == []


def test_a_table_that_is_damaged_is_not_taken_for_a_bad_archive(warehouse):
    next(Path(warehouse.path("raw_analytics")).glob("*.parquet")).unlink()
    with pytest.raises(NeedsOperator, match=r"raw_analytics/part-\S+ is missing: the table is damaged"):
        Archive.of(warehouse).put(warehouse, "raw_analytics", 1, 3)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("{root}/nowhere", "is no folder: mount it or make it"),
        ("{tables}/raw_analytics", "lies among the tables of pipeline"),
    ],
)
def test_a_folder_that_cannot_be_one_is_refused(warehouse, tmp_path, given, line):
    given = given.format(root=tmp_path, tables=Path(warehouse.root) / SMALL.name)
    care = replace(warehouse.pipeline.maintenance, archive=given)
    with pytest.raises(NeedsOperator, match=line):
        Archive.of(replace(warehouse, pipeline=replace(SMALL, maintenance=care)))
