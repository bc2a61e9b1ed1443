"""The newest records of topics, read by this process. It only looks: no group commits, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from spark_jobs.kafka.acls import missing_right, on_topic, unreadable_topic
from spark_jobs.kafka.offsets import Partition, TopicsNow, ask_broker, offsets_since
from spark_jobs.kafka.records import SCHEMA, Share, Span, read_shares
from spark_jobs.kafka.settings import Settings

MOST_MB = 48
# Of one topic. A record may have a hundred megabytes, and decoded it may take thirty times its size.
_MOST_BYTES = MOST_MB * 1_000_000


class NewestRecords(NamedTuple):
    """The newest committed records of a topic (`records.SCHEMA`), partition by partition, each in its order.

    `is_whole`: the topic has no others. `is_cut`: they are so large that not even one of each partition was read. `is_fewer`: they are so large
    that fewer were read than asked for.
    """

    topic: str
    records: pa.Table
    is_whole: bool
    is_cut: bool = False
    is_fewer: bool = False


def read_newest(
    settings: Settings, topics: Iterable[str], most: int, since: int | None = None
) -> tuple[int, list[NewestRecords]]:
    """The wall time (epoch ms) before the topics' ends were asked for, and about the newest `most` records of each topic.

    They come from all partitions, and are fewer if they would be more than 48 MB. `since` (epoch ms, inclusive): no records with an older
    timestamp. Raises BrokerProblem, and NeedsOperator for a topic that is not there or may not be read.
    """
    topics = list(topics)
    now = ask_broker(settings, topics)
    first = dict(now.earliest)
    if since is not None:
        first = {place: max(first[place], at) for place, at in offsets_since(settings, now.end, since).items()}
    try:
        return now.wall_time, [_newest(settings, topic, now, first, most) for topic in topics]
    except Exception:
        if (topic := unreadable_topic(settings, topics)) is not None:
            raise missing_right(settings, on_topic("Read", topic)) from None
        raise


def _newest(settings: Settings, topic: str, now: TopicsNow, first: Mapping[Partition, int], most: int) -> NewestRecords:
    there = {
        place: now.end[place] - first[place] for place in now.end if place[0] == topic and now.end[place] > first[place]
    }
    asked = most
    while True:
        taken = share_out(most, there)
        parts = [Share(*place, Span(now.end[place] - count, now.end[place])) for place, count in taken.items() if count]
        records, is_full = _read(settings, parts)
        if not is_full or most <= len(there):
            return NewestRecords(topic, records, taken == there and not is_full, is_full, is_full or most < asked)
        most = max(most // 4, len(there))


def share_out(most: int, there: Mapping[Partition, int]) -> dict[Partition, int]:
    """How many of the newest offsets to take of each partition: equally many, but what one does not have others give. At least one of each.

    >>> share_out(100, {("t", 0): 10, ("t", 1): 1_000, ("t", 2): 1_000})
    {('t', 0): 10, ('t', 1): 45, ('t', 2): 45}
    """
    taken: dict[Partition, int] = {}
    left = most
    for number, place in enumerate(sorted(there, key=there.__getitem__)):
        taken[place] = min(there[place], max(left // (len(there) - number), 1))
        left -= taken[place]
    return {place: taken[place] for place in there}


def _read(settings: Settings, parts: list[Share]) -> tuple[pa.Table, bool]:
    """The records of the shares, the first ones if they are too large together, and whether they are."""
    batches, size = list[pa.RecordBatch](), 0
    for batch in read_shares(settings, parts, "earliest"):
        if batches and size + batch.nbytes > _MOST_BYTES:
            return pa.Table.from_batches(batches, SCHEMA), True
        batches.append(batch.select(SCHEMA.names).cast(SCHEMA))
        size += batch.nbytes
    return pa.Table.from_batches(batches, SCHEMA), False
