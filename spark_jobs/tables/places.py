"""Topic and partition of table rows as the one number by which events are told apart (`side_topics.pack`), in Spark's columns."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from spark_jobs.rules.side_topics import MOST_PARTITIONS, SideTopics, has_several


def topic_column(topics: SideTopics, *prefixes: str) -> list[str]:
    """The names of the topic columns that the numbers are made of; none where every side has one topic. `prefixes`: of these names."""
    return [f"{prefix}topic" for prefix in prefixes or ("",)] if has_several(topics) else []


def placed(topics: tuple[str, ...], prefix: str = "") -> Column:
    """The numbers of rows of one side. `topics`: of the side; `prefix`: of the names of the rows' columns."""
    partition = F.col(f"{prefix}partition")
    if len(topics) < 2:
        return partition
    number = F.array_position(F.array(*map(F.lit, topics)), F.col(f"{prefix}topic")) - 1
    return (number * MOST_PARTITIONS + partition).cast("int")


def placed_by_side(topics: SideTopics, is_left: Column) -> Column:
    """The numbers of rows of both sides."""
    left, right = map(placed, topics)
    return F.when(is_left, left).otherwise(right) if has_several(topics) else F.col("partition")
