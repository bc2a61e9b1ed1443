"""Few rows are worked on in the job itself: no executor is asked, and everything is the same as by Spark's workers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pyspark.sql import functions as F

from spark_jobs import land_events, pair_events, publish_compounds, report_quality
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.quality.facts import record_mark
from spark_jobs.quality.marks import record_marks
from spark_jobs.spark.workers import ALONE_VARIABLE, FEW_VARIABLE, are_few, are_for_own_workers
from spark_jobs.tables import read_files
from spark_jobs.tables.schemas import COMPOUNDS, REJECTED
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import land, run_all
from tests.helpers.comparing import differences, rows
from tests.helpers.timeless_traffic import Portions, timeless

pytestmark = pytest.mark.integration


@pytest.fixture
def two(broker, spark, tmp_path, monkeypatch):
    """Two pipelines on the same topics, one without a Spark session, and what sends to both."""
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": broker.bootstrap}))
    pipelines = [timeless(name, "few_rows", tmp_path / "jobs")[0] for name in ("few_here", "few_by_spark")]
    root = str(tmp_path / "warehouse")
    alone, spread = (Warehouse(root, pipeline, session) for pipeline, session in zip(pipelines, (None, spark), strict=True))
    return alone, spread, Portions(broker, *pipelines)


# The kill matrix compares the same ways, also in the default run.
@pytest.mark.long
def test_few_rows_need_no_spark_and_are_the_same(two, broker, spark, monkeypatch):
    alone, spread, portions = two
    for number in range(3):
        if number < 2:
            # The third batch is empty.
            portions.send()
        for job in (land, pair_events.main, publish_compounds.main):
            job(alone)
        # The report of an empty batch has no question for Spark either.
        report_quality.main(Warehouse(alone.root, alone.pipeline, spark if number < 2 else None))
        with monkeypatch.context() as patch:
            patch.setenv(FEW_VARIABLE, "0")
            run_all(spread)
    assert differences(broker.bootstrap, alone.root, alone.pipeline, spread.pipeline) == []
    assert rows(alone.root, alone.pipeline, COMPOUNDS).total() > 20
    assert rows(alone.root, alone.pipeline, REJECTED).total() > 10
    counted = alone.count_rows(COMPOUNDS, range(1, 3))
    assert counted[1] > 5 and counted.total() == rows(alone.root, alone.pipeline, COMPOUNDS).total()
    # One file then has the rows of both batches.
    alone.newest(COMPOUNDS).optimize.compact()
    assert len(alone.files(COMPOUNDS)) == 1
    assert alone.count_rows(COMPOUNDS, range(1, 3)) == counted
    assert alone.count_rows(COMPOUNDS, range(2, 3)) == {2: counted[2]}


def test_marks_are_those_of_spark(spark):
    partition = np.array([0, 1, 2**31 - 1, -5] * 2, np.int32)
    offset = np.array([0, 7, 2**63 - 1, -(2**63), 1, 2**33, 3, -1])
    rows = spark.createDataFrame([*zip(partition.tolist(), offset.tolist(), strict=True)], "partition int, offset long")
    assert record_marks(partition, offset).tolist() == [
        mark for (mark,) in rows.select(record_mark(F.col("partition"))).collect()
    ]


def test_large_rows_are_left_to_spark(two, monkeypatch):
    """However few they are."""
    alone, _, portions = two
    portions.send()
    land_events.main(alone, 1_000_000, ())
    monkeypatch.setattr(read_files, "BYTES_OF_FEW", 100)
    with pytest.raises(AttributeError, match="NoneType"):
        pair_events.main(alone)


def test_limits_are_numbers(monkeypatch):
    assert (are_few(250_000), are_few(250_001)) == (True, False)
    monkeypatch.setenv(FEW_VARIABLE, "0")
    assert not are_few(0)
    monkeypatch.setenv(FEW_VARIABLE, "10")
    assert (are_few(10), are_few(11)) == (True, False)
    # This process has no workers of its own.
    assert not are_for_own_workers(11)
    monkeypatch.setenv(ALONE_VARIABLE, "5")
    assert (are_few(5), are_few(6)) == (True, False)
    monkeypatch.setenv(FEW_VARIABLE, "1e6")
    with pytest.raises(NeedsOperator, match="not a number of rows: PAIRING_ROWS_WITHOUT_SPARK=1e6"):
        are_few(1)
