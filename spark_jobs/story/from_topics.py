"""Reads what a rehearsal plays straight from the topics: their newest records, as one batch."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from include.config.pipeline import Pipeline
from include.config.time_text import count
from spark_jobs.faults.problems import warn
from spark_jobs.kafka.clusters import by_cluster
from spark_jobs.kafka.input_topics import find_topics
from spark_jobs.kafka.newest import MOST_MB, read_newest
from spark_jobs.kafka.records import BAD_HEADER
from spark_jobs.story.history import Batch, Message


def read_topics(pipeline: Pipeline, most: int, since: int | None) -> Iterator[Batch]:
    """One batch with about the newest `most` records of each topic, its clock and wall time when the first cluster was asked.

    `since`: epoch ms, inclusive; no records with an older timestamp. Warns if they are fewer, because they are large. Raises what `read_newest`
    raises.
    """
    left, right = find_topics(pipeline)
    clusters = by_cluster(pipeline, [*left, *right])
    times, samples = zip(*(read_newest(settings, topics, most, since) for settings, topics in clusters), strict=True)
    for sample in (each for of_cluster in samples for each in of_cluster if each.is_fewer):
        warn(
            f"records of {sample.topic} are so large that only the newest {count(sample.records.num_rows, 'record')} of it are rehearsed, "
            f"{MOST_MB} MB at most: partners of earlier ones are missing, so see which time the other topic's records are of"
        )
    messages = [message for of_cluster in samples for sample in of_cluster for message in messages_of(sample.records)]
    yield Batch(1, messages, min(times), min(times), pipeline)


def messages_of(records: pa.Table) -> list[Message]:
    """Records (`kafka.records.SCHEMA`) as messages."""
    place = ("topic", "partition", "offset", "record_timestamp", "value", BAD_HEADER, "key")
    rows = zip(*(records.column(name).to_pylist() for name in place), strict=True)
    headers = (
        tuple((header["key"], header["value"]) for header in each or ()) for each in records.column("headers").to_pylist()
    )
    return [Message._make((*row, each, None)) for row, each in zip(rows, headers, strict=True)]
