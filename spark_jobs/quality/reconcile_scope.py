"""What reconcile compares: fixed at its start, so that whatever is landed or published meanwhile changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_jobs.kafka.clusters import ask_topics
from spark_jobs.kafka.input_topics import check_ids
from spark_jobs.kafka.offsets import TopicsNow, wait_for_markers
from spark_jobs.kafka.open_transactions import Unreadable, check_readable, unreadable_problem
from spark_jobs.kafka.output_topic import Cleanup, cleanup_of, output_topic, topics_gone
from spark_jobs.kafka.routing import Route
from spark_jobs.kafka.settings import Settings, kafka_settings
from spark_jobs.quality.ledger_checks import LedgerSummary, RemovedRows, find_removed, read_ledger
from spark_jobs.quality.sent_compounds import SentBatch
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import ALL_PUBLICATIONS, PAIRED, PLANNED, PUBLISHED, REMOVED_LEDGER, removed_through
from spark_jobs.tables.schemas import LEDGER, OPEN
from spark_jobs.tables.warehouse import Warehouse


class Output(NamedTuple):
    """A topic that compounds go to. `ends`: output partition -> end (exclusive) of messages whose compounds were removed."""

    route: Route
    topic_id: str
    cleanup: Cleanup
    sent: list[SentBatch]
    ends: Mapping[int, int]


class Scope(NamedTuple):
    """Everything that is fixed at the start. `horizon`: the last published batch; `open_version`: of open_events, as `ledger.last` left it.
    `erasing`: whether an erasure is not published yet, which may have emptied rows already.
    """

    horizon: int
    open_version: int
    ledger: LedgerSummary
    removed: RemovedRows
    inputs: SideTopics
    topics: TopicsNow
    outputs: list[Output]
    gone: list[str]  # topics that earlier settings name and that are not there any more
    erasing: bool


def find_scope(warehouse: Warehouse) -> Scope | None:
    """None if nothing is published. The ledger first, the ends then, the other tables last: so everything that the ends include is in the tables."""
    if not warehouse.exists(LEDGER):
        return None
    ledger = Ledger(warehouse)
    horizon, rewinds = ledger.last_ids()[PUBLISHED], ledger.rewinds()
    last = horizon
    while found := [rewind.to_batch for rewind in rewinds if rewind.voids(last)]:
        last = min(found)
    if not last:
        # Nothing is published, or all of it was given up, and the rewind is about to be published.
        return None
    pipeline = warehouse.pipeline
    settings = kafka_settings(pipeline.output_connection)
    batch_settings = ledger.batch_settings()
    first = removed_through(ledger.removals(), REMOVED_LEDGER) + 1
    summary = read_ledger(ledger, first, horizon, last, rewinds)
    known = dict.fromkeys((*batch_settings.topics(), *summary.sent_rejected))
    gone = topics_gone(settings, {*known} - {*pipeline.output_topics})
    ids = {topic: output_topic(settings, topic, operation="Read").topic_id for topic in known if topic not in gone}
    for topic in ids:
        wait_for_markers(settings, topic)
    steps = {row.step: row for row in ledger.rows(last, last)}
    inputs = steps[PLANNED].topics
    topics = ask_topics(pipeline, [*inputs.left, *inputs.right, *ids])
    _check_readable(ledger, horizon, topics, settings)
    check_ids(steps[PLANNED].topic_ids, topics)
    # After the ledger was read: rows that are about to be removed may still be there.
    removed = find_removed(ledger, ids[pipeline.output_topic])
    outputs = [
        Output(
            Route(topic, batch_settings),
            topic_id,
            cleanup_of(settings, topic),
            summary.sent if topic == pipeline.output_topic else summary.sent_beside.get(topic, []),
            removed.ends if topic == pipeline.output_topic else removed.ends_beside.get(topic_id, {}),
        )
        for topic, topic_id in ids.items()
        if topic in batch_settings.topics()
    ]
    return Scope(
        horizon,
        steps[PAIRED].versions[OPEN],
        summary,
        removed,
        inputs,
        topics,
        outputs,
        gone,
        ledger.last_erasure() > horizon,
    )


def _check_readable(ledger: Ledger, horizon: int, topics: TopicsNow, settings: Settings) -> None:
    """Raises JobProblem where what was published lies behind the open transaction of another producer: it would seem not to be sent."""
    published = [row for row in ledger.rows(horizon, horizon) if row.step in ALL_PUBLICATIONS]
    now = [row for row in published if row.output_state.topic_id == topics.ids.get(row.published_to)]
    try:
        check_readable(
            topics, {(row.published_to, number): end for row in now for number, end in row.output_state.ends.items()}
        )
    except Unreadable as problem:
        raise unreadable_problem(settings, problem) from None
