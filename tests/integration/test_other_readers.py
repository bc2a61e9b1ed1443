"""Other programs read the tables: Delta for Spark in a folder, DuckDB on a store."""

from __future__ import annotations

import json
import subprocess
import time

import duckdb
import pytest

from include.local.machine import JARS, ROOT, VENV, project_environment
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import run_all
from tests.helpers.reading import table_rows
from tests.helpers.stores import root_on, table_of

pytestmark = pytest.mark.integration

_BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
read = lambda table: spark.read.format("delta").load(f"{sys.argv[1]}/{table}")
compounds = sorted([row.pair_id, row.analytics, row.metrics] for row in read("compound_events").collect())
steps = sorted([row.batch_id, row.step, row.counts] for row in read("batch_ledger").collect())
print(json.dumps([compounds, steps]))
"""


def two_batches(warehouse, send):
    ago = time.time_ns() // 1_000_000 - 3_600_000
    for number in range(2):
        send("a", f"both{number}", ago + number, {"id": number})
        send("m", f"both{number}", ago + number + 30, ["é", None])
        send("a", f"left{number}", ago, "text")
        run_all(warehouse)


@pytest.mark.long
def test_spark_with_delta_reads_what_the_jobs_wrote(warehouse, send, tmp_path):
    two_batches(warehouse, send)
    script = tmp_path / "read.py"
    script.write_text(_BY_SPARK)
    delta = {
        "spark.driver.extraClassPath": str(JARS / "readers" / "*"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    options = [f"--conf={name}={value}" for name, value in delta.items()]
    command = [
        str(VENV / "bin" / "spark-submit"),
        "--master=local[1]",
        *options,
        str(script),
        f"{warehouse.root}/{warehouse.pipeline.name}",
    ]
    done = subprocess.run(command, cwd=ROOT, env=project_environment(), capture_output=True, text=True, check=True)
    compounds, steps = json.loads(done.stdout.strip().splitlines()[-1])
    assert compounds == sorted(
        [row["pair_id"], row["analytics"], row["metrics"]] for row in table_rows(warehouse, COMPOUNDS)
    )
    assert steps == sorted([row["batch_id"], row["step"], dict(row["counts"])] for row in table_rows(warehouse, LEDGER))
    # What the second batch brought was late.
    assert len(compounds) == 2 and len(steps) == 12


def test_duckdb_reads_what_the_jobs_wrote_on_a_store(s3, spark, pipeline, send, monkeypatch):
    warehouse = Warehouse(root_on(s3, "duckdb", monkeypatch), pipeline, spark)
    two_batches(warehouse, send)
    compounds = table_of(warehouse.root, pipeline, COMPOUNDS).to_pyarrow_dataset()
    answer = duckdb.sql("SELECT kind, count(*), max(batch_id) FROM compounds GROUP BY kind ORDER BY kind").fetchall()
    assert compounds.count_rows() == 2 and answer == [("left_only", 1, 1), ("pair", 1, 1)]
