"""What a report needs before it counts: the batches before, what the broker holds, what was published since the last report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_jobs.kafka.offsets import TopicsNow, ask_broker, wait_for_markers
from spark_jobs.kafka.open_transactions import Unreadable, unreadable_problem
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.batch import Batch, stored_batches
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.quality.orphans import LOOK_BACK
from spark_jobs.quality.sent_compounds import DeliveryScope, delivery_scope
from spark_jobs.tables.ledger import PUBLISHED, REPORTED, Ledger, LedgerRow, paired_batches
from spark_jobs.tables.records import REWIND
from spark_jobs.tables.warehouse import Warehouse


class ReportInput(NamedTuple):
    """`batches`: those to be reported. `earlier`: those shortly before. `history`: the reported ones with their metrics, by batch_id. `topics`:
    what the broker holds; `delivery`: what to read back from the output topic, or why that is not possible; `published`: the last published batch.
    """

    batches: Sequence[Batch]
    earlier: Sequence[Batch]
    history: Sequence[Batch]
    topics: TopicsNow
    delivery: DeliveryScope | NotJudged | None
    published: int


def load_report_input(warehouse: Warehouse, ledger: Ledger, last: Mapping[str, int]) -> ReportInput | None:
    """None if no batch is to be reported. `last`: the ledger's `last_ids`. Raises JobProblem if the broker cannot be asked."""
    done, published = last[REPORTED], last[PUBLISHED]
    history = stored_batches(warehouse, done + 1 - warehouse.pipeline.quality.history_batches, done)
    # What was published up to the last report was read back by it.
    sent = min(int(history[-1].metrics.get("published_through", done)) if history else 0, published)
    rows = ledger.rows(max(min(done + 1 - LOOK_BACK, sent), 1))
    known = [Batch.of(steps) for steps in paired_batches(rows)]
    batches = [batch for batch in known if batch.batch_id > done]
    if not batches:
        return None
    by_id = {row.batch_id: row for row in rows if row.step == PUBLISHED}
    topics, delivery = _ask(warehouse, by_id, sent, published)
    earlier = [batch for batch in known if batch.batch_id <= done]
    history = [*rewind_targets(warehouse, batches, history), *history]
    return ReportInput(batches, earlier, history, topics, delivery, published)


def rewind_targets(warehouse: Warehouse, batches: Sequence[Batch], history: Sequence[Batch]) -> list[Batch]:
    """The batches that the rewinds among `batches` go on from, where these are older than the history."""
    oldest = history[0].batch_id if history else 1
    wanted = {batch.goes_on_from(0) for batch in batches if batch.paired.kind == REWIND}
    return [past for number in sorted(wanted) if 0 < number < oldest for past in stored_batches(warehouse, number, number)]


def _ask(
    warehouse: Warehouse, published: Mapping[int, LedgerRow], after: int, until: int
) -> tuple[TopicsNow, DeliveryScope | NotJudged | None]:
    settings, pipeline = kafka_settings(), warehouse.pipeline
    names = [*(side.topic for side in pipeline.sides), pipeline.output_topic]
    topics = ask_broker(settings, names)
    try:
        return topics, delivery_scope(pipeline, published, after, until, topics)
    except Unreadable:
        # What was committed a moment ago can be read a moment later.
        wait_for_markers(settings, pipeline.output_topic)
        topics = ask_broker(settings, names)
    try:
        return topics, delivery_scope(pipeline, published, after, until, topics)
    except Unreadable as problem:
        raise unreadable_problem(settings, problem) from None
