"""What waits when a report is made: records that no batch has landed, and events that are still open."""

from __future__ import annotations

from collections.abc import Mapping

from include.config.health import Lag
from include.config.pipeline import Pipeline
from spark_jobs.kafka.clusters import settings_of
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.kafka.records import Share, Span, read_shares
from spark_jobs.quality.batch import Batch
from spark_jobs.tables.schemas import OPEN
from spark_jobs.tables.warehouse import Warehouse

# The first committed record of a partition lies behind at most so many markers of transactions, or offsets that were compacted.
_LOOKED_AT = 100


def lag_after(warehouse: Warehouse, batch: Batch, topics: TopicsNow) -> Lag:
    """After the newest paired batch. `topics`: the ends of the input topics by now. `unread` counts offsets, markers of transactions included."""
    waiting = {
        at.place: Span(at.until_offset, topics.end[at.place])
        for at in batch.paired.offsets
        if topics.end.get(at.place, 0) > at.until_offset
    }
    # What a plan that reached the end has not read came after its wall time W; only a backlog has to be looked at.
    backlog = {at.place for at in batch.paired.offsets if at.until_offset < at.end_offset}
    times = [batch.at for place in waiting if place not in backlog]
    times += _first_times(warehouse.pipeline, {place: span for place, span in waiting.items() if place in backlog})
    opened = [file.first_ts for file in warehouse.files(OPEN) if file.first_ts is not None]
    return Lag(
        unread=sum(span.until - span.first for span in waiting.values()),
        oldest_unread=min(times) / 1000 if times else None,
        oldest_open=min(opened) / 1000 if opened else None,
    )


def _first_times(pipeline: Pipeline, spans: Mapping[Partition, Span]) -> list[int]:
    """The record timestamp of the first committed record of each span that has one near its begin, epoch ms."""
    found = []
    for (topic, partition), span in spans.items():
        near = Share(topic, partition, Span(span.first, min(span.until, span.first + _LOOKED_AT)))
        first = next(read_shares(settings_of(pipeline, topic), [near], "earliest", ("record_timestamp",)), None)
        if first is not None and first.num_rows:
            found.append(first["record_timestamp"][0].as_py())
    return found
