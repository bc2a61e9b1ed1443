"""A pipeline that 1.0 left in the middle of its work is continued by this version: its tables, its topics, its positions in Kafka.

See tests/helpers/stored_pipeline.py: batches 1 to 3 and 6 to 8 are live, 4 is a replay, 5 a rewind to 2. Batch 7 is half published, 8 landed.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from include.config.pipeline_file import load_pipeline
from include.config.store import exists, pages_store
from include.local.broker import LocalBroker
from include.local.process import free_port
from spark_jobs import land_events, maintain_tables, pair_events, publish_compounds, reconcile, report_quality, rewind
from spark_jobs.changes.plan import UNCHANGED, plan_changes
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.quality.trend import Trend
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, REPORTED
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers import stored_pipeline as stored
from tests.helpers.all_stages import run_all
from tests.helpers.reading import consume, table_rows
from tests.helpers.stream_clock import consumed
from tests.helpers.timeless_traffic import Portions, timeless

pytestmark = pytest.mark.integration


class _SameBroker(LocalBroker):
    """The broker of the archive keeps its positions, however long ago it ran."""

    def _configure(self) -> None:
        super()._configure()
        with (self.folder / "server.properties").open("a") as settings:
            settings.write("offsets.retention.minutes=2147483647\ntransactional.id.expiration.ms=2147483647\n")


@pytest.fixture
def broker(tmp_path):
    stored.unpack(tmp_path)
    with _SameBroker(tmp_path / stored.BROKER, free_port()) as running:
        yield running


@pytest.fixture
def warehouse(broker, spark, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    pipeline = load_pipeline(timeless(stored.NAME, stored.INPUTS, tmp_path / "jobs")[1])
    return Warehouse(str(tmp_path / stored.WAREHOUSE), pipeline, spark)


@pytest.fixture
def portions(broker, warehouse):
    """Goes on with the traffic where the archive ends."""
    going_on = Portions(broker, warehouse.pipeline)
    going_on.sent = stored.PORTIONS
    return going_on


def steps(warehouse, batch_id):
    return {row.step for row in Ledger(warehouse).rows(batch_id, batch_id)}


def positions(broker):
    """What the publisher's group has of each output partition: offset and metadata."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = ConsumerGroupTopicPartitions(f"{stored.NAME}.publisher")
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    return {place.partition: (place.offset, place.metadata) for place in answer.result(timeout=20).topic_partitions}


@pytest.mark.long
def test_what_1_0_left_half_done_is_continued_and_rolled_back_to(warehouse, broker, portions):
    # It is as it was left: batch 7 is on one of the two partitions, 8 is landed.
    assert (steps(warehouse, 7) & {PAIRED, PUBLISHED}, steps(warehouse, 8) & {LANDED, PAIRED}) == ({PAIRED}, {LANDED})
    left = positions(broker)
    assert [offset for _, (offset, _) in sorted(left.items())] == [7, 6]
    assert left[0][1].split()[-1].startswith("7:")
    assert plan_changes(warehouse.root, warehouse.pipeline).state == UNCHANGED
    trend = Trend.load(pages_store(warehouse.pipeline.name, warehouse.root), warehouse.pipeline.name)
    assert trend.columns["batch"][-1] == 6

    # A batch that the older version landed, and another one, with records that came meanwhile.
    portions.send()
    assert land_events.main(warehouse, 1_000_000)["batch_id"] == 9
    assert PAIRED in steps(warehouse, 8)
    pair_events.main(warehouse)
    assert publish_compounds.main(warehouse)["batches"] == 3
    report = report_quality.main(warehouse)
    assert report["batches"] == 3, "7, 8 and 9"
    assert [offset for offset, _ in positions(broker).values()] == [9, 9]
    # Each compound is there once, those of batch 7 that 1.0 had sent, too.
    assert_on_topic_once(warehouse, broker)
    assert reconcile.main(warehouse).offenders == []
    trend = Trend.load(pages_store(warehouse.pipeline.name, warehouse.root), warehouse.pipeline.name)
    assert trend.columns["batch"][-4:] == [6, 7, 8, 9]
    undisturbed = consumed(warehouse, broker)

    # Back to a batch of 1.0, from before its own rewind, and on from there.
    assert rewind.main(warehouse, 2)["batch_id"] == 10
    answer = run_all(warehouse)
    assert (answer["batch_id"], answer["batches"]) == (11, 2)
    assert_on_topic_once(warehouse, broker)
    # One batch has read what were five before.
    assert consumed(warehouse, broker) == undisturbed
    assert reconcile.main(warehouse).offenders == []
    maintain_tables.main(warehouse)
    assert {REPORTED, PLANNED} < steps(warehouse, 11)
    assert exists(pages_store(warehouse.pipeline.name, warehouse.root), "batch-3.html"), "a page of 1.0"


def assert_on_topic_once(warehouse, broker):
    rows = Counter((row["pair_id"], str(row["revision"])) for row in table_rows(warehouse, "compound_events"))
    sent = Counter(
        (each["pair-id"], each["revision"]) for each in consume(broker.bootstrap, warehouse.pipeline.output_topic)
    )
    assert sent == rows and set(rows.values()) == {1}
