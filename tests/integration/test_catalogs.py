"""A Hive metastore has the tables and views of docs/readers.md for every Spark, and Delta's change feed says what that page says."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from include.local.machine import JARS, VENV, project_environment
from spark_jobs.tables.commit import commit_rows, remove_batches
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.tables import Tables
from tests.helpers.metastore import metastore
from tests.helpers.stored_tables import FOLDER
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.examples.test_views import block, expected, run

pytestmark = [pytest.mark.integration, pytest.mark.long]

SESSION = """
import json, sys
from pyspark.sql import SparkSession
spark, FOLDER = SparkSession.builder.getOrCreate(), sys.argv[1]
"""
READING = """
spark.sql("USE calls")
rows = lambda query: [list(row) for row in spark.sql(query).collect()]
latest, orphans = (rows(f"SELECT pair_id, revision FROM {view}") for view in ("calls_latest", "orphans"))
rejected = rows("SELECT topic, partition, offset, reason, value_text, because, CAST(record_time AS STRING) FROM rejected_readable")
feed = rows(f"SELECT _change_type, pair_id FROM table_changes('compound_events', {sys.argv[2]})") if sys.argv[2:] else []
external = [row.data_type for row in spark.sql("DESCRIBE EXTENDED compound_events").collect() if row.col_name == "Type"]
print(json.dumps([latest, orphans, rejected, feed, external]))
"""


def by_spark(folder, metastore_at, code, *arguments):
    """Runs the code as a program of its own; returns the last line that it prints."""
    script = folder / "program.py"
    script.write_text(SESSION + code)
    settings = {
        "spark.driver.extraClassPath": str(JARS / "readers" / "*"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.hive.metastore.uris": metastore_at,
        "spark.sql.warehouse.dir": f"file://{folder}/spark-warehouse",
    }
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    command = [str(VENV / "bin" / "spark-submit"), "--master=local[1]", *options, str(script), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=project_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.strip().splitlines()[-1:]


def compound(pair_id, batch_id):
    names = DeltaTable(FOLDER / "calls" / COMPOUNDS).schema().to_arrow().names
    return dict.fromkeys(names) | {"pair_id": pair_id, "revision": 0, "op": "upsert", "kind": "pair", "batch_id": batch_id}


def test_another_spark_finds_tables_views_and_new_batches_by_their_names(spark, tmp_path):
    folder = shutil.copytree(FOLDER / "calls", tmp_path / "calls")
    tables = Tables(str(tmp_path), CALLS)
    with metastore(tmp_path) as at:
        by_spark(tmp_path, at, block("spark"), str(folder))
        run("feed", folder)
        begin, last = DeltaTable(folder / COMPOUNDS).version(), 1_000
        # What the jobs commit afterwards is there without another word.
        commit_rows(tables, COMPOUNDS, [compound("a", last), compound("b", last)], COMPOUNDS, last)
        (line,) = by_spark(tmp_path, at, READING, str(folder), str(begin + 1))
        latest, orphans, rejected, feed, external = json.loads(line)
        assert {("a", 0), ("b", 0)} <= {*map(tuple, latest)} and len(latest) == len({*map(tuple, latest)})
        known = expected(folder)
        assert ({*map(tuple, latest)}, {*map(tuple, orphans)}, sorted(tuple(row[:5]) for row in rejected)) == known
        assert all(because and time for *_, because, time in rejected) and external == ["EXTERNAL"]
        assert sorted(feed) == [["insert", "a"], ["insert", "b"]]


def test_the_feed_of_a_removal_has_unchanged_rows_on_both_sides(spark, tmp_path):
    folder = shutil.copytree(FOLDER / "calls", tmp_path / "calls")
    run("feed", folder)
    before = batches(folder)
    remove_batches(Tables(str(tmp_path), CALLS), COMPOUNDS, min(before))
    table = DeltaTable(folder / COMPOUNDS)
    feed = pa.table(table.load_cdf(starting_version=table.version()).read_all()).to_pylist()
    inserted, deleted = (
        Counter(row["batch_id"] for row in feed if row["_change_type"] == kind) for kind in ("insert", "delete")
    )
    assert deleted - inserted == before - batches(folder) == Counter({min(before): before[min(before)]})
    assert inserted


def batches(folder):
    """Rows by batch."""
    return Counter(DeltaTable(folder / COMPOUNDS).to_pyarrow_table(columns=["batch_id"])["batch_id"].to_pylist())
