"""What a report has to know before it counts: the batches before, what the broker holds, what was published since the last report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from spark_jobs.kafka.offsets import TopicsNow, ask_broker, wait_for_markers
from spark_jobs.kafka.open_transactions import Unreadable, unreadable_problem
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.delivery import Due, due
from spark_jobs.quality.history import Past
from spark_jobs.quality.laws import Steps
from spark_jobs.quality.numbers import NotJudged
from spark_jobs.quality.orphans import LOOK_BACK
from spark_jobs.tables.ledger import PAIRED, PUBLISHED, REPORTED, Ledger, LedgerRow, counting
from spark_jobs.tables.records import REWIND
from spark_jobs.tables.warehouse import METRICS, Warehouse


class Known(NamedTuple):
    """`batches`: those to be reported, by step. `earlier`: those shortly before. `history`: the reported ones, by batch_id. `topics`: what the
    broker holds; `due`: what to read back from the output topic, or why that is not possible; `published`: the last published batch.
    """

    batches: list[Steps]
    earlier: Sequence[Steps]
    history: Sequence[Past]
    topics: TopicsNow
    due: Due | NotJudged | None
    published: int


def look_around(warehouse: Warehouse, ledger: Ledger, last: Mapping[str, int]) -> Known | None:
    """None if no batch is to be reported. `last`: the ledger's `last_ids`. Raises JobProblem if the broker cannot be asked."""
    done, published = last[REPORTED], last[PUBLISHED]
    history = _history(warehouse, done)
    # What was published up to the last report was read back by it.
    sent = min(int(history[-1].metrics.get("published_through", done)) if history else 0, published)
    rows = ledger.rows(max(min(done + 1 - LOOK_BACK, sent), 1))
    steps = counting(rows)
    batches = [each for each in steps if each[PAIRED].batch_id > done]
    if not batches:
        return None
    by_id = {row.batch_id: row for row in rows if row.step == PUBLISHED}
    topics, wanted = _ask(warehouse, by_id, sent, published)
    history = [*_targets(warehouse, batches, history), *history]
    earlier = [each for each in steps if each[PAIRED].batch_id <= done]
    return Known(batches, earlier, history, topics, wanted, published)


def _history(warehouse: Warehouse, done: int) -> list[Past]:
    return _past(warehouse, done + 1 - warehouse.pipeline.quality.history_batches, done)


def _targets(warehouse: Warehouse, batches: Sequence[Steps], history: Sequence[Past]) -> list[Past]:
    """What the rewinds among the batches go on from, where that is older than the history."""
    oldest = history[0].batch_id if history else 1
    wanted = {rows[PAIRED].rewind.to_batch for rows in batches if rows[PAIRED].kind == REWIND}
    return [past for number in sorted(wanted) if 0 < number < oldest for past in _past(warehouse, number, number)]


def _past(warehouse: Warehouse, first: int, last: int) -> list[Past]:
    rows = warehouse.small_rows(METRICS, first, last)
    found = []
    for row in rows:
        metrics = dict(row["metrics"])
        at = metrics.get("wall_time", _epoch_ms(row["judged_at"]))
        found.append(Past(row["batch_id"], int(at), metrics))
    return sorted(found, key=lambda past: past.batch_id)


def _epoch_ms(at: datetime) -> float:
    return at.timestamp() * 1000


def _ask(
    warehouse: Warehouse, published: Mapping[int, LedgerRow], after: int, until: int
) -> tuple[TopicsNow, Due | NotJudged | None]:
    settings, pipeline = kafka_settings(), warehouse.pipeline
    names = [*(side.topic for side in pipeline.sides), pipeline.output_topic]
    topics = ask_broker(settings, names)
    try:
        return topics, due(pipeline, published, after, until, topics)
    except Unreadable:
        # What was committed a moment ago can be read a moment later.
        wait_for_markers(settings, pipeline.output_topic)
        topics = ask_broker(settings, names)
    try:
        return topics, due(pipeline, published, after, until, topics)
    except Unreadable as problem:
        raise unreadable_problem(settings, problem) from None
