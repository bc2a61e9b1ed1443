"""Each job against a real broker and real Delta tables, read back by independent readers."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyarrow import parquet

from include.local.broker import create_topics
from spark_jobs import land_events, pair_events, publish_compounds, report_quality
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.output_topic import output_topic
from spark_jobs.kafka.positions import Position
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.quality.numbers import WARNED
from spark_jobs.quality.trend_files import reported_before
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.rules.rules import Rules
from spark_jobs.stages import land as landing_stage
from spark_jobs.stages import report
from spark_jobs.stages.landed_counts import landed_counts
from spark_jobs.stages.outcome_rows import decide
from spark_jobs.stages.pairing_input import batch_events
from spark_jobs.tables import delta_log
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, PUBLISHING, REPORTED
from spark_jobs.tables.parquet_files import REPEATED
from spark_jobs.tables.schemas import raw_table, schemas
from spark_jobs.tables.tables import TableProblem
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS
from tests.helpers.pages import pages_folder
from tests.helpers.reading import consume, table_rows
from tests.helpers.tampering import append_frame, delete_rows

pytestmark = pytest.mark.integration

LONG_AGO = 3_600_000


def land(warehouse, max_records=1_000_000, accepted=()):
    return land_events.main(warehouse, max_records, accepted)


def run_all(warehouse):
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    return report_quality.main(warehouse)


@pytest.fixture
def now():
    return time.time_ns() // 1_000_000


def test_the_whole_way(warehouse, pipeline, broker, send, now):
    ago = now - LONG_AGO
    send("a", "both", ago, {"id": "1", "big": 9223372036854775807})
    send("m", "both", ago + 60_000, ["é", None])
    send("a", "left", ago, "text")
    send("m", "right", ago, 0.1)
    send("m", "right", ago, 0.1)
    send("a", "young", now, 1)
    send("m", value=b"{nope", key="k")
    send("m", value=b'{"user1":"a"}')
    send("a", value=None, key="gone")
    landed = land(warehouse)
    assert (landed["planned"], landed["landed"], landed["accepted"], landed["offset_gaps"]) == (9, 9, 6, 0)
    counts = pair_events.main(warehouse)
    assert {n: counts[n] for n in ("pair", "left_only", "right_only", "duplicate", "open_after", "rejected")} == {
        "pair": 1, "left_only": 1, "right_only": 1, "duplicate": 1, "open_after": 1, "rejected": 4,
    }  # fmt: skip
    assert publish_compounds.main(warehouse)["sent"] == 3
    assert report_quality.main(warehouse)["pair"] == 1

    published = {message["key"]: message for message in consume(broker.bootstrap, pipeline.output_topic)}
    assert published["both-v"]["value"] == {
        "user1": "both", "user2": "v", "ts": ago, "analytics": {"id": "1", "big": 9223372036854775807}, "metrics": ["é", None],
    }  # fmt: skip
    assert published["left-v"]["value"] == {"user1": "left", "user2": "v", "ts": ago, "analytics": "text", "metrics": None}
    assert published["right-v"]["value"]["metrics"] == 0.1
    assert {m["kind"] for m in published.values()} == {"pair", "left_only", "right_only"}
    assert {(m["revision"], m["op"]) for m in published.values()} == {("0", "upsert")}
    assert len({m["pair-id"] for m in published.values()}) == 3
    assert all(abs(m["timestamp"] - now) < 600_000 for m in published.values()), "the record's time is that of publishing"

    rejected = table_rows(warehouse, "rejected_events")
    assert Counter(row["reason"] for row in rejected) == {"malformed_json": 2, "missing_key": 1, "duplicate": 1}
    assert {row["value"] for row in rejected} >= {b"{nope", b'{"user1":"a"}', None}
    assert [row["user1"] for row in table_rows(warehouse, "open_events")] == ["young"]
    raw = table_rows(warehouse, "raw_metrics")
    assert sorted(row["value"] for row in raw) == sorted(
        [b"{nope", b'{"user1":"a"}', *(row["value"] for row in raw if row["problem"] is None)]
    )
    steps = [row.step for row in Ledger(warehouse).rows(1, 1)]
    assert steps == [PLANNED, LANDED, PAIRED, PUBLISHING, PUBLISHED, REPORTED]
    # Each event that somebody may want to look up is named on the batch's page, once, and no other.
    alone = [row for row in table_rows(warehouse, "compound_events") if row["kind"] != "pair"]
    sources = [f"{row['topic']}-{row['partition']}-{row['offset']}" for row in rejected]
    for row, side in ((row, row["kind"].removesuffix("_only")) for row in alone):
        sources.append(f"{row[f'{side}_topic']}-{row[f'{side}_partition']}-{row[f'{side}_offset']}")
    page = (pages_folder(warehouse.root, pipeline.name) / "batch-1.html").read_text()
    events = page.partition("Events to look up")[2]
    assert sorted(re.findall(r"<code>(.*?)</code>", events)) == sorted(sources) and len(sources) == 6


def trend(warehouse):
    """What the trend page is told, by its own means."""
    text = (pages_folder(warehouse.root, warehouse.pipeline.name) / "trend-data.js").read_text()
    return json.loads(text.removeprefix("trend=").removesuffix(";\n"))


def test_whoever_has_opened_no_table_yet_reads_the_same_and_goes_on(warehouse, pipeline, broker, send, now, monkeypatch):
    send("a", "u", now - LONG_AGO, 1)
    run_all(warehouse)
    ids, rows = Ledger(warehouse).last_ids(), Ledger(warehouse).rows(1, 1)
    told = [(warehouse.version(table), warehouse.table_id(table)) for table in schemas(pipeline)]
    (reported,) = reported_before(warehouse, Ledger(warehouse), 2)
    assert [row.step for row in rows] == [PLANNED, LANDED, PAIRED, PUBLISHING, PUBLISHED, REPORTED]
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == 1
    # Another process has opened no table yet: it reads the same, and the next batch goes on.
    monkeypatch.setattr(delta_log, "_cache", {})
    assert Ledger(warehouse).last_ids() == ids == dict.fromkeys(ids, 1)
    read = Ledger(warehouse).rows(1, 1)
    assert [vars(row) for row in read] == [vars(row) for row in rows]
    assert [(warehouse.version(table), warehouse.table_id(table)) for table in schemas(pipeline)] == told
    (again,) = reported_before(warehouse, Ledger(warehouse), 2)
    assert (again.metrics, again.state) == (reported.metrics, reported.state) and reported.metrics
    # What the trend page is told comes from the tables where its file is gone.
    before = trend(warehouse)
    (pages_folder(warehouse.root, pipeline.name) / "trend-data.js").unlink()
    run_all(warehouse)
    assert Ledger(warehouse).last_ids() == dict.fromkeys(ids, 2)
    after = trend(warehouse)
    assert (after["batch"], after["at"][0], after["values"]["left_only"]) == ([1, 2], before["at"][0], [1, 0])
    assert (reported.metrics["left_only"], reported.state) == (1, WARNED)


def test_the_other_half_comes_with_the_next_batch(warehouse, pipeline, broker, send, now):
    send("a", "u", now - 1_000, "early")
    run_all(warehouse)
    assert consume(broker.bootstrap, pipeline.output_topic) == []
    send("m", "u", now - 500, "late")
    run_all(warehouse)
    assert len(table_rows(warehouse, "open_events")) == 2
    assert table_rows(warehouse, "compound_events") == []


def test_an_open_event_is_paired_with_one_of_the_next_batch(warehouse, pipeline, broker, send, now):
    send("a", "u", now - LONG_AGO, "left")
    send("m", "u", now - LONG_AGO + 50_000, "right")
    # One record a batch: the first batch has the left event only, and the backlog of the other topic holds the clock back.
    for opened in (1, 0):
        assert land(warehouse, max_records=1)["landed"] == 1
        assert pair_events.main(warehouse)["open_after"] == opened
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    (message,) = consume(broker.bootstrap, pipeline.output_topic)
    assert (message["kind"], message["value"]["analytics"], message["value"]["metrics"]) == ("pair", "left", "right")


def test_late_events_keep_their_bytes(warehouse, send, now):
    run_all(warehouse)
    send("a", "u", now - LONG_AGO, "x")
    run_all(warehouse)
    (rejected,) = table_rows(warehouse, "rejected_events")
    assert rejected["reason"] == "late"
    assert json.loads(rejected["value"])["analytics"] == "x"
    assert rejected["batch_id"] == 2


def test_times_of_another_unit_are_found_and_named(warehouse, pipeline, send, capsys):
    """Seconds where milliseconds are said lie in 1970, microseconds in the year 57971."""
    now = 1_767_225_600_000
    send("a", "u", now // 1_000, "x")
    send("m", "u", now * 1_000, "y")
    land(warehouse)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: times of ")]
    assert warnings == [
        f"warning: times of {side.topic} lie around the year {year}: they look like {unit}; set timestamp_format: {unit}"
        for side, year, unit in ((pipeline.left, 1970, "epoch_s"), (pipeline.right, 57971, "epoch_us"))
    ]
    assert [[row["problem"] for row in table_rows(warehouse, raw_table(side))] for side in pipeline.sides] == [
        [None],
        ["future"],
    ]


def test_batches_without_data_are_green_and_move_every_position(warehouse, pipeline, broker):
    from confluent_kafka import Consumer, TopicPartition

    for _ in range(2):
        run_all(warehouse)
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{pipeline.name}.publisher"})
    places = [TopicPartition(pipeline.output_topic, number) for number in range(PARTITIONS)]
    committed = reader.committed(places, timeout=20)
    reader.close()
    assert [place.offset for place in committed] == [2] * PARTITIONS
    for place in committed:
        table_id, partitions, topic_id = place.metadata.split()
        assert (table_id, partitions, len(topic_id)) == (warehouse.table_id("compound_events"), str(PARTITIONS), 22)


def test_a_backlog_is_read_in_bounded_batches_and_closes_nothing_early(warehouse, send, now):
    for number in range(6):
        send("a", f"u{number}", now - LONG_AGO + number, number)
    clocks = []
    for _ in range(3):
        landed = land(warehouse, max_records=2)
        assert landed["landed"] == 2
        pair_events.main(warehouse)
        clocks.append(Ledger(warehouse).last_batch()[PAIRED].clock)
    assert clocks[0] is None or clocks[0] <= now - LONG_AGO + 6
    assert clocks[2] >= now
    assert len(table_rows(warehouse, "compound_events")) == 6


def test_repeating_a_job_changes_nothing(warehouse, pipeline, broker, send, now):
    send("a", "u", now - LONG_AGO, 1)
    run_all(warehouse)
    before = {table: table_rows(warehouse, table) for table in ("raw_analytics", "compound_events", "batch_ledger")}
    assert pair_events.main(warehouse) == {}
    assert publish_compounds.main(warehouse) == {}
    assert report_quality.main(warehouse) == {}
    assert {table: table_rows(warehouse, table) for table in before} == before
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == 1


def test_pairing_twice_from_the_same_plan_gives_the_same_rows(warehouse, send, now):
    for number in range(20):
        send("a", f"u{number % 7}", now - LONG_AGO + number * 1_000, number)
        send("m", f"u{number % 5}", now - LONG_AGO + number * 1_500, number)
    land(warehouse)
    steps = Ledger(warehouse).last_batch()

    def rows():
        rules = Rules(warehouse.pipeline, steps[LANDED].clock, steps[PLANNED].clock)
        return sorted(decide(batch_events(warehouse, steps[PLANNED]), rules, 40, 1).collect())

    first = rows()
    warehouse.spark.conf.set("spark.sql.shuffle.partitions", "5")
    assert rows() == first


def test_what_a_dead_job_left_unpaired_is_finished_with_the_settings_of_its_plan(warehouse, pipeline, send, now):
    from dataclasses import replace

    from spark_jobs.tables.warehouse import Warehouse

    send("a", "u", now - LONG_AGO, 1)
    send("m", "u", now - LONG_AGO + 50_000, 1)
    land(warehouse)
    stricter = Warehouse(warehouse.root, replace(pipeline, tolerance_ms=10), warehouse.spark)
    land(stricter)
    assert [row["kind"] for row in table_rows(warehouse, "compound_events")] == ["pair"]
    assert Ledger(warehouse).last_batch()[PLANNED].batch_id == 2


def test_another_identity_is_refused(warehouse, pipeline):
    from dataclasses import replace

    from spark_jobs.tables.warehouse import Warehouse

    land(warehouse)
    with pytest.raises(NeedsOperator, match="a file name of its own"):
        land(Warehouse(warehouse.root, replace(pipeline, key=("user2", "user1")), warehouse.spark))


def test_a_missing_topic_is_said_by_name(warehouse, pipeline):
    from dataclasses import replace

    from include.config.pipeline import Side
    from spark_jobs.tables.warehouse import Warehouse

    with pytest.raises(NeedsOperator, match=r"topic nowhere is not on the broker at 127\.0\.0\.1"):
        land(Warehouse(warehouse.root, replace(pipeline, right=Side("nowhere", "metrics")), warehouse.spark))


def test_offsets_are_counted_exactly_wherever_they_lie(spark, pipeline, tmp_path):
    warehouse = Warehouse(str(tmp_path), pipeline, spark)
    create_missing(warehouse)
    side = pipeline.left
    places = {
        0: [0, 1, 31, 32, 33, 62, 63, 64, 127, 128, 2**31 - 1, 2**31, 2**62],
        1: [5, 5, 63, 64, 64, 64],
        2: [2**63 - 1] * 2,
    }
    rows = [(side.topic, number, offset, 1) for number, offsets in places.items() for offset in offsets]
    given = spark.createDataFrame(rows, "topic STRING, partition INT, offset BIGINT, batch_id BIGINT")
    append_frame(warehouse, raw_table(side), given)
    planned = SimpleNamespace(pipeline=pipeline, batch_id=1)
    found = {row.partition: row for row in landed_counts(warehouse, planned)}
    counted = {number: [row.records, row.offsets, row.first, row.last] for number, row in found.items()}
    assert counted == {n: [len(all_), len(set(all_)), min(all_), max(all_)] for n, all_ in places.items()}


def test_a_record_landed_twice_is_refused(warehouse, pipeline, send, now, monkeypatch):
    for number in range(70):
        send("a", "u", now - LONG_AGO + number, 1)
    append = landing_stage.append_raw

    def twice(warehouse, planned, ranges, side):
        append(warehouse, planned, ranges, side)
        table = warehouse.read(raw_table(side))
        append_frame(warehouse, raw_table(side), table.where("offset = 66"))

    monkeypatch.setattr(landing_stage, "append_raw", twice)
    with pytest.raises(BrokenInvariant, match=r"planned offsets 0 to 70 \(exclusive\), landed 71 records with 70 different"):
        land(warehouse)


def test_dictionaries_are_only_where_they_are_worth_it(warehouse, send, now):
    for number in range(50):
        send("a", "u", now - LONG_AGO + number * 600_000, number)
    run_all(warehouse)
    found, others = set(), set()
    for table in ("raw_analytics", "compound_events"):
        for file in Path(warehouse.path(table)).glob("*.parquet"):
            rows = parquet.ParquetFile(file).metadata.row_group(0)
            columns = [rows.column(number) for number in range(rows.num_columns)]
            assert {column.compression for column in columns} == {"ZSTD"}
            found |= {column.path_in_schema for column in columns if column.has_dictionary_page}
            others |= {column.path_in_schema for column in columns if not column.has_dictionary_page}
    assert found <= set(REPEATED) and found >= {"topic", "kind", "op", "left_topic", "batch_id"}
    assert others >= {"offset", "ts", "user1", "value", "analytics", "pair_id", "left_offset"}


def test_compounds_of_a_doubled_row_fail_the_report_and_go_on_failing(warehouse, send, now):
    send("a", "u", now - LONG_AGO, 1)
    land(warehouse)
    pair_events.main(warehouse)
    append_frame(warehouse, "compound_events", warehouse.read("compound_events"))
    with pytest.raises(BrokenInvariant, match="1 compounds were paired, but 2 are in compound_events: nothing was sent"):
        publish_compounds.main(warehouse)
    for _ in range(2):
        with pytest.raises(report.BrokenBatch, match="pairing_difference_left is -1"):
            report_quality.main(warehouse)
    page = (pages_folder(warehouse.root, warehouse.pipeline.name) / "index.html").read_text()
    assert '<td class="critical">failed<' in page


def test_a_swallowed_rejection_is_caught_by_name(warehouse, send, now):
    send("m", value=b"{nope")
    land(warehouse)
    pair_events.main(warehouse)
    delete_rows(warehouse, "rejected_events")
    publish_compounds.main(warehouse)
    with pytest.raises(
        report.BrokenBatch,
        match=r"every rejected event is in rejected_events \(right\): rejection_difference_right is 1",
    ):
        report_quality.main(warehouse)


def test_a_raw_row_lost_after_landing_is_caught_by_name(warehouse, send, now):
    send("a", "u", now - LONG_AGO, 1)
    land(warehouse)
    pair_events.main(warehouse)
    delete_rows(warehouse, "raw_analytics")
    publish_compounds.main(warehouse)
    with pytest.raises(report.BrokenBatch, match="landing_difference_left is 1"):
        report_quality.main(warehouse)


def test_a_position_ahead_of_the_ledger_is_refused(warehouse, pipeline, broker):
    from confluent_kafka import Consumer, TopicPartition

    land(warehouse)
    pair_events.main(warehouse)
    stranger = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{pipeline.name}.publisher"})
    topic = output_topic(kafka_settings(), pipeline.output_topic)
    position = Position(7, warehouse.table_id("compound_events"), topic.partitions, topic.topic_id)
    ahead = TopicPartition(pipeline.output_topic, 0, position.batch_id, metadata=position.metadata())
    stranger.commit(offsets=[ahead], asynchronous=False)
    stranger.close()
    with pytest.raises(NeedsOperator, match=r"is batch 7, but the ledger knows of 0 published and 1 paired"):
        publish_compounds.main(warehouse)


def test_a_recreated_table_is_refused(warehouse, pipeline, broker):
    from confluent_kafka import Consumer, TopicPartition

    land(warehouse)
    pair_events.main(warehouse)
    stranger = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{pipeline.name}.publisher"})
    stranger.commit(offsets=[TopicPartition(pipeline.output_topic, 1, 1, metadata="another")], asynchronous=False)
    stranger.close()
    with pytest.raises(NeedsOperator, match="belongs to another compound_events table"):
        publish_compounds.main(warehouse)


def test_expired_positions_are_taken_from_the_ledger(warehouse, pipeline, broker, send, now):
    from confluent_kafka.admin import AdminClient

    send("a", "u", now - LONG_AGO, 1)
    run_all(warehouse)
    admin, group = AdminClient({"bootstrap.servers": broker.bootstrap}), f"{pipeline.name}.publisher"
    admin.delete_consumer_groups([group])[group].result(timeout=30)
    run_all(warehouse)
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == 1


def test_a_deleted_ledger_is_not_begun_anew(warehouse, send, now):
    import shutil

    send("a", "u", now - LONG_AGO, 1)
    land(warehouse)
    shutil.rmtree(warehouse.path("batch_ledger"))
    with pytest.raises(TableProblem, match="batch_ledger is gone: restore the ledger"):
        land(warehouse)


def test_many_partitions_with_few_records_share_a_task_and_a_file(warehouse, pipeline, broker, now):
    many = 40
    topics = {side.topic: f"{side.topic}.many" for side in pipeline.sides}
    create_topics(broker.bootstrap, dict.fromkeys(topics.values(), many), {"retention.ms": "-1"})
    sides = [replace(side, topic=topics[side.topic]) for side in pipeline.sides]
    mine = replace(warehouse, pipeline=replace(pipeline, left=sides[0], right=sides[1]))
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    sent = Counter()
    for number in range(3 * many):
        # Some partitions have none, the others up to five.
        partition = number * number % many
        body = {"user1": f"u{number}", "user2": "v", "timestamp": now - LONG_AGO, mine.pipeline.left.payload: number}
        producer.produce(mine.pipeline.left.topic, json.dumps(body), partition=partition)
        sent[partition, f"u{number}"] += 1
    producer.flush(20)
    assert land(mine)["landed"] == 3 * many
    table = raw_table(mine.pipeline.left)
    assert Counter((row["partition"], row["user1"]) for row in table_rows(mine, table)) == sent
    assert len(DeltaTable(mine.path(table)).file_uris()) == 1
