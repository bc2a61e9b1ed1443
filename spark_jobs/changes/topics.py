"""What became of the topics of a pipeline since its last batch: refusals in the words of the jobs, and other numbers of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from include.config.pipeline import Pipeline
from include.config.setting_changes import Change
from spark_jobs.changes.consequences import NEXT_BATCH, NEXT_PUBLICATION, Consequence
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.clusters import ask_topics, settings_of
from spark_jobs.kafka.dead_letters import check_policy
from spark_jobs.kafka.input_topics import check_ids, find_topics
from spark_jobs.kafka.output_topic import cleanup_of, partitions_and_id
from spark_jobs.kafka.positions import check_same_topic
from spark_jobs.kafka.ranges import check_partitions
from spark_jobs.tables.ledger_rows import LedgerRow

_MORE_INPUT = Consequence(NEXT_BATCH, "the new partitions are read from offset 0, and the clock waits for them, too")
_NEW_INPUT = Consequence(
    NEXT_BATCH,
    "the new topic is read from its first offset, and the clock waits for it, too; events before the clock are late",
)
_MORE_OUTPUT = Consequence(
    NEXT_PUBLICATION,
    "keys are in other partitions; a publication that is half finished is finished with the old number first",
)


def topic_changes(
    pipeline: Pipeline, new: Pipeline, last: LedgerRow | None, published: Sequence[LedgerRow]
) -> tuple[list[str], list[tuple[Change, Consequence]]]:
    """The refusals, and each changed number of partitions with its consequence.

    `pipeline`: whose input topics to ask for. `new`: what the file says. `last`: a row of the last batch, None before the first; `published`: the
    rows of the last published batch, one for each topic. Raises BrokerProblem, and NeedsOperator where a topic does not exist or a right is missing.
    """
    inputs = find_topics(pipeline, (at.topic for at in last.offsets) if last else ())
    names = [*inputs.left, *inputs.right]
    now = ask_topics(pipeline, names)
    outputs = [topic for topic in pipeline.output_topics if topic in (pipeline.output_topic, *new.output_topics)]
    found = {
        topic: partitions_and_id(settings_of(pipeline, topic), topic)
        for topic in dict.fromkeys([*outputs, *new.output_topics[1:]])
    }
    if new.output_rejected_topic:
        check_policy(
            new.output_rejected_topic,
            cleanup_of(settings_of(pipeline, new.output_rejected_topic), new.output_rejected_topic).compacted,
        )
    if last is None:
        return [], []
    checks: list[Callable[[], object]] = [
        lambda: check_ids(last.topic_ids, now),
        lambda: check_partitions([at.place for at in last.offsets], now),
    ]
    before, after = (Counter(topic for topic, _ in places) for places in ((at.place for at in last.offsets), now.end))
    grown = [(topic, before[topic], after[topic], _MORE_INPUT if before[topic] else _NEW_INPUT) for topic in names]
    for row in published:
        if (topic := row.published_to) in found:
            known, (partitions, topic_id) = row.output_state, found[topic]
            checks.append(partial(check_same_topic, topic, topic_id, known.topic_id, row.batch_id))
            grown.append((topic, known.partitions, partitions, _MORE_OUTPUT))
    changes = [(Change(f"partitions of {topic}", str(old), str(new)), what) for topic, old, new, what in grown if old != new]
    return list(_refusals(checks)), changes


def _refusals(checks: list[Callable[[], object]]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except NeedsOperator as refusal:
            yield str(refusal)
