"""The Spark session of a job. What differs between machines (master, jars, memory) comes from the submit, not from here."""

from __future__ import annotations

from pyspark.sql import SparkSession


def spark_session(job: str, pipeline: str) -> SparkSession:
    """A session that reads and writes Delta tables; times are UTC whatever the machine's zone is."""
    return (
        SparkSession.builder.appName(f"{pipeline}.{job}")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
