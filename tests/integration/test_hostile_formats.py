"""A hundred thousand hostile records in each format, among good ones: all are landed, with a reason, and nothing stalls."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import replace
from io import BytesIO

import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from fastavro import schemaless_writer

from include.config.pipeline import Side
from spark_jobs.formats.registry import VARIABLE
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import land
from tests.helpers.stores import table_of

pytestmark = [pytest.mark.integration, pytest.mark.long]


HOSTILE, GOOD = 100_000, 1_000
FIELDS = [("user1", "string"), ("user2", "string")]
AVRO = {"type": "record", "name": "Call", "fields": [
    *({"name": name, "type": kind} for name, kind in FIELDS), {"name": "timestamp", "type": "long"},
    {"name": "analytics", "type": ["null", {"type": "array", "items": {"type": "map", "values": "string"}}]},
]}  # fmt: skip
PROTO = (
    'syntax = "proto3"; message Call { string user1 = 1; string user2 = 2; int64 timestamp = 3; repeated Inner analytics = 4; '
    "message Inner { map<string, string> texts = 1; } }"
)
# Without the name of its dialect, Apicurio does not take a text for a JSON schema.
JSON_SCHEMA = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
BODY = {"user1": "ann", "user2": "bob", "timestamp": 5, "analytics": [{"a": "b"}, {"c": "é" * 20}]}


def good_body(form):
    if form == "json_schema":
        return json.dumps(BODY).encode()
    if form == "avro":
        to = BytesIO()
        schemaless_writer(to, AVRO, BODY)
        return to.getvalue()
    inner = b"\x0a\x06\x0a\x01a\x12\x01b"
    return b"\x00\x0a\x03ann\x12\x03bob\x18\x05" + b"\x22" + bytes([len(inner)]) + inner


def hostile(dice, frame, body):
    """One of many ways to spoil a record: cut, changed, repeated, of another schema, without a frame, noise, huge counts."""
    way = dice.randrange(9)
    spoilt = bytearray(body)
    if way == 0:
        return frame + body[: dice.randrange(len(body))], ()
    if way in (1, 2):
        for _ in range(way):
            spoilt[dice.randrange(len(spoilt))] = dice.randrange(256)
        return frame + bytes(spoilt), ()
    if way == 3:
        return b"\x00" + dice.randbytes(4) + body, ()
    if way == 4:
        return dice.randbytes(dice.randrange(40)), ()
    if way == 5:
        at = dice.randrange(len(body))
        return frame + body[:at] + b"\xff" * 9 + b"\x01" + body[at:], ()
    if way == 6:
        return frame + body[: dice.randrange(len(body))] * dice.randrange(1, 30), ()
    if way == 7:
        return frame + body, (("__value_schema_id", dice.randbytes(dice.choice((0, 1, 5, 17, 30)))),)
    return None, ()


@pytest.mark.parametrize(
    ("form", "is_plain"), [("avro", False), ("protobuf", False), ("json_schema", False), ("avro", True), ("protobuf", True)]
)
def test_they_are_landed_with_a_reason(form, is_plain, warehouse, pipeline, apicurio, broker, monkeypatch):
    """`is_plain`: without frames, by a schema file."""
    monkeypatch.setenv(VARIABLE, json.dumps({"url": apicurio.url}))
    kinds = {
        "avro": ("AVRO", json.dumps(AVRO)),
        "protobuf": ("PROTOBUF", PROTO),
        "json_schema": ("JSON", JSON_SCHEMA),
    }
    key = apicurio.register(f"{form}-value", *kinds[form])
    frame, body, dice = b"\x00" + key.to_bytes(4, "big"), good_body(form), random.Random(7)
    side: Side = replace(pipeline.left, format=form)
    if is_plain:
        message = "Call" if form == "protobuf" else None
        # A Protobuf body has the path of its message in the frame only.
        frame, body = b"", body.removeprefix(b"\x00") if message else body
        side = replace(side, schema=kinds[form][1], message=message)
    mine = Warehouse(warehouse.root, replace(pipeline, left=side), warehouse.spark)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 1_000_000})
    places = set(dice.sample(range(HOSTILE + GOOD), GOOD))
    for number in range(HOSTILE + GOOD):
        value, headers = (frame + body, ()) if number in places else hostile(dice, frame, body)
        producer.produce(
            side.topic, value=value, headers=list(headers), key=b"good" if number in places else b"hostile", partition=0
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    begun = time.monotonic()
    counts = land(mine)
    took = time.monotonic() - begun
    assert counts["landed"] == HOSTILE + GOOD and took < 120
    table = table_of(mine.root, mine.pipeline, f"raw_{side.payload}")
    rows = table.to_pyarrow_table(columns=["key", "problem", "payload"])
    problems = {
        kind: Counter(rows.filter(pc.equal(rows["key"], kind))["problem"].to_pylist()) for kind in (b"good", b"hostile")
    }
    assert problems[b"good"] == {None: GOOD}
    # Some changed byte is of no account; nor is a header that names a schema, where records have none.
    assert problems[b"hostile"][None] < HOSTILE // (2 if is_plain else 3)
    unreadable = "malformed_json" if form == "json_schema" else "undecodable"
    assert problems[b"hostile"][unreadable] > HOSTILE // 5
    assert (problems[b"hostile"]["unknown_schema"] > HOSTILE // 20) != is_plain
    assert all(json.loads(text) is not None for text in rows["payload"].drop_null().to_pylist()[:20_000])
