"""Transactions of others that have not ended: what they hold back is told, not passed over in silence, and nothing is misjudged."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer

from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality
from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.stages import land as landing_stage
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration


@pytest.fixture
def stranger(pipeline):
    """stranger(topic): another producer, whose transaction there is open; it has written one record to partition 0."""
    begun = []

    def begin(topic, value=b"{"):
        producer = Producer(kafka_settings() | {"transactional.id": topic})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(20) == 0
        begun.append(producer)
        return producer

    yield begin
    for producer in begun:
        producer.purge()


def land(warehouse):
    return land_events.main(warehouse, 1_000_000)


def landed_counts(warehouse):
    rows = sorted(table_rows(warehouse, "batch_ledger"), key=lambda row: row["batch_id"])
    return [dict(row["counts"]) for row in rows if row["step"] == "landed"]


def test_what_an_open_transaction_holds_back_from_landing_is_told(warehouse, pipeline, send, stranger, monkeypatch, capfd):
    topic, before = pipeline.left.topic, time.time_ns() // 1_000_000
    send("a", value=b"{", partition=0)
    assert land(warehouse)["held"] == 0
    transaction = stranger(topic)
    for _ in range(2):
        send("a", value=b"{", partition=0)
    # Two seconds old is nothing unusual.
    assert land(warehouse)["held"] == 3
    assert "warning" not in capfd.readouterr().err
    monkeypatch.setattr(landing_stage, "_OPEN_FOR_LONG_MS", 0)
    counts = land(warehouse)
    assert (counts["landed"], counts["backlog"], counts["held"]) == (0, 0, 3)
    assert before <= counts["held_since"] <= time.time_ns() // 1_000_000
    assert landed_counts(warehouse)[-1]["held"] == 3
    told = capfd.readouterr().err
    assert f"warning: {topic}-0 can be read up to offset 1 only: 3 offsets from there on wait" in told
    assert f"kafka-transactions.sh abort --topic {topic} --partition 0 --start-offset 1\n" in told
    transaction.commit_transaction(20)
    # Kafka answers a commit before the partitions have its marks.
    time.sleep(0.5)
    counts = land(warehouse)
    assert (counts["landed"], counts["held"], "held_since" in counts) == (3, 0, False)


def test_who_cannot_read_the_output_topic_judges_nothing(warehouse, broker, pipeline, send, stranger):
    transaction = stranger(pipeline.output_topic, json.dumps("of somebody else").encode())
    for side in "am":
        for number in range(20):
            send(side, f"u{number}", 1_000, 1)
    land(warehouse)
    assert pair_events.main(warehouse)["pair"] == 20
    # Publishing does not read, so nobody holds it up.
    assert publish_compounds.main(warehouse)["sent"] == 20
    line = (
        rf"^{pipeline.output_topic}-0 can be read up to offset 0 only, but was published to up to \d+: another producer's transaction is open "
        rf"there since \d{{4}}-.* UTC; .* abort --topic {pipeline.output_topic} --partition 0 --start-offset 0$"
    )
    for judge in (report_quality.main, reconcile.main):
        with pytest.raises(JobProblem, match=line):
            judge(warehouse)
    transaction.abort_transaction(20)
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == 20
    assert report_quality.main(warehouse)["pair"] == 20
    assert reconcile.main(warehouse).offenders == []
