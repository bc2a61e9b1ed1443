"""Topics as Spark reads them: committed records only, between offsets that were asked for at the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.broker.offsets import Partition
from spark_jobs.broker.settings import java_settings, kafka_settings


class Span(NamedTuple):
    """Offsets of one partition, from inclusive, until exclusive."""

    first: int
    until: int


def read_spans(spark: SparkSession, spans: Mapping[Partition, Span]) -> DataFrame:
    """The records in these spans, with headers. What retention deletes meanwhile is left out without an error."""
    offsets: dict[str, dict[str, Span]] = {}
    for (topic, partition), span in spans.items():
        if span.first < span.until:
            offsets.setdefault(topic, {})[str(partition)] = span
    reader = spark.read.format("kafka").options(**java_settings(kafka_settings()))
    if not offsets:
        return spark.createDataFrame([], "topic STRING, partition INT, offset BIGINT, `key` BINARY, value BINARY, headers "
                                     "ARRAY<STRUCT<`key`: STRING, value: BINARY>>")  # fmt: skip
    return (
        reader.option("assign", json.dumps({topic: [int(number) for number in parts] for topic, parts in offsets.items()}))
        .option(
            "startingOffsets", json.dumps({t: {n: span.first for n, span in parts.items()} for t, parts in offsets.items()})
        )
        .option(
            "endingOffsets", json.dumps({t: {n: span.until for n, span in parts.items()} for t, parts in offsets.items()})
        )
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "false")
        .load()
    )


def fingerprint(*columns: str) -> Column:
    """A number that tells byte strings apart, and an absent one from an empty one."""
    return F.xxhash64(*(F.hex(column) for column in columns), *(F.col(column).isNull() for column in columns))
