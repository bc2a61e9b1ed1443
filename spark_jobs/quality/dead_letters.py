"""Every record that a published batch rejected is on the rejected topic once: as the report reads back what was sent, and reconcile all there is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.kafka.dead_letters import read_dead_letters_sent
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.records import Span, Spans
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.checks import Finding, Offence
from spark_jobs.quality.delivery import TopicDelivery, delivered_to, is_cut, spans_of
from spark_jobs.quality.facts import Facts, facts_of, record_mark
from spark_jobs.quality.numbers import SIDES, Metrics, NotJudged
from spark_jobs.quality.sent_compounds import SentBatch
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.tables.ledger_rows import PUBLISHED_REJECTED, LedgerRow
from spark_jobs.tables.places import placed_by_side
from spark_jobs.tables.schemas import REJECTED
from spark_jobs.tables.warehouse import Warehouse


class DeadLetterScope(NamedTuple):
    """What the report reads back of the rejected topic: `batches`, those that are not void, and where the messages are."""

    batches: Collection[int]
    delivered: list[TopicDelivery]

    @property
    def spans(self) -> Spans:
        return spans_of(self.delivered)

    @property
    def refused(self) -> int:
        """Rejected records too large for the topic, so not on it."""
        return sum(batch.refused for each in self.delivered for batch in each.sent if batch.batch_id in self.batches)


def rejected_topics(rows: Iterable[LedgerRow], after: int, until: int) -> list[str]:
    """The topics that the dead letters of the batches after..until (exclusive, inclusive) were sent to."""
    mine = (row for row in rows if row.step == PUBLISHED_REJECTED and after < row.batch_id <= until)
    return list(dict.fromkeys(row.published_to for row in mine))


def dead_letter_scope(
    rows: Iterable[LedgerRow], valid: Collection[int], after: int, until: int, topics: TopicsNow
) -> DeadLetterScope | NotJudged | None:
    """The batches after..until (exclusive, inclusive), or why they cannot be read back any more; None if they sent no dead letters.

    `rows`: those of the publications in the ledger, from batch `after` on; `valid`: the batches that no rewind made void. Raises Unreadable if a
    topic cannot be read that far yet.
    """
    known = [row for row in rows if after <= row.batch_id <= until]
    found = delivered_to(rejected_topics(known, after, until), known, (PUBLISHED_REJECTED,), after, topics)
    if isinstance(found, NotJudged):
        return found
    mine = {batch.batch_id for each in found for batch in each.sent}.intersection(valid)
    return DeadLetterScope(mine, found) if mine else None


def dead_letter_facts(warehouse: Warehouse, topics: SideTopics, scope: DeadLetterScope) -> DataFrame:
    """Facts `dead_letter`, of the batch that rejected the record: this pipeline's dead letters in the spans, marked as the rejected events are.

    `topics`: of all batches, as for `table_facts`.
    """
    sent = read_dead_letters_sent(warehouse, scope.spans)
    letters = sent.select("batch_id", "topic", F.col("number").alias("partition"), "at")
    place = placed_by_side(topics, F.col("topic").isin(*topics.left))
    return facts_of(letters, F.lit("dead_letter"), F.col("topic"), mark=record_mark(place, "at"))


def dead_letter_metrics(warehouse: Warehouse, scope: DeadLetterScope | NotJudged | None, counted: Facts) -> Metrics:
    """`dead_letters_due`, `dead_letters_on_topic` and `dead_letter_difference`: the rejected events against the messages of the rejected topic.

    `dead_letters_not_judged` in the place of the difference where it cannot be judged; nothing if none were to be sent.
    """
    if not isinstance(scope, DeadLetterScope):
        return {"dead_letters_not_judged": scope} if scope else {}
    rejected, mine = [f"rejected_{side}" for side in SIDES], scope.batches
    due = sum(counted.number(what, mine) for what in rejected) - scope.refused
    there = counted.number("dead_letter", mine)
    marks = counted.mark(rejected[0], mine) ^ counted.mark(rejected[1], mine)
    others = not scope.refused and marks != counted.mark("dead_letter", mine)
    metrics: Metrics = {"dead_letters_due": due, "dead_letters_on_topic": there}
    difference = due - there or int(others)
    if difference and is_cut(scope.spans, _now(warehouse, scope)):
        return metrics | {"dead_letters_not_judged": NotJudged.RETENTION}
    return metrics | {"dead_letter_difference": difference}


def _now(warehouse: Warehouse, scope: DeadLetterScope) -> TopicsNow:
    return ask_broker(kafka_settings(warehouse.pipeline.output_connection), [each.topic for each in scope.delivered])


class CheckedLetters(NamedTuple):
    """What is wrong, and how many dead letters were looked for and found; `unchecked`: of how many batches the topic has no longer all."""

    offences: list[Offence]
    due: int
    there: int
    unchecked: int


def check_dead_letters(
    warehouse: Warehouse, topic: str, sent: Iterable[SentBatch], topics: TopicsNow, removed: int
) -> CheckedLetters:
    """Counts the dead letters of each batch on one topic; of a batch that is not in `sent` only whether they are there twice.

    `removed`: the last batch whose rejected events were removed for their age.
    """
    mine = {each.batch_id: each for each in sent if each.topic_id == topics.ids[topic] and each.batch_id > removed}
    spans = {place: Span(first, topics.end[place]) for place, first in topics.earliest.items() if place[0] == topic}
    letters = read_dead_letters_sent(warehouse, spans)
    cut = [number for (_, number), span in spans.items() if span.first > 0]
    whole = _first_whole_batch(letters, cut) if cut else 0
    judged = {number: each for number, each in mine.items() if whole is not None and number >= whole}
    rejected = warehouse.count_rows(REJECTED, sorted(judged)) if judged else {}
    due = {number: rejected[number] - each.refused for number, each in judged.items()}
    counted = (
        letters.where(F.col("batch_id") > removed)
        .groupBy("batch_id")
        .agg(F.count("*").alias("all"), F.countDistinct("topic", "number", "at").alias("places"))
    )
    found = {row["batch_id"]: (row["all"], row["places"]) for row in counted.collect()}
    there = sum(places for number, (_, places) in found.items() if number in judged)
    return CheckedLetters(list(_offences(due, found)), sum(due.values()), there, len(mine) - len(judged))


def counts_of_dead_letters(checked: Sequence[CheckedLetters]) -> dict[str, int]:
    """What reconcile prints of all topics; nothing without any."""
    if not checked:
        return {}
    unchecked = sum(each.unchecked for each in checked)
    return {
        "dead letters to be sent": sum(each.due for each in checked),
        "… on the rejected topic": sum(each.there for each in checked),
        **({"… batches cut by its retention, not checked": unchecked} if unchecked else {}),
    }


def _first_whole_batch(letters: DataFrame, cut: list[int]) -> int | None:
    """The first batch of which retention removed nothing from the `cut` partitions; None if one of them is empty."""
    rows = letters.where(F.col("partition").isin(cut)).groupBy("partition").agg(F.min("batch_id").alias("first")).collect()
    # Of the first batch that is left a part may be gone, too.
    return max(row["first"] for row in rows) + 1 if len(rows) == len(cut) else None


def _offences(due: Mapping[int, int], found: Mapping[int, tuple[int, int]]) -> Iterator[Offence]:
    for batch_id in sorted({*due, *found}):
        messages, places = found.get(batch_id, (0, 0))
        if (wanted := due.get(batch_id, places)) != places:
            yield Finding.LETTERS_OTHERWISE, f"batch {batch_id}: {wanted} dead letters were due, {places} are there"
        # Also of a batch that is not published: where publishing counts too many, it calls none so.
        if messages != places:
            yield Finding.LETTERS_TWICE, f"batch {batch_id}: {messages} dead letters of {places} records"
