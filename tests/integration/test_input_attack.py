"""Hostile messages through the real jobs: no batch crashes, and every message is in exactly one place.

`make test-long` sends 100,000 of them, `FUZZ_SEED=7` other ones. Read back by delta-rs and DuckDB, and held against what a producer
was told that it sent, and against a strict reading of each message by Python's own parser.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import duckdb
import pyarrow as pa
import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from deltalake import DeltaTable

from include.config.pipeline_file import load_pipeline
from include.local.broker import create_topics
from spark_jobs import land_events, pair_events, publish_compounds, reconcile, report_quality
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import warehouse_folder
from spark_jobs.kafka import records
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.story.from_tables import explain
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.hostile_messages import FIRST_BEYOND, Hostile, Message
from tests.helpers.reading import consume
from tests.unit.rules.test_parsing import STRICT, obviously

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("FUZZ_SEED", "2026"))
FIVE_MB, TAKEN = 5_000_000, 12_000_000
# Every message must be in exactly one of these, as one row.
PLACES = """
    SELECT topic, "partition", "offset" FROM rejected UNION ALL SELECT topic, "partition", "offset" FROM open
    UNION ALL SELECT left_topic, left_partition, left_offset FROM compounds WHERE left_offset IS NOT NULL
    UNION ALL SELECT right_topic, right_partition, right_offset FROM compounds WHERE right_offset IS NOT NULL
"""


class Sent(NamedTuple):
    """A message as the broker has it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list


@pytest.fixture
def generous(broker, pipeline):
    """The pipeline's topics take messages of megabytes."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = (pipeline.left.topic, pipeline.right.topic, pipeline.output_topic)
    entry = ConfigEntry("max.message.bytes", str(TAKEN), incremental_operation=AlterConfigOpType.SET)
    changes = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry]) for topic in topics]
    for changed in admin.incremental_alter_configs(changes).values():
        changed.result(timeout=20)
    return pipeline


@pytest.fixture
def deliver(broker, generous):
    """deliver(messages) sends them and gives them as the broker has them."""
    queue = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_000_000}
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "message.max.bytes": TAKEN,
        "linger.ms": 20,
        "compression.type": "lz4",
    }
    producer = Producer(settings | queue)
    topics = [side.topic for side in generous.sides]

    def send(messages):
        sent, refused = [], []

        def delivered(given, error, message):
            place = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
            sent.append(Sent(*place, given.key, given.value, given.headers or []))
            refused.extend([error] if error else [])

        for given in messages:
            options = {"headers": given.headers, "timestamp": given.timestamp, "on_delivery": partial(delivered, given)}
            producer.produce(topics[given.side], given.value, given.key, **options)
        assert producer.flush(60) == 0
        assert not refused, Counter(map(str, refused))
        return sent

    return send


def database(warehouse, sent):
    """The tables and the sent messages, for questions in SQL."""
    base = duckdb.connect()
    pipeline = warehouse.pipeline
    names = {"rejected": "rejected_events", "open": "open_events", "compounds": "compound_events"}
    names |= {f"raw_{n}": f"raw_{side.payload}" for n, side in enumerate(pipeline.sides)}
    for name, table in names.items():
        base.register(name, DeltaTable(warehouse.path(table)).to_pyarrow_table())
    columns = [list(column) for column in zip(*(message[:6] for message in sent), strict=True)]
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    base.register("sent", pa.table(arrays, names=["topic", "partition", "offset", "record_timestamp", "key", "value"]))
    base.execute("CREATE VIEW raw AS SELECT * FROM raw_0 UNION ALL SELECT * FROM raw_1")
    base.execute(f"CREATE VIEW places AS {PLACES}")
    return base


def assert_everything_is_in_one_place(warehouse, sent):
    base = database(warehouse, sent)
    found = base.execute('SELECT count(*), count(DISTINCT (topic, "partition", "offset")) FROM raw').fetchone()
    assert found == (len(sent), len(sent))
    differing = base.execute(
        """SELECT * FROM sent LEFT JOIN raw USING (topic, "partition", "offset") WHERE raw.batch_id IS NULL OR
           raw.value IS DISTINCT FROM sent.value OR raw."key" IS DISTINCT FROM sent."key" OR
           raw.record_timestamp IS DISTINCT FROM sent.record_timestamp LIMIT 5"""
    ).fetchall()
    assert differing == []
    misplaced = base.execute(
        """SELECT s.topic, s."partition", s."offset", count(p.topic), any_value(s.value) FROM sent s
           LEFT JOIN places p USING (topic, "partition", "offset") GROUP BY ALL HAVING count(p.topic) <> 1 LIMIT 5"""
    ).fetchall()
    assert misplaced == []
    assert base.execute("SELECT count(*) FROM places").fetchone() == (len(sent),)
    assert base.execute('SELECT count(*) FROM rejected JOIN raw USING (topic, "partition", "offset") WHERE rejected.value IS '
                        "DISTINCT FROM raw.value OR rejected.reason IS NULL").fetchone() == (0,)  # fmt: skip


def assert_read_as_a_strict_reader_would(warehouse, sent):
    """Headers as they were sent, and what each message says or what is wrong with it; gives how many have which problem."""
    by_place = {message[:3]: message for message in sent}
    plans = DeltaTable(warehouse.path("batch_ledger")).to_pyarrow_table().to_pylist()
    latest = {row["batch_id"]: row["wall_time"] + warehouse.pipeline.max_future_ms for row in plans}
    problems: Counter[str | None] = Counter()
    for side in warehouse.pipeline.sides:
        columns = ["topic", "partition", "offset", "headers", "ts", "user1", "user2", "payload", "problem", "batch_id"]
        for row in DeltaTable(warehouse.path(f"raw_{side.payload}")).to_pyarrow_table(columns=columns).to_pylist():
            message = by_place[row["topic"], row["partition"], row["offset"]]
            headers = [(header["key"], header["value"]) for header in row["headers"] or []]
            assert headers == message.headers
            key, ts, payload, problem = obviously(message.value, message.timestamp, side.payload, latest[row["batch_id"]])
            assert row["problem"] == problem, message
            if problem is None:
                assert ((row["user1"], row["user2"]), row["ts"], row["payload"]) == (key, ts, payload), message
            problems[problem] += 1
    return problems


def assert_published_as_paired(bootstrap, warehouse):
    """Every compound is on the output topic once, each message one strict JSON object."""
    pipeline = warehouse.pipeline
    compounds = DeltaTable(warehouse.path("compound_events")).to_pyarrow_table(columns=["pair_id", "user1", "user2", "ts"])
    wanted = {row["pair_id"]: (row["user1"], row["user2"], str(row["ts"])) for row in compounds.to_pylist()}
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "attack",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    partitions = list(consumer.list_topics(pipeline.output_topic, timeout=20).topics[pipeline.output_topic].partitions)
    consumer.assign([TopicPartition(pipeline.output_topic, number, 0) for number in partitions])
    at_end, seen = 0, Counter()
    while at_end < len(partitions):
        for message in consumer.consume(10_000, 5):
            if message.error():
                at_end += 1
                continue
            pair_id = dict(message.headers())["pair-id"].decode()
            body = STRICT.decode(message.value().decode())
            assert (body["user1"], body["user2"], body["ts"]) == wanted[pair_id]
            seen[pair_id] += 1
    consumer.close()
    assert seen == Counter(wanted.keys())


@pytest.mark.parametrize("number", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_every_hostile_message_is_in_exactly_one_place(number, warehouse, generous, broker, deliver):
    print(f"FUZZ_SEED={SEED}")
    payloads = tuple(side.payload for side in generous.sides)
    sent = []
    for batch in (1, 2):
        now = time.time_ns() // 1_000_000
        hostile = Hostile(SEED + batch, now, payloads, examples=number // 20)
        sent += deliver(hostile.stream(number // 2))
        land_events.main(warehouse, 10 * number)
        pair_events.main(warehouse)
    assert len(sent) == number
    assert publish_compounds.main(warehouse)["batches"] == 2
    assert_everything_is_in_one_place(warehouse, sent)
    problems = assert_read_as_a_strict_reader_would(warehouse, sent)
    # A generator that only makes rubbish would prove little.
    assert set(problems) == {None, "malformed_json", "missing_key", "bad_timestamp", "future"}
    assert problems[None] > number / 3 and min(problems.values()) > number / 500, problems
    assert_published_as_paired(broker.bootstrap, warehouse)
    kinds = Counter(DeltaTable(warehouse.path("compound_events")).to_pyarrow_table(columns=["kind"])["kind"].to_pylist())
    assert min(kinds[kind] for kind in ("pair", "left_only", "right_only")) > number / 200, kinds
    print(f"{len(sent)} messages in one place each; at landing {dict(problems)}; compounds {dict(kinds)}")
    answer = reconcile.main(warehouse)
    assert (answer.offenders, answer.counts["records landed"]) == ([], len(sent))


@pytest.mark.long
def test_messages_of_five_megabytes_beside_records_beyond_spark_and_compounds_of_ten(warehouse, generous, broker, deliver):
    # Sessions are over soon, so that those of the second batch are neither late nor open.
    swift = replace(warehouse, pipeline=replace(generous, tolerance_ms=50, gap_ms=50, grace_ms=100))
    long = '"' + "é" * (FIVE_MB // 2 - 100) + '"'

    def batch(users, timestamp):
        now = time.time_ns() // 1_000_000
        bodies = [(side, f'{{"user1":"{user}","user2":"v","timestamp":{now},"{of.payload}":{long}}}'.encode())
                  for user in users for side, of in enumerate(generous.sides)]  # fmt: skip
        delivered = deliver(
            [
                Message(0, None, b"[" * FIVE_MB, None, 0),
                *(Message(side, None, body, None, timestamp) for side, body in bodies),
            ]
        )
        time.sleep(0.3)
        assert land_events.main(swift, 1_000)["landed"] == len(delivered)
        return delivered

    sent = batch("a", 0) + batch("b", FIRST_BEYOND)
    pair_events.main(swift)
    assert publish_compounds.main(swift)["sent"] == 2
    assert_everything_is_in_one_place(swift, sent)
    assert_published_as_paired(broker.bootstrap, swift)


def test_spans_are_read_as_an_independent_consumer_reads_them(warehouse, generous, deliver, monkeypatch):
    # Several tasks a partition.
    monkeypatch.setattr(records, "OFFSETS_A_TASK", 400)
    now = time.time_ns() // 1_000_000
    sent = deliver(Hostile(SEED, now, ("analytics", "metrics"), examples=400).stream(2_000))
    ends = Counter((message.topic, message.partition) for message in sent)
    # Neither from the beginning nor to the end, and of one partition nothing.
    spans = {place: records.Span(7, end - 9) for place, end in ends.items()} | {min(ends): records.Span(5, 5)}
    wanted = {each[:3]: each for each in sent if spans[each[:2]].first <= each.offset < spans[each[:2]].until}
    found = records.read_records(
        warehouse.spark, warehouse.pipeline, spans, True, (*records.RECORD, records.BAD_HEADER)
    ).collect()
    assert len(found) == len(wanted) > 1_000
    for row in found:
        headers = [(header["key"], header["value"]) for header in row["headers"] or []]
        given = wanted[row["topic"], row["partition"], row["offset"]]
        assert (row["record_timestamp"], row["key"], row["value"], headers) == given[3:]
        assert row[records.BAD_HEADER] is False
    # Whoever asks for less gets the same of that.
    few = records.read_records(warehouse.spark, warehouse.pipeline, spans, True, ["offset", "value"]).collect()
    assert Counter(few) == Counter((row["offset"], row["value"]) for row in found)


@pytest.mark.parametrize("large", ["value", *(pytest.param(part, marks=pytest.mark.long) for part in ("key", "headers"))])
def test_large_records_come_in_small_pieces_even_if_all_are_fetched_at_once(large, broker, generous, deliver):
    # Compressed they are less than the client fetches at a time.
    texts = [f"{number} ".ljust(FIVE_MB).encode() for number in range(12)]
    made = {
        "key": [Message(0, text, b"v", [], 0) for text in texts],
        "value": [Message(0, b"k", text, [], 0) for text in (*texts, None)],
        "headers": [Message(0, b"k", None, [("h", text)], 0) for text in texts],
    }
    sent = [message for message in deliver(made[large]) if message.topic == generous.left.topic]
    places = {message.partition: [each for each in sent if each.partition == message.partition] for message in sent}
    for partition, there in places.items():
        span = records.Span(there[0].offset, there[-1].offset + 1)
        settings = {"bootstrap.servers": broker.bootstrap}
        pieces = list(records.read_shares(settings, [records.Share(generous.left.topic, partition, span)]))
        found = [(row["key"], row["value"]) for piece in pieces for row in piece.to_pylist()]
        assert found == [(message.key, message.value) for message in there]
        assert max(piece.nbytes for piece in pieces) < 22_000_000


def send_header(bootstrap, topic, name, value, body=b"{}", timestamp=0):
    """Sends a body to partition 0 with a header whose name is any bytes, as a client in C can."""
    found = glob.glob(f"{Path(confluent_kafka.__file__).parent.parent}/confluent_kafka.libs/librdkafka*")
    client = ctypes.CDLL(found[0])
    for function in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(client, function).restype = ctypes.c_void_p
    settings, problem = ctypes.c_void_p(client.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    assert client.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), problem, 512) == 0, problem.value
    producer, headers = ctypes.c_void_p(client.rd_kafka_new(0, settings, problem, 512)), client.rd_kafka_headers_new(1)
    client.rd_kafka_header_add(
        ctypes.c_void_p(headers), name, ctypes.c_ssize_t(len(name)), value, ctypes.c_ssize_t(len(value))
    )
    of_topic, of_partition, of_value, of_flags, of_timestamp, of_headers, copied = 1, 3, 4, 7, 8, 10, 2
    given = [of_topic, topic.encode(), of_partition, 0, of_value, body, ctypes.c_size_t(len(body)), of_flags, copied]
    given += [of_timestamp, ctypes.c_int64(timestamp), of_headers, ctypes.c_void_p(headers)]
    assert client.rd_kafka_producev(producer, *given, 0) == 0
    assert client.rd_kafka_flush(producer, 20_000) == 0
    client.rd_kafka_destroy(producer)


def test_what_no_single_reader_could_read_lands_at_the_first_try(warehouse, generous, broker, send):
    """A header name that is not UTF-8 beside a time beyond the year 294246, in one planned range."""
    topic, ago = generous.left.topic, time.time_ns() // 1_000_000 - 3_600_000
    body = json.dumps({"user1": "u", "user2": "v", "timestamp": ago, "analytics": 1}).encode()
    send_header(broker.bootstrap, topic, b"good", b"\xfe", body)
    send_header(broker.bootstrap, topic, b"b\xffd", b"\xfe", body)
    send("a", "u", ago, 2, timestamp=FIRST_BEYOND, partition=0, headers=[("far", b"1")])
    send_header(broker.bootstrap, topic, b"\xfe", b"x", b"{}", FIRST_BEYOND)
    send("m", "u", ago, 3)
    assert land_events.main(warehouse, 100)["landed"] == 5
    columns = ["offset", "headers", "record_timestamp", "user1", "ts", "payload", "problem"]
    rows = DeltaTable(warehouse.path("raw_analytics")).to_pyarrow_table(columns=columns).sort_by("offset").to_pylist()
    assert [row["headers"] for row in rows] == [
        [{"key": "good", "value": b"\xfe"}],
        None,
        [{"key": "far", "value": b"1"}],
        None,
    ]
    # What is wrong with the body itself is told first.
    assert [row["problem"] for row in rows] == [None, "bad_header", None, "missing_key"]
    assert [row["record_timestamp"] == FIRST_BEYOND for row in rows] == [False, False, True, True]
    assert (rows[1]["user1"], rows[1]["ts"], rows[1]["payload"]) == ("u", ago, "1")
    pair_events.main(warehouse)
    rejected = DeltaTable(warehouse.path("rejected_events")).to_pyarrow_table().to_pylist()
    assert {(row["offset"], row["reason"], row["value"]) for row in rejected} == {
        (1, "bad_header", body),
        (3, "missing_key", b"{}"),
    }
    publish_compounds.main(warehouse)
    # A stranger's message with such a header does not stop who reads back.
    send_header(broker.bootstrap, generous.output_topic, b"b\xffd", b"\xfe")
    report_quality.main(warehouse)
    assert reconcile.main(warehouse).offenders == []
    told = "\n".join(explain(warehouse, ("u", "v"), None))
    assert "  rejected in batch 1 as bad_header: the record has a header whose name is not UTF-8" in told
    assert "the tables say otherwise" not in told


# Names that a person chooses

NASTY = """it's "my" wäre-house; $(touch pwned) `touch pwned` & < > ? # * {a,b} 😀 ~ :"""


def test_strange_but_legal_names_work_the_whole_way(spark, broker, tmp_path, monkeypatch):
    folder = tmp_path / NASTY
    (folder / "pipe lines").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    topics = ["-..a_b-", "Select.from--", "..."]
    create_topics(broker.bootstrap, dict.fromkeys(topics, 2), {"retention.ms": "-1"})
    name = "select_" + 57 * "x"
    file = folder / "pipe lines" / f"{name}.yaml"
    settings = {
        "left": {"topic": topics[0], "payload": "ORDER"}, "right": {"topic": topics[1], "payload": "_"}, "output": {"topic": topics[2]},
        "key": ["from", "null", "f" * 64], "timestamp": "offset", "tolerance": "1m", "gap": "1m", "grace": "3m", "consumer_group": "..-",
    }  # fmt: skip
    file.write_text(yaml.safe_dump(settings))
    pipeline = load_pipeline(file)
    warehouse = Warehouse(warehouse_folder(f"{folder}/ware house//"), pipeline, spark)
    ago = time.time_ns() // 1_000_000 - 3_600_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    values = ["'; DROP TABLE x; --", "$(touch pwned)", "`touch pwned`"]
    for side in pipeline.sides:
        body = dict(zip(pipeline.key, values, strict=True)) | {"offset": ago, side.payload: side.topic}
        producer.produce(side.topic, json.dumps(body))
        producer.produce(side.topic, b"{")
    assert producer.flush(20) == 0
    land_events.main(warehouse, 1_000)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    report_quality.main(warehouse)
    (message,) = consume(broker.bootstrap, topics[2])
    wanted = dict(zip(pipeline.key, values, strict=True)) | {"ts": ago, "ORDER": topics[0], "_": topics[1]}
    assert (message["kind"], message["value"]) == ("pair", wanted)
    assert len(DeltaTable(warehouse.path("rejected_events")).to_pyarrow_table()) == 2
    # Nothing was executed, and nothing is anywhere else.
    assert [path.name for path in tmp_path.iterdir()] == [NASTY]
    assert sorted(path.name for path in folder.iterdir()) == ["pipe lines", "ware house"]
    assert [path.name for path in (folder / "ware house").iterdir()] == [name]


@pytest.mark.parametrize(
    "given", ["", "/", "///", "a\nb", "/a\0b", "/a%2fb", "file:///a%25b", "/a\\b", "/a\u202eb", "/a[b", "/a|b"]
)
def test_a_warehouse_that_some_reader_would_look_for_elsewhere_is_refused(given):
    with pytest.raises(NeedsOperator, match=r"^warehouse .* is refused: name a folder (or URI|without any of)") as refused:
        warehouse_folder(given)
    assert str(refused.value).isprintable()
