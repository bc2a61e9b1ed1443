"""What has to be on the output topic since the last report, and between which offsets: read back, it is the other side of a law.

Each `published` row of the ledger has the ends that the output partitions had behind its batches (`end_<n>`), asked of the broker when all of
them were out. What lies between two of these is what was published between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.open_transactions import check_readable
from spark_jobs.kafka.records import Span, Spans, read_records
from spark_jobs.quality.facts import Facts, facts
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.quality.sent_compounds import header, is_ours
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.warehouse import Warehouse


class Due(NamedTuple):
    """The batches after..until (exclusive, inclusive), and where their messages are. `refused`: too large, so not among them.

    `published`: their rows of the ledger.
    """

    after: int
    until: int
    spans: Spans
    refused: int
    published: list[LedgerRow]

    @property
    def batch_ids(self) -> range:
        """The batches whose compounds must be there; void ones, too, if they were published."""
        return range(self.after + 1, self.until + 1)


def ends_of(row: LedgerRow | None) -> dict[int, int]:
    """Output partition -> end behind the row's batches, exclusive; empty without a row."""
    return dict(row.output_state.ends) if row else {}


def due(
    pipeline: Pipeline, published: Mapping[int, LedgerRow], after: int, until: int, topics: TopicsNow
) -> Due | NotJudged | None:
    """What to read back, or why it cannot be read any more; None if nothing was published, or by an earlier version.

    `published`: the ledger's rows by batch_id. Raises Unreadable if the topic cannot be read that far yet.
    """
    last, topic = published.get(until), pipeline.output_topic
    begins, same_topic = ends_of(published.get(after)), topics.ids[topic]
    if until <= after or last is None or not ends_of(last) or (after and not begins):
        return None
    if any(row.output_state.topic_id != same_topic for number, row in published.items() if after <= number <= until):
        return NotJudged.RECREATED
    spans = {(topic, number): Span(begins.get(number, 0), end) for number, end in ends_of(last).items()}
    if is_cut(spans, topics):
        return NotJudged.RETENTION
    check_readable(topics, {place: span.until for place, span in spans.items()})
    mine = [row for number, row in published.items() if after < number <= until]
    return Due(after, until, spans, sum(row.published.refused for row in mine), mine)


def is_cut(spans: Spans, topics: TopicsNow) -> bool:
    """Whether the broker no longer has the beginning of one of the spans."""
    return any(topics.earliest[place] > span.first for place, span in spans.items() if span.first < span.until)


def message_facts(warehouse: Warehouse, wanted: Due) -> DataFrame:
    """Facts `message`: this pipeline's messages in the spans, marked as their compounds are."""
    records = read_records(warehouse.spark, wanted.spans, False, ["headers"])
    told = records.select(header("pair-id").alias("pair_id"), header("revision").alias("revision"))
    mine, nothing = told.where(is_ours(warehouse.pipeline)), F.lit(0).cast("bigint")
    return facts(mine, F.lit("message"), F.lit(""), nothing, mark=F.xxhash64("pair_id", "revision"))


def delivered(wanted: Due, counted: Facts) -> dict[str, float]:
    """`due_on_topic`, `on_topic` and `delivery_difference`: the compounds of the table against the messages of the topic."""
    compounds = counted.number("compound", wanted.batch_ids) - wanted.refused
    messages = counted.number("message", (0,))
    others = not wanted.refused and counted.mark("compound", wanted.batch_ids) != counted.mark("message", (0,))
    difference = compounds - messages or int(others)
    return {"due_on_topic": compounds, "on_topic": messages, "delivery_difference": difference}
