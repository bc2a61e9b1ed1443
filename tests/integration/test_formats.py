"""Topics in other formats than JSON, with a real schema registry, from Kafka to Kafka."""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from io import BytesIO

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro import schemaless_writer

from include.config.pipeline import KAFKA, Side
from include.config.pipeline_file import load_pipeline
from spark_jobs import heal_schemas, pair_events, publish_compounds, reconcile, report_quality
from spark_jobs.corrections.erasure import erase
from spark_jobs.corrections.erasure_search import person, rows_of_unknown_schemas
from spark_jobs.corrections.healed_events import batches_with_unknown
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.formats import registry_client
from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.registry import VARIABLE
from spark_jobs.joining.command import propose_file
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.story.from_files import rehearse
from spark_jobs.story.from_tables import explain
from spark_jobs.story.from_topics import read_topics
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import land, run_all
from tests.helpers.reading import consume, table_rows

pytestmark = pytest.mark.integration

CALL = {
    "type": "record", "name": "Call", "fields": [
        {"name": "parties", "type": {"type": "record", "name": "Parties", "fields": [
            {"name": "caller", "type": "string"}, {"name": "callee", "type": ["null", "string"]}]}},
        {"name": "ended", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["END", "BEGIN"]}},
        {"name": "quality", "type": {"type": "map", "values": "double"}},
    ],
}  # fmt: skip
# Bytes and decimals: not for the fast decoder.
PRICED = json.loads(json.dumps(CALL))
PRICED["fields"].insert(
    0, {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}, "default": "\x00"}
)
METRICS = """
syntax = "proto3";
package media;
import "google/protobuf/timestamp.proto";
message Other { string text = 1; }
message Report {
  message Loss { double share = 1; int64 packets = 2; }
  string from_user = 1;
  string to_user = 2;
  google.protobuf.Timestamp at = 3;
  Loss loss = 4;
}
"""
REPORT_AT = b"\x02\x02"  # Report is the second message of the file.


@pytest.fixture
def registry(apicurio, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"url": apicurio.url}))
    return apicurio


@pytest.fixture
def sides(pipeline):
    key = (("user1", "parties.caller"), ("user2", "parties.callee"))
    left = replace(
        pipeline.left, format="avro", key=key, timestamp="ended", payload_from="quality", only=(("kind", ("END",)),)
    )
    key = (("user1", "from_user"), ("user2", "toUser"))
    return left, replace(pipeline.right, format="protobuf", key=key, timestamp="at", payload_from="loss")


@pytest.fixture
def mixed(warehouse, pipeline, sides):
    """The pipeline with Avro on the left and Protobuf on the right."""
    return Warehouse(warehouse.root, replace(pipeline, left=sides[0], right=sides[1]), warehouse.spark)


def _id_in_header(body, context, schema):
    """This registry gives no GUIDs."""
    context.headers.append(("__value_schema_id", schema.id_to_bytes()))
    return body


class Sender:
    """Sends calls to both topics as their producers would."""

    def __init__(self, broker, registry, sides) -> None:
        self.producer = Producer({"bootstrap.servers": broker.bootstrap})
        self.client = SchemaRegistryClient({"url": registry.url})
        self.registry, (self.left, self.right) = registry, sides
        self.report = compile_source(METRICS, {})
        self.report_id = registry.register(f"{self.right.topic}-value", "PROTOBUF", METRICS)

    def avro(self, ts, caller, callee="bob", schema=CALL, kind="END", in_header=False, **fields):
        subject = {
            "auto.register.schemas": True,
            "subject.name.strategy": lambda *_: f"{self.left.topic}-{hash(str(schema))}",
        }
        if in_header:
            subject["schema.id.serializer"] = _id_in_header
        made = AvroSerializer(self.client, json.dumps(schema), conf=subject)
        headers: list = []
        context = SerializationContext(self.left.topic, MessageField.VALUE, headers)
        body = {
            "parties": {"caller": caller, "callee": callee},
            "ended": ts * 1000 + 999,
            "kind": kind,
            "quality": {"mos": 4.5},
        }
        self.raw(self.left, made(body | fields, context), headers)

    def protobuf(self, ts, caller, callee="bob", packets=2**53 + 1, path=REPORT_AT):
        from google.protobuf.message_factory import GetMessageClass

        message = GetMessageClass(self.report.message_named("media.Report"))()
        message.from_user, message.to_user = caller, callee
        message.at.FromMilliseconds(ts)
        message.loss.packets = packets
        self.raw(self.right, b"\x00" + self.report_id.to_bytes(4, "big") + path + message.SerializeToString())

    def avro_later(self, ts, caller, key):
        """A record of a schema that is nowhere yet."""
        to = BytesIO()
        fields = {"parties": {"caller": caller, "callee": "bob"}, "ended": ts * 1000, "kind": "END", "quality": {}}
        schemaless_writer(to, CALL, fields)
        self.raw(self.left, b"\x00" + key.to_bytes(4, "big") + to.getvalue())

    def register_again(self):
        """In the same order, so with the same ids."""
        assert self.registry.register(f"{self.right.topic}-value", "PROTOBUF", METRICS) == self.report_id
        self.registry.register(f"{self.left.topic}-value", "AVRO", json.dumps(CALL))

    def raw(self, side: Side, value: bytes, headers=()):
        self.producer.produce(side.topic, value=value, headers=list(headers), partition=0)

    def flush(self):
        assert self.producer.flush(20) == 0


@pytest.fixture
def sender(broker, registry, sides):
    return Sender(broker, registry, sides)


def ago(minutes):
    return time.time_ns() // 1_000_000 - minutes * 60_000


def problems(warehouse, side):
    return Counter(row["problem"] for row in table_rows(warehouse, f"raw_{side.payload}"))


@pytest.mark.parametrize("few", ["250000", pytest.param("0", marks=pytest.mark.long)])
def test_avro_and_protobuf_pair(mixed, sender, broker, monkeypatch, few):
    """By the job itself and by Spark's workers."""
    monkeypatch.setenv(FEW_VARIABLE, few)
    begun = ago(30)
    sender.avro(begun, "ann")
    sender.avro(begun, "ann", kind="BEGIN")
    sender.protobuf(begun + 500, "ann")
    sender.avro(begun, "eve", in_header=True)
    sender.avro(begun + 1, "joe", schema=PRICED, price=Decimal("12.340"))
    sender.protobuf(begun + 2, "joe")
    sender.flush()
    land(mixed)
    pair_events.main(mixed)
    publish_compounds.main(mixed)
    report_quality.main(mixed)
    left, right = mixed.pipeline.sides
    assert problems(mixed, left) == {None: 3, "filtered": 1} and problems(mixed, right) == {None: 2}
    found = {
        message["value"]["user1"]: message["value"] for message in consume(broker.bootstrap, mixed.pipeline.output_topic)
    }
    ann = {"user1": "ann", "user2": "bob", "ts": begun, "analytics": {"mos": 4.5}, "metrics": {"packets": str(2**53 + 1)}}
    assert found == {
        "ann": ann,
        "joe": ann | {"user1": "joe", "ts": begun + 1},
        "eve": ann | {"user1": "eve", "metrics": None},
    }
    assert table_rows(mixed, "rejected_events") == []
    assert reconcile.main(mixed).offenders == []
    assert any("paired" in line for line in explain(mixed, ("ann", "bob")))


def test_what_cannot_be_read_is_rejected_and_the_rest_is_landed(mixed, sender):
    left, right = mixed.pipeline.sides
    sender.avro(ago(30), "ann")
    sender.avro(ago(30), "ann", callee=None)
    good = b"\x00" + sender.report_id.to_bytes(4, "big")
    for value in (b"", b"{}", b"\x00\x00", b"\x00\x00\x0f\xff\xff\x00", b"\x01" + b"\x07" * 16 + b"x"):
        sender.raw(left, value)
    for value in (
        good + REPORT_AT + b"\xff",
        good + b"\x02\x0e",
        good + b"\x00\x0a\x01x",
        good + b"\x02\x01",
        good,
        good + REPORT_AT,
    ):
        sender.raw(right, value)
    sender.protobuf(ago(30), "ann")
    sender.flush()
    counts = land(mixed)
    # No body: an empty value, one without a frame, one that is cut off. Two ids that nobody knows.
    assert problems(mixed, left) == {None: 1, "missing_key": 1, "undecodable": 3, "unknown_schema": 2}
    # A message of another type, and an empty one, lack the key.
    assert problems(mixed, right) == {None: 1, "undecodable": 4, "missing_key": 2}
    assert counts["unknown_schema"] == 2 and counts["landed"] == counts["accepted"] + 12


def test_known_schemas_do_not_need_the_registry(mixed, sender, registry, monkeypatch):
    left, _ = mixed.pipeline.sides
    sender.avro(ago(30), "ann")
    sender.protobuf(ago(30), "ann")
    sender.flush()
    land(mixed)
    sender.avro(ago(20), "new", schema=PRICED, price=Decimal("1.000"))
    sender.avro(ago(20), "eve")
    registry.kill()
    sender.flush()
    monkeypatch.setattr(registry_client, "PATIENCE_S", 0.5)
    with pytest.raises(JobProblem, match="registry") as refused:
        land(mixed)
    assert "\n" not in str(refused.value) and not isinstance(refused.value, NeedsOperator)
    assert len(table_rows(mixed, f"raw_{left.payload}")) == 1


def test_without_settings_of_a_registry(mixed, sender, monkeypatch):
    sender.avro(ago(30), "ann")
    sender.flush()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(NeedsOperator, match="schema_registry_default"):
        land(mixed)


@pytest.mark.long
@pytest.mark.parametrize("key_order", ["as_is", "any"])
def test_unknown_schemas_are_healed_once_the_registry_knows_them(
    mixed, sides, broker, registry, tmp_path, capsys, key_order
):
    """Rejected, then paired by a replay of their interval; counts add up before, between and after."""
    left, right = mixed.pipeline.sides
    # With any order of the key the right side may name the two in the other one.
    to_eve = ("eve",) if key_order == "as_is" else ("bob", "eve")
    if key_order == "any":
        mixed = Warehouse(str(tmp_path / "any"), replace(mixed.pipeline, key_order="any"), mixed.spark)
    registry.restart()
    sender = Sender(broker, registry, sides)
    begun = ago(600)
    sender.avro(begun, "eve")
    sender.protobuf(begun, *to_eve)
    sender.flush()
    # As after a restore of an older copy of the registry: it does not know these ids.
    registry.restart()
    sender.avro_later(begun + 1, "ann", 77)
    # Microseconds where milliseconds are said: in the future then as now.
    sender.avro_later(begun * 1000, "far", sender.report_id + 1)
    sender.protobuf(begun + 500, "ann")
    sender.flush()
    run_all(mixed)
    assert problems(mixed, left) == {"unknown_schema": 3} and problems(mixed, right) == {"unknown_schema": 2}
    in_vain = heal_schemas.main(mixed)
    assert (in_vain["records"], in_vain["readable"], in_vain["still_unknown"], in_vain["replayed"]) == (5, 0, 5, 0)
    sender.register_again()
    healed = heal_schemas.main(mixed)
    assert healed["readable"] == 3 and healed["still_unknown"] == 1 and healed["new"] == 2
    publish_compounds.main(mixed)
    found = {
        (*sorted(message["value"][name] for name in ("user1", "user2")), message["kind"])
        for message in consume(broker.bootstrap, mixed.pipeline.output_topic)
    }
    assert found == {("bob", "eve", "pair"), ("ann", "bob", "right_only")}
    assert reconcile.main(mixed).offenders == []
    # Again, now without a registry that knows anything: what is healed is read from what was kept.
    registry.restart()
    again = heal_schemas.main(mixed)
    assert (again["readable"], again["still_unknown"], again["new"], again["changed"], again["retracted"]) == (3, 1, 0, 0, 0)
    assert any("eve" in line for line in explain(mixed, ("eve", "bob")))
    # An erasure reads their keys as the replays do; of what is unknown still, the bytes.
    batches, whose = batches_with_unknown(mixed), person(mixed.pipeline, ["nn"])
    theirs = [rows_of_unknown_schemas(mixed, whose, side, batches) for side in mixed.pipeline.sides]
    assert [(len(rows), undecodable) for rows, undecodable in theirs] == [(1, 1), (0, 0)]
    assert erase(mixed, person(mixed.pipeline, ["ann"]))["raw_right"] == 1
    assert "1 record of schemas that are still unknown" in capsys.readouterr().out
    again = heal_schemas.main(mixed)
    assert (again["records"], again["new"], again["changed"], again["retracted"]) == (3, 0, 0, 0)
    assert reconcile.main(mixed).offenders == []


def test_a_proposal_and_a_rehearsal_read_avro_and_protobuf_from_the_topics(pipeline, sender, tmp_path, capsys):
    begun, users = ago(60), [f"u{number}" for number in range(15)]
    rng = random.Random(3)
    for _ in range(80):
        at, (caller, callee) = begun + rng.randrange(3_000_000), rng.sample(users, 2)
        sender.avro(at, caller, callee)
        sender.protobuf(at + rng.randrange(900), caller, callee)
    sender.flush()
    file = tmp_path / f"{pipeline.name}.yaml"
    topics = {"left": pipeline.left.topic, "right": pipeline.right.topic, "output": None}
    clusters = {"left_connection": KAFKA, "right_connection": KAFKA}
    plain = dict.fromkeys(f"{side}_{what}" for side in ("left", "right") for what in ("schema_file", "message"))
    given = Namespace(**topics, **clusters, **plain, sample=1_000, write=file, force=False)
    propose_file(given, pipeline.name)
    proposed = load_pipeline(file)
    assert [(side.format, side.timestamp) for side in proposed.sides] == [("avro", "ended"), ("protobuf", "at")]
    assert dict(proposed.left.key) == {"fromUser": "parties.caller", "toUser": "parties.callee"}
    assert (proposed.key, proposed.right.key) == (("fromUser", "toUser"), ())
    capsys.readouterr()
    settled = replace(proposed, grace_ms=60_000)
    *compounds, ledger = map(json.loads, rehearse(settled, read_topics(settled, 1_000, None)))
    assert ledger["landed"] == 160 and 78 <= ledger["pair"] <= 80 and len(compounds) < 84
