"""Rows are brought together by their bucket, whatever file they were in; nothing of it is left on the disk."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from include.local.machine import ROOT
from spark_jobs.spark.local_shuffle import TooLarge, write_pieces

CODE = """
import os, sys
import numpy as np
import pyarrow as pa
from spark_jobs.spark.local_shuffle import shuffled
from spark_jobs.spark import local_shuffle
from spark_jobs.spark.local_workers import run_parts, scratch_files, start_workers
start_workers()

SCHEMA = pa.schema({"key": pa.string(), "value": pa.int64()})

def read(part):
    # One part has no rows, one an empty piece.
    for piece in range(part):
        count = 0 if piece == 2 else 5_000
        value = np.arange(count) + 10_000 * part + 100_000 * piece
        yield pa.record_batch({"key": [f"key {each % 701}" for each in value], "value": value}, schema=SCHEMA)

def bucket_of(rows):
    return np.array([int(key.split()[1]) % 7 for key in rows["key"].to_pylist()], np.int64)

def told(given):
    buckets, mine = given
    for table in buckets.read(mine):
        keys = sorted(set(bucket_of(table.combine_chunks().to_batches()[0])))
        yield pa.record_batch({"bucket": keys, "rows": [table.num_rows], "sum": [sum(table["value"].to_pylist())]})

with shuffled([0, 1, 2, 4], read, bucket_of, SCHEMA) as buckets:
    # Bucket 9 has no rows.
    parts = [(buckets.only(mine), mine) for mine in ([6, 0, 9], [1, 2], [3, 4, 5], [9])]
    assert not parts[-1][0].pieces
    found = pa.Table.from_batches(run_parts(parts, told)).to_pydict()
    assert os.listdir(os.environ["TMPDIR"]) == [], "a file has a name"
    sizes = {bucket: sum(size for _, _, size in pieces) for bucket, pieces in buckets.pieces.items()}
    assert sum(os.fstat(each.fileno()).st_size for each in scratch_files) > 30_000 * 12
everything = [int(each) for part in (1, 2, 4) for rows in read(part) for each in rows["value"].to_pylist()]
assert found["bucket"] == [6, 0, 1, 2, 3, 4, 5], found
assert sum(found["rows"]) == len(everything) == 30_000, found
for bucket, total in zip(found["bucket"], found["sum"]):
    assert total == sum(each for each in everything if each % 701 % 7 == bucket)
assert set(sizes) == set(range(7)) and 30_000 * 12 < sum(sizes.values()) < 30_000 * 40, sizes

def broken(part):
    yield from read(part)
    if part == 1:
        raise ValueError("part 1")

def lengths():
    return [os.fstat(each.fileno()).st_size for each in scratch_files]

def problem(read, limit):
    local_shuffle.BYTES_OF_A_BUCKET = limit
    try:
        with shuffled([4, 1, 4, 4, 4, 4, 4], read, bucket_of, SCHEMA):
            return "none"
    except (ValueError, local_shuffle.TooLarge) as error:
        # Nobody writes any more.
        assert lengths() == [0, 0], lengths()
        return f"{type(error).__name__}: {error}"

assert problem(broken, 10**9) == "ValueError: part 1"
assert problem(read, 1_000_000) == "none" and lengths() == [0, 0]
for limit in (100_000, 30_000):
    # In all parts together, and in one.
    assert problem(read, limit) == "TooLarge: more than 0 MB come together in one worker"
local_shuffle.BYTES_OF_A_BUCKET = 10**9
with shuffled([1, 2], read, bucket_of, SCHEMA) as buckets:
    (found,) = run_parts([(buckets.only([3]), [3])], told)
    assert found["rows"][0].as_py() == sum(int(each) % 701 % 7 == 3 for part in (1, 2) for rows in read(part) for each in rows["value"].to_pylist())
print("right")
"""


def test_every_row_is_in_its_bucket_once_and_nothing_is_left(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path), "PAIRING_WORKERS": "2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr


def test_a_full_disk_is_work_for_spark():
    rows = pa.record_batch({"value": pa.array(range(100_000))})
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(TooLarge, match="no room in /"):
        write_pieces(full, 0, [rows], lambda rows: np.zeros(rows.num_rows, np.int64), 10**9)


def test_a_worker_stops_when_it_alone_has_too_much_of_a_bucket(tmp_path):
    rows = pa.record_batch({"value": pa.array(range(1_000))})

    def endless():
        while True:
            yield rows

    with open(tmp_path / "file", "w+b") as file, pytest.raises(TooLarge, match="more than 1 MB come together"):
        write_pieces(file, 0, endless(), lambda rows: np.zeros(rows.num_rows, np.int64), 1_000_000)
    assert 900_000 < (tmp_path / "file").stat().st_size < 1_100_000
