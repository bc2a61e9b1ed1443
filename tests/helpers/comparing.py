"""Two pipelines over the same input topics, compared row by row: by a plain consumer and by delta-rs, without the wall clock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from include.config.pipeline import Pipeline
from include.config.store import pages_store
from spark_jobs.tables.schemas import LEDGER, METRICS, schemas
from tests.helpers.stores import table_of, texts_in

# What says when or for whom, or how many batches a job did in one go; all else has to be the same.
_TIMES = {"wall_time", "started_at", "finished_at", "judged_at", "config", "config_hash"}
_OWN_COUNTS = re.compile(
    "topic_id|position|ends|first_of_report|wall_time|published_through|(due_)?on_topic|delivery_difference|miss_.*"
    # When the sides were last heard of, and for how long not.
    r"|silence:.*|(is_)?(silent|unpaired)_.*|last_record_.*|orphans_since_.*"
)
# Breakdowns: when a report looked at the logs of two tables, and how many reports there were by then.
_OWN_FAMILIES = {"watched"}
# When a step began, how long it took, W; the clock and the times of events stay. What depends on which batches had a report of their own.
_OWN_TEXT = re.compile(
    r"settings [0-9a-f]{16}|\b(position|end \d+) [0-9,]+|<td>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d</td>|[0-9.]+ s</td>|Wall time [^,]+"
    r"|<tr><th scope=.row.>[^<]*read back from the output topic.*?</tr>\n?|<section (id=.(orphans|settings).|class=.health [^>]*)>.*?</section>"
    r"|<summary>\d+ of \d+ laws hold[^<]*</summary>",
    re.S,
)
_SHOWN = 5


def rows(warehouse: str | Path, pipeline: Pipeline, table: str, without: Collection[str] = ()) -> Counter[str]:
    """The table's rows as texts, without wall clocks and these columns."""
    found = table_of(warehouse, pipeline, table).to_pyarrow_table().to_pylist()
    ignored = _TIMES.union(without)
    return Counter(str({name: _comparable(value) for name, value in row.items() if name not in ignored}) for row in found)


def _comparable(value: Any) -> Any:
    # A map comes as a list of pairs, in no order, a struct as a dict.
    if isinstance(value, dict):
        return {name: _comparable(part) for name, part in value.items() if not _OWN_COUNTS.fullmatch(name)}
    if isinstance(value, list) and all(isinstance(each, tuple) for each in value):
        return sorted((name, number) for name, number in value if not _OWN_COUNTS.fullmatch(str(name)))
    if isinstance(value, list):
        return [each for each in value if not (isinstance(each, dict) and each.get("family") in _OWN_FAMILIES)]
    return value


def commits(warehouse: str | Path, pipeline: Pipeline, table: str) -> Counter[str]:
    """What the table's commits say they are: `step of batch number`."""
    return Counter(str(entry.get("userMetadata")) for entry in table_of(warehouse, pipeline, table).history())


def pages(warehouse: str | Path, pipeline: Pipeline) -> dict[str, str]:
    """The quality pages of the batches, without wall clocks and the pipeline's name, settings and position, and without what depends on which
    batches had a report of their own.
    """
    texts = texts_in(pages_store(pipeline.name, str(warehouse)))
    own = {
        name: text
        for name, text in texts.items()
        if name.endswith(".html") and name != "trend.html" and not name.endswith("expectations.html")
    }
    return {name: _OWN_TEXT.sub("", text.replace(pipeline.name, "")) for name, text in own.items()}


def records(bootstrap: str, topic: str, isolation: str = "read_committed") -> dict[int, list[tuple[Any, ...]]]:
    """Partition -> (key, value, headers) of its records in their order, bytes as they are."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "comparing", "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.auto.commit": False, "enable.partition.eof": True})
    found: dict[int, list[tuple[Any, ...]]] = {
        number: [] for number in consumer.list_topics(topic, timeout=20).topics[topic].partitions
    }
    consumer.assign([TopicPartition(topic, number, 0) for number in found])
    unread = set(found)
    while unread:
        message = consumer.poll(20)
        assert message is not None, f"{topic}: no answer"
        if message.error():
            unread.discard(message.partition())
        else:
            found[message.partition()].append((message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def differences(
    bootstrap: str,
    warehouse: str | Path,
    one: Pipeline,
    other: Pipeline,
    elsewhere: str | Path | None = None,
    without: Collection[str] = (),
) -> list[str]:
    """What the pipelines' tables, commits, pages and output topics do not have in common; empty if they are equal.

    `elsewhere`: the warehouse of the other pipeline, if it is not the same. `without`: columns that may differ.
    """
    told: list[str] = []
    elsewhere = elsewhere or warehouse
    for table in schemas(one):
        told += _compared(table, rows(warehouse, one, table, without), rows(elsewhere, other, table, without))
        # Reports and publications of several batches are one commit, so how many there are depends on when a job ran.
        if table not in (LEDGER, METRICS):
            told += _compared(f"commits of {table}", commits(warehouse, one, table), commits(elsewhere, other, table))
    mine, theirs = pages(warehouse, one), pages(elsewhere, other)
    told += [f"page {name}" for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)]
    topics = [records(bootstrap, pipeline.output_topic) for pipeline in (one, other)]
    for partition in topics[0]:
        ours, others = (topic[partition] for topic in topics)
        told += _compared(f"output partition {partition}", Counter(map(str, ours)), Counter(map(str, others)))
        if not told and ours != others:
            told.append(f"output partition {partition}: the same records in another order")
    return told


def _compared(where: str, one: Counter[str], other: Counter[str]) -> list[str]:
    more = [*(one - other).elements()], [*(other - one).elements()]
    return [
        f"{where}: {len(lines)} only {which}: {lines[:_SHOWN]}"
        for which, lines in zip(("here", "there"), more, strict=True)
        if lines
    ]
