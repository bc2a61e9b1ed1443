"""How many of the newest records are read, and when it stops."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_jobs.kafka import newest
from spark_jobs.kafka.newest import read_newest
from spark_jobs.kafka.records import SCHEMA


@pytest.fixture
def topic(monkeypatch):
    """topic(partitions, size): a topic with ten records of this many bytes in each partition; returns what is read, offsets of each reading."""

    def made(partitions: int, size: int) -> list[int]:
        places = [("t", number) for number in range(partitions)]
        ends = SimpleNamespace(earliest=dict.fromkeys(places, 0), end=dict.fromkeys(places, 10), wall_time=5)
        readings: list[int] = []

        def read(settings, parts, if_lost):
            readings.append(0)
            for part in parts:
                for offset in range(*part.span):
                    readings[-1] += 1
                    record = dict.fromkeys(SCHEMA.names) | {
                        "partition": part.partition,
                        "offset": offset,
                        "value": b"x" * size,
                    }
                    yield pa.RecordBatch.from_pylist([record], SCHEMA)

        monkeypatch.setattr(newest, "ask_broker", lambda *_: ends)
        monkeypatch.setattr(newest, "read_shares", read)
        monkeypatch.setattr(newest, "_MOST_BYTES", 20_000)
        return readings

    return made


@pytest.mark.parametrize(
    ("partitions", "size", "records", "is_whole", "is_cut", "is_fewer"),
    [
        (2, 100, 20, True, False, False),
        (2, 1_500, 10, False, False, True),
        (64, 1_000, 19, False, True, True),
        (2, 50_000, 1, False, True, True),
    ],
    ids=["all", "fewer of each partition", "not one of each", "one larger than the limit"],
)
def test_more_bytes_than_the_limit_are_not_kept(topic, partitions, size, records, is_whole, is_cut, is_fewer):
    readings = topic(partitions, size)
    wall_time, (read,) = read_newest({}, ["t"], 40)
    assert (wall_time, read.records.num_rows) == (5, records)
    assert (read.is_whole, read.is_cut, read.is_fewer) == (is_whole, is_cut, is_fewer)
    assert max(readings) <= records + 11
