"""Rows that are all small are only counted on their way to Python; what may be large is sized, so that no batch outgrows a worker."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from include.config.store import Store
from spark_jobs.spark import workers as stages
from spark_jobs.spark.session import override_settings
from spark_jobs.spark.workers import release_memory, skip_size_checks
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.parquet_files import FileWriter
from spark_jobs.tables.read_files import longest_texts

ROWS = 20_000
SIZED, COUNTED = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"


def rows_of(spark, folder, texts):
    """Rows with the texts, by a file of ours, that come in one task; and what the file tells of them."""
    store = Store(str(folder))
    with FileWriter(store) as writer:
        for text, times in texts:
            writer.write(pa.record_batch({"payload": pa.array([text] * times)}))
        written = writer.finish()
    file = DataFile(written.name, written.size, sum(times for _, times in texts))
    return spark.read.parquet(f"{folder}/{file.name}").coalesce(1), longest_texts(store, [file])


def sizes(rows):
    """Rows and bytes of each batch that a worker gets."""

    def told(batches):
        for batch in batches:
            yield pa.record_batch({"rows": [batch.num_rows], "bytes": [batch.nbytes]})

    return [tuple(row) for row in rows.mapInArrow(told, "rows bigint, bytes bigint").collect()]


def settings(spark):
    return {name: spark.conf.get(name) for name in (SIZED, COUNTED)}


def test_small_rows_are_counted_whatever_the_settings_say_and_these_come_back(spark, tmp_path):
    rows, longest = rows_of(spark, tmp_path, [("small", ROWS)])
    with override_settings(spark, {COUNTED: "300", SIZED: "1kb"}):
        before = settings(spark)
        with skip_size_checks(spark, longest):
            assert [number for number, _ in sizes(rows)] == [10_000, 10_000]
        assert settings(spark) == before
        with pytest.raises(ZeroDivisionError), skip_size_checks(spark, longest):
            raise ZeroDivisionError
        assert settings(spark) == before
        assert len(sizes(rows)) > 10


def test_one_large_row_among_small_ones_has_all_of_them_sized(spark, tmp_path):
    rows, longest = rows_of(spark, tmp_path, [("small", 1), ("x" * 10_000, ROWS)])
    with skip_size_checks(spark, longest):
        found = sizes(rows)
    assert sum(number for number, _ in found) == ROWS + 1
    assert max(size for _, size in found) < 20_000_000


def test_rows_of_which_nobody_tells_are_sized(spark):
    before = settings(spark)
    with skip_size_checks(spark, None):
        assert settings(spark) == before


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1_000_000


def test_what_a_large_task_has_left_behind_is_given_back(monkeypatch):
    # Too small to be blocks of their own, and the last one keeps all below it from being given back at once.
    blocks = [b"x" * 100_000 for _ in range(2_000)]
    last = blocks.pop()
    del blocks
    before = resident_mb()
    monkeypatch.setattr(stages, "_KEPT_BYTES", 2 * before * 1_000_000)
    release_memory()
    assert resident_mb() > before - 20
    monkeypatch.setattr(stages, "_KEPT_BYTES", 0)
    release_memory()
    assert resident_mb() < before - 150
    assert last
