"""What the report reads back of the output topics: the messages that were sent since the last report.

It counts them, and looks closer where they are not as many as the compounds. Each `published…` row of the ledger has the ends that the output
partitions had behind its batches (`output.ends`), asked of the broker when all of them were sent: what lies between two of these was published
between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.kafka.messages import header
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.open_transactions import check_readable
from spark_jobs.kafka.output_topic import cleanup_of
from spark_jobs.kafka.records import Span, Spans, read_records, with_offsets
from spark_jobs.kafka.routing import Route
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.checks import Finding, count_where
from spark_jobs.quality.facts import Facts, facts_of, message_mark
from spark_jobs.quality.numbers import Metrics, NotJudged
from spark_jobs.quality.sent_compounds import (
    SentBatch,
    by_compound,
    compound_cases,
    is_ours,
    lies_before,
    sent_batch,
    with_absence,
    with_compaction,
)
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PUBLICATIONS, PUBLISHED, PUBLISHING, LedgerRow
from spark_jobs.tables.warehouse import Warehouse


class TopicDelivery(NamedTuple):
    """What was sent to one topic, and where it is."""

    topic: str
    spans: Spans
    sent: list[SentBatch]


class DeliveryScope(NamedTuple):
    """What the report reads back: successive batches, void ones, too, if they were published, and where their messages are, by topic."""

    batch_ids: range
    delivered: list[TopicDelivery]

    @property
    def spans(self) -> Spans:
        """Those of all topics."""
        return spans_of(self.delivered)

    @property
    def refused(self) -> int:
        """Compounds too large for their topic, so not on it."""
        return sum(batch.refused for each in self.delivered for batch in each.sent)

    @property
    def withdrawn(self) -> int:
        """Messages that only take back what is on another topic now."""
        return sum(batch.withdrawn for each in self.delivered for batch in each.sent)


def delivery_scope(
    pipeline: Pipeline, rows: Iterable[LedgerRow], after: int, until: int, topics: TopicsNow
) -> DeliveryScope | NotJudged | None:
    """The batches after..until (exclusive, inclusive), or why they cannot be read back any more; None if nothing was published.

    `rows`: those of the publications in the ledger, from batch `after` on. Raises Unreadable if a topic cannot be read that far yet.
    """
    known = [row for row in rows if after <= row.batch_id <= until]
    main = {row.batch_id for row in known if row.step == PUBLISHED}
    if until <= after or until not in main or (after and after not in main):
        return None
    delivered = delivered_to(topics_of(pipeline, after, known), known, PUBLICATIONS, after, topics)
    return delivered if isinstance(delivered, NotJudged) else DeliveryScope(range(after + 1, until + 1), delivered)


def spans_of(delivered: Iterable[TopicDelivery]) -> Spans:
    """Where the messages of all these topics are."""
    return {place: span for each in delivered for place, span in each.spans.items()}


def delivered_to(
    names: Iterable[str], rows: list[LedgerRow], steps: Sequence[str], after: int, topics: TopicsNow
) -> list[TopicDelivery] | NotJudged:
    """What rows of these steps say was sent to the topics behind batch `after`, or why it cannot be read back; not of topics that got nothing.

    `rows`: those of the publications from batch `after` on. Raises Unreadable.
    """
    found = []
    for name in names:
        delivered = _delivered(name, rows, steps, after, topics)
        if isinstance(delivered, NotJudged):
            return delivered
        found += [delivered] if delivered else []
    return found


def _delivered(
    topic: str, rows: list[LedgerRow], steps: Sequence[str], after: int, topics: TopicsNow
) -> TopicDelivery | NotJudged | None:
    """Of one topic; None if nothing was sent to it."""
    published = {row.batch_id: row for row in rows if row.step in steps and row.published_to == topic}
    sent = [row for number, row in published.items() if number > after]
    if topic not in topics.ids:
        return NotJudged.GONE
    if any(row.output_state.topic_id != topics.ids[topic] for row in published.values()):
        return NotJudged.RECREATED
    if not sent:
        return None
    begins = published[after].output_state.ends if after in published else _begun_at(rows, sent[0])
    ends = sent[-1].output_state.ends
    spans = {(topic, number): Span(begins.get(number, 0), end) for number, end in ends.items()}
    if is_cut(spans, topics):
        return NotJudged.RETENTION
    check_readable(topics, {place: span.until for place, span in spans.items()})
    return TopicDelivery(topic, spans, [sent_batch(row) for row in sent])


def topics_of(pipeline: Pipeline, after: int, rows: Iterable[LedgerRow]) -> list[str]:
    """The topics that the batches after this one were published to, the output topic first. `rows`: of publications."""
    mine = (row.published_to for row in rows if row.step in PUBLICATIONS and row.batch_id > after)
    return list(dict.fromkeys([pipeline.output_topic, *mine]))


def _begun_at(rows: list[LedgerRow], first: LedgerRow) -> Mapping[int, int]:
    """Partition -> its end when the first publication to a topic began. `first`: its row."""
    if first.step == PUBLISHED:
        return {}
    begun = [row.output_state for row in rows if row.step == PUBLISHING and row.batch_id == first.batch_id]
    return next((state.ends for state in begun if state.topic_id == first.output_state.topic_id), {})


def is_cut(spans: Spans, topics: TopicsNow) -> bool:
    """Whether the broker no longer has the beginning of one of the spans."""
    return any(topics.earliest[place] > span.first for place, span in with_offsets(spans).items())


def message_facts(warehouse: Warehouse, scope: DeliveryScope) -> DataFrame:
    """Facts `message`, of batch 0 and labelled by topic: this pipeline's messages in the spans, marked as their compounds are."""
    records = read_records(warehouse.spark, warehouse.pipeline, scope.spans, False, ["topic", "headers"])
    mine = records.select("topic", header("pair-id").alias("pair_id"), header("revision").alias("revision"))
    mine, none = mine.where(is_ours(Ledger(warehouse).topics())), F.lit(0).cast("bigint")
    return facts_of(mine, F.lit("message"), F.col("topic"), batch_id=none, mark=message_mark())


def delivery_metrics(warehouse: Warehouse, scope: DeliveryScope | NotJudged | None, counted: Facts) -> Metrics:
    """`due_on_topic`, `on_topic` and `delivery_difference`: the compounds of the table against the messages of the topics.

    `delivery_not_judged` in the place of the difference where it cannot be judged; nothing if nothing was published.
    """
    if not isinstance(scope, DeliveryScope):
        return {"delivery_not_judged": scope} if scope else {}
    compounds = counted.number("compound", scope.batch_ids) - scope.refused + scope.withdrawn
    messages = counted.number("message", (0,))
    metrics: Metrics = {"due_on_topic": compounds, "on_topic": messages}
    if len(scope.delivered) > 1:
        return metrics | _of_each_topic(warehouse, scope, counted)
    others = not scope.refused and counted.mark("compound", scope.batch_ids) != counted.mark("message", (0,))
    if difference := compounds - messages or int(others):
        return metrics | _compared(warehouse, scope.batch_ids, scope.delivered[0], difference)
    return metrics | {"delivery_difference": 0}


def _of_each_topic(warehouse: Warehouse, scope: DeliveryScope, counted: Facts) -> Metrics:
    """The sum of the differences of all topics, each looked at closer, unless every topic has just the compounds of its kinds."""
    if _is_by_kind(scope, counted):
        return {"delivery_difference": 0}
    found = [_compared(warehouse, scope.batch_ids, each, None) for each in scope.delivered]
    sums = {name: sum(each.get(name, 0) for each in found) for name in ("replaced_on_topic", "delivery_difference")}
    unknown = [each["delivery_not_judged"] for each in found if "delivery_not_judged" in each]
    if unknown and not sums["delivery_difference"]:
        return {"delivery_not_judged": unknown[0]}
    return sums


def _is_by_kind(scope: DeliveryScope, counted: Facts) -> bool:
    """Whether each topic has the messages of its kinds; False if one may have others, because of corrections or of batches without orphans topic."""
    labels = {label for label, _, _ in counted.of("compound", scope.batch_ids)}
    sent_to = [{batch.batch_id for batch in each.sent} for each in scope.delivered]
    if scope.refused or len(sent_to) != 2 or sent_to[0] != sent_to[1] or any(label.endswith(" again") for label in labels):
        return False
    pairs = {label for label in labels if f" {Outcome.PAIR} " in label}
    for each, kinds in zip(scope.delivered, (pairs, labels - pairs), strict=True):
        # Without a label, the facts of all are meant.
        compounds = (counted.number("compound", scope.batch_ids, *kinds), counted.mark("compound", scope.batch_ids, *kinds))
        if (compounds if kinds else (0, 0)) != (
            counted.number("message", (0,), each.topic),
            counted.mark("message", (0,), each.topic),
        ):
            return False
    return True


def _compared(warehouse: Warehouse, batch_ids: range, delivered: TopicDelivery, difference: int | None) -> Metrics:
    """`delivery_difference` on one topic by what retention removed meanwhile, and by the rules of compaction; as given, where these do not matter.

    `difference` None: it is not known. `replaced_on_topic`: messages that the rules allow to be gone.
    """
    settings = kafka_settings(warehouse.pipeline.output_connection)
    topic, its_spans, sent = delivered
    cleanup, topics = cleanup_of(settings, topic), ask_broker(settings, [topic])
    if is_cut(its_spans, topics):
        return {"delivery_not_judged": NotJudged.RETENTION}
    if cleanup.compacted is False and difference is not None:
        return {"delivery_difference": difference}
    # What came later may have replaced what was published then.
    spans = {place: Span(span.first, topics.end[place]) for place, span in its_spans.items()}
    ledger = Ledger(warehouse)
    route = Route(topic, ledger.batch_settings())
    compounds = by_compound(warehouse, route, sent, spans, batches=batch_ids)
    rows = with_compaction(with_absence(compounds, sent, topics.ids[topic], batch_ids[-1], {}), cleanup)
    cases = compound_cases(ledger.topics(), {})
    ends = {number: span.until for (_, number), span in its_spans.items()}
    refused = sum(batch.refused for batch in sent)
    conditions = {
        "missing": cases[Finding.NOT_SENT],
        "twice": cases[Finding.SENT_TWICE],
        "unknown": cases[Finding.SENT_UNKNOWN] & lies_before(ends, "offset"),
        "replaced": F.col("replaced"),
        "unknowable": F.col("unknowable"),
    }
    found = count_where(rows, conditions)
    missing, still_refused = max(found["missing"] - refused, 0), max(refused - found["missing"], 0)
    if difference := missing + found["twice"] + found["unknown"]:
        # Without the right to see the policy, what not even compaction may remove is a loss all the same.
        return {"replaced_on_topic": found["replaced"], "delivery_difference": difference}
    if cleanup.compacted is None:
        return {"delivery_not_judged": NotJudged.RIGHT}
    if found["unknowable"] > still_refused:
        return {"delivery_not_judged": NotJudged.TOMBSTONES}
    return {"replaced_on_topic": found["replaced"], "delivery_difference": 0}
