"""The Spark session of a job. What differs between machines (master, jars, memory) comes from the submit, not from here."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession

# Compiling a plan takes longer than running it on a few thousand rows: from this many rows on it pays.
_MANY_ROWS = 200_000
_COMPILED: dict[str, str | bool] = {
    "spark.sql.codegen.wholeStage": True,
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": True,
}
_INTERPRETED: dict[str, str | bool] = {
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": False,
}


def spark_session(job: str, pipeline: str) -> SparkSession:
    """A session that reads and writes Delta tables; times are UTC whatever the machine's zone is."""
    spark = (
        SparkSession.builder.appName(f"{pipeline}.{job}")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    expect_rows(spark, 0)
    # A job starts with reading the ledger on one core. Meanwhile the other gets ready what every job needs next.
    threading.Thread(target=_warm_up, args=(spark,), daemon=True).start()
    return spark


def expect_rows(spark: SparkSession, rows: int) -> None:
    """Has Spark compile its plans if there are many rows to come, interpret them if few. The answers are the same."""
    for name, value in (_COMPILED if rows >= _MANY_ROWS else _INTERPRETED).items():
        spark.conf.set(name, value)


def _warm_up(spark: SparkSession) -> None:
    """Loads what a cold JVM would load one after the other: shuffle, aggregation, Python workers. Changes nothing."""
    # A job that is over before this is stops the session under it, which is no harm.
    with suppress(Exception):
        rows = spark.range(4).selectExpr("id", "string(id) AS name").repartition(2, "name").sortWithinPartitions("name")
        rows.mapInArrow(_same, "id BIGINT, name STRING").groupBy("name").count().collect()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
