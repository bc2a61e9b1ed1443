"""A partition that is sent bucket by bucket is sent in the order in which it would be sent as a whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_jobs.kafka.messages import MESSAGE_COLUMNS
from spark_jobs.stages import send
from spark_jobs.stages.send import _ordered, _Slots
from spark_jobs.tables.data_files import DataFile

ORDER = ("ts", "key", "value")
PARTITIONS, BATCHES = 3, range(5, 8)


def messages(random, span):
    """Times at both ends and outside of what the files say, and many that are the same."""
    count = 3_000
    columns = {
        "output_partition": random.integers(0, PARTITIONS, count),
        "batch_id": random.integers(BATCHES.start, BATCHES.stop, count),
        "key": [b"%d" % each for each in random.integers(0, 20, count)],
        "value": [b"%d" % each for each in range(count)],
        "ts": random.choice([0, 1, span - 1, span, 10 * span, *random.integers(0, span + 1, 50)], count),
    }
    types = {field.name: field.type for field in MESSAGE_COLUMNS}
    return pa.record_batch({name: pa.array(values, types[name]) for name, values in columns.items()})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("span", [0, 1, 60_000, 10**15])
def test_buckets_one_after_the_other_are_the_whole_in_its_order(seed, span, monkeypatch):
    monkeypatch.setattr(send, "ROWS_OF_A_BUCKET", 100)
    rows = messages(np.random.default_rng(seed), span)
    files = [
        DataFile("a", 1, 1_000, first_batch=5, last_batch=5, first_ts=0, last_ts=span),
        DataFile("b", 1, 900, first_batch=5, last_batch=5),
        DataFile("c", 1, 1_100, first_batch=6, last_batch=7, first_ts=0, last_ts=0),
    ]
    slots = _Slots.of(BATCHES, files, PARTITIONS)
    assert slots == (BATCHES, 0, span, 1 + 1_900 // 100 // PARTITIONS)
    buckets = slots.bucket_of(rows)
    whole = _ordered(pa.Table.from_batches([rows]), ORDER)
    for partition in range(PARTITIONS):
        mine = [rows.filter(pa.array(buckets == bucket)) for bucket in slots.of_partition(partition)]
        sent = pa.concat_tables(_ordered(pa.Table.from_batches([each]), ORDER) for each in mine)
        assert sent["value"].to_pylist() == whole.filter(pc.equal(whole["output_partition"], partition))["value"].to_pylist()
        assert sent.num_rows > 800
    if span > 1:
        # Not all in one.
        assert len(np.unique(buckets)) > 3 * PARTITIONS * len(BATCHES)


def test_files_that_say_nothing_are_one_portion():
    assert _Slots.of(range(1, 2), [DataFile("a", 1, 65_535)], 1) == (range(1, 2), 0, 0, 1)
    # Large messages have more.
    assert _Slots.of(range(1, 2), [DataFile("a", 160_000_000, 1_000)], 2).portions == 6
