"""Compounds in Avro and Protobuf, with a real schema registry, from Kafka to Kafka, read by the clients that consumers have."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, Schema, SchemaRegistryClient, ServerConfig
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_jobs import pair_events, publish_compounds, reconcile, report_quality
from spark_jobs.corrections.erasure import erase
from spark_jobs.corrections.erasure_search import person
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.registry import VARIABLE
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.story.from_tables import explain
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.all_stages import land
from tests.helpers.reading import consume

pytestmark = pytest.mark.integration


STATS = {"type": "record", "name": "Stats", "namespace": "com.acme", "fields": [
    {"name": "mos", "type": "double"}, {"name": "packets", "type": "long"}]}  # fmt: skip
CALL = {
    "type": "record", "name": "Call", "namespace": "com.acme", "fields": [
        {"name": "user1", "type": "string"}, {"name": "user2", "type": "string"},
        {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "analytics", "type": ["null", STATS]},
    ],
}  # fmt: skip
GROWN = json.loads(json.dumps(CALL))
GROWN["fields"][3]["type"][1]["fields"].append({"name": "jitter", "type": ["null", "double"], "default": None})
# The payload's type is another one.
OTHER = json.loads(json.dumps(CALL))
OTHER["fields"][3]["type"][1]["fields"][0]["type"] = "string"
REPORT = """syntax = "proto3";
package media;
message Other { string text = 1; }
message Report {
  message Loss { double share = 1; int64 packets = 2; }
  string user1 = 1; string user2 = 2; int64 timestamp = 3; Loss metrics = 4;
}
"""
BIG = 2**53 + 1


@pytest.fixture
def registry(apicurio, monkeypatch):
    monkeypatch.setenv(VARIABLE, json.dumps({"url": apicurio.url}))
    return apicurio


@pytest.fixture
def client(registry):
    return SchemaRegistryClient({"url": registry.url})


class Topics:
    """Sends events to the two topics; `decode` reads what is published, by the schema that each message names."""

    def __init__(self, broker, registry, pipeline) -> None:
        self.bootstrap, self.url, self.pipeline = broker.bootstrap, registry.url, pipeline
        self.producer, self.registry = Producer({"bootstrap.servers": broker.bootstrap}), registry

    def call(self, ts, user1, schema=CALL, **stats):
        side = self.pipeline.left
        client = SchemaRegistryClient({"url": self.url})
        serialize = AvroSerializer(client, json.dumps(schema), conf={"auto.register.schemas": True})
        body = {"user1": user1, "user2": "bob", "timestamp": ts, "analytics": stats or None}
        self.raw(side, serialize(body, SerializationContext(side.topic, MessageField.VALUE)))

    def report(self, ts, user1, packets=BIG):
        """In the format that the side has, as Protobuf or JSON."""
        side = self.pipeline.right
        if side.format == "json":
            body = {"user1": user1, "user2": "bob", "timestamp": ts, "metrics": {"packets": packets}}
            return self.raw(side, json.dumps(body).encode())
        from google.protobuf.message_factory import GetMessageClass

        message = GetMessageClass(compile_source(REPORT, {}).message_named("media.Report"))()
        message.user1, message.user2, message.timestamp = user1, "bob", ts
        message.metrics.packets = packets
        schema_id = self.registry.register(f"{side.topic}-value", "PROTOBUF", REPORT)
        return self.raw(side, b"\x00" + schema_id.to_bytes(4, "big") + b"\x02\x02" + message.SerializeToString())

    def raw(self, side, value):
        self.producer.produce(side.topic, value=value, partition=0)
        assert self.producer.flush(20) == 0

    def published(self):
        """What is on the output topic, in the order of the times, with the bytes as `raw`."""
        decode = avro_reader(self.url) if self.pipeline.output_format == "avro" else protobuf_reader(self.url)
        found = consume(self.bootstrap, self.pipeline.output_topic, lambda raw: decode(raw) | {"raw": raw})
        return sorted(found, key=lambda message: (message["value"] or {"ts": 0})["ts"])


def avro_reader(url):
    read = AvroDeserializer(SchemaRegistryClient({"url": url}))

    def decode(raw):
        value = read(raw, SerializationContext("any", MessageField.VALUE))
        return value | {"ts": round(value["ts"].timestamp() * 1000)}

    return decode


def protobuf_reader(url):
    """A consumer that knows nothing but the registry: schema and imports by the id, the first message of the file."""
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message_factory import GetMessageClass

    client = SchemaRegistryClient({"url": url})

    def decode(raw):
        assert raw[0] == 0 and raw[5] == 0
        schema = client.get_schema(int.from_bytes(raw[1:5], "big"))
        imports = {each.name: client.get_version(each.subject, each.version).schema.schema_str for each in schema.references}
        message = GetMessageClass(compile_source(schema.schema_str, imports).message_at([0])).FromString(raw[6:])
        value = MessageToDict(message, preserving_proto_field_name=True)
        return value | {"ts": int(value["ts"])}

    return decode


@pytest.fixture
def made(warehouse, pipeline, broker, registry):
    """A function that makes warehouse and topics of a pipeline with these settings."""

    def make(right="json", **settings):
        left = replace(pipeline.left, format="avro")
        # Sessions close at once, so that a second batch has some that are neither open nor late.
        at_once = {"tolerance_ms": 100, "gap_ms": 100, "grace_ms": 0}
        mine = replace(pipeline, left=left, right=replace(pipeline.right, format=right), **at_once | settings)
        return Warehouse(warehouse.root, mine, warehouse.spark), Topics(broker, registry, mine)

    return make


def ago(minutes):
    return time.time_ns() // 1_000_000 - minutes * 60_000


def publish(warehouse):
    # Longer than the gap after what was just sent.
    time.sleep(0.3)
    land(warehouse)
    pair_events.main(warehouse)
    return publish_compounds.main(warehouse)


def with_pipeline(warehouse, **settings):
    return Warehouse(warehouse.root, replace(warehouse.pipeline, **settings), warehouse.spark)


def subject(warehouse):
    return f"{warehouse.pipeline.output_topic}-value"


def test_avro_with_a_payload_of_its_own_type_and_one_in_json(made, client, monkeypatch):
    """By the job itself and by Spark's workers with the same bytes; the schema grows with that of the side, and old batches stay proven. Keys are
    Avro, too.
    """
    warehouse, topics = made(output_format="avro", output_key="avro")
    begun = ago(60)
    for user, minutes in (("ann", 0), ("eve", 1)):
        topics.call(begun + minutes * 60_000, user, mos=4.5, packets=BIG)
    topics.report(begun + 1, "ann")
    assert publish(warehouse)["sent"] == 2
    client.set_config(subject(warehouse), ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    first, alone = topics.published()
    stats = {"mos": 4.5, "packets": BIG}
    value = {"user1": "ann", "user2": "bob", "ts": begun, "analytics": stats, "analytics_json": None}
    assert first["value"] == value | {"metrics": json.dumps({"packets": BIG}), "raw": first["value"]["raw"]}
    assert (first["kind"], first["op"]) == ("pair", "upsert")
    key_id = client.get_latest_version(key_subject(warehouse)).schema_id
    # The id, and with it the partition of each, depends on what the registry has had before.
    assert b"\0" + key_id.to_bytes(4, "big") + b"\6ann\6bob" in [key for key, _, _ in keys_of(topics)]
    assert alone["value"]["metrics"] is None and alone["value"]["analytics"] == stats
    topics.call(ago(0), "joe", GROWN, mos=1.0, packets=1, jitter=0.25)
    topics.call(ago(0) + 1, "kim", mos=2.0, packets=2)
    monkeypatch.setenv(FEW_VARIABLE, "0")
    assert publish(warehouse)["sent"] == 2
    joe, kim = (message["value"] for message in topics.published()[2:])
    assert joe["analytics"] == {"mos": 1.0, "packets": 1, "jitter": 0.25}
    assert kim["analytics"] == {"mos": 2.0, "packets": 2, "jitter": None}
    assert client.get_versions(subject(warehouse)) == [1, 2]
    report_quality.main(warehouse)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_protobuf_with_a_payload_of_its_own_type_and_one_in_json(made, client, monkeypatch):
    monkeypatch.setenv(FEW_VARIABLE, "0")
    warehouse, topics = made(right="protobuf", output_format="protobuf")
    begun = ago(60)
    topics.call(begun, "ann", mos=4.5, packets=1)
    topics.report(begun + 1, "ann")
    topics.report(begun + 60_000, "eve")
    assert publish(warehouse)["sent"] == 2
    first, alone = topics.published()
    metrics = {"packets": str(BIG)}
    value = {"user1": "ann", "user2": "bob", "ts": begun, "analytics": '{"mos":4.5,"packets":1}', "metrics": metrics}
    assert first["value"] == value | {"raw": first["value"]["raw"]}
    assert "analytics" not in alone["value"] and alone["value"]["metrics"] == metrics
    assert client.get_versions(subject(warehouse)) == [1]
    report_quality.main(warehouse)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_a_change_that_the_registry_does_not_allow_is_refused_and_nothing_is_lost(made, client):
    warehouse, topics = made(output_format="avro")
    topics.call(begun := ago(60), "ann", mos=4.5, packets=1)
    topics.report(begun, "ann")
    publish(warehouse)
    client.set_config(subject(warehouse), ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    topics.call(begun := ago(0), "eve", OTHER, mos="good", packets=1)
    topics.report(begun, "eve")
    for _ in range(2):
        with pytest.raises(
            NeedsOperator, match=f"not compatible with version 1 of {subject(warehouse)} in the schema regist"
        ):
            publish(warehouse)
    assert len(topics.published()) == 1 and client.get_versions(subject(warehouse)) == [1]
    # The remedy: the side's schema is what it was. What was written by the other one does not fit, and is there as text.
    client.register_schema(f"{warehouse.pipeline.left.topic}-value", Schema(json.dumps(GROWN), "AVRO"))
    assert publish(warehouse)["sent"] == 1
    eve = topics.published()[1]["value"]
    assert (eve["analytics"], eve["analytics_json"]) == (None, '{"mos":"good","packets":1}')
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_a_registry_that_is_away_keeps_the_run_from_sending_and_the_next_goes_on(made, registry):
    warehouse, topics = made(output_format="avro")
    topics.call(begun := ago(60), "ann", mos=4.5, packets=1)
    topics.report(begun, "ann")
    land(warehouse)
    pair_events.main(warehouse)
    registry.kill()
    with pytest.raises(JobProblem, match=r"the schema registry at http.* cannot be reached") as problem:
        publish_compounds.main(warehouse)
    assert "\n" not in str(problem.value)
    registry.start()
    # In memory only: it has lost the side's schema with all others.
    with pytest.raises(NeedsOperator, match=r"-value, which is not there: register it there in avro"):
        publish_compounds.main(warehouse)
    registry.register(f"{warehouse.pipeline.left.topic}-value", "AVRO", json.dumps(CALL))
    assert publish_compounds.main(warehouse)["sent"] == 1
    assert topics.published()[0]["value"]["analytics"] == {"mos": 4.5, "packets": 1}


@pytest.mark.long
def test_batches_keep_the_format_that_they_were_sent_in(made):
    """A topic may have both, and reconcile compares each with what was sent."""
    warehouse, topics = made()
    topics.call(ago(60), "ann", mos=4.5, packets=1)
    publish(warehouse)
    avro = with_pipeline(warehouse, output_format="avro")
    topics.call(ago(0), "eve", mos=4.5, packets=1)
    publish(avro)
    values = [message["value"] for message in consume(topics.bootstrap, avro.pipeline.output_topic, lambda raw: raw)]
    assert sorted(value[:1] for value in values) == [b"\0", b"{"]
    assert reconcile.main(avro).offenders == []


def key_subject(warehouse):
    return f"{warehouse.pipeline.output_topic}-key"


def keys_of(topics):
    """The keys on the output topic, in the order of the offsets, as bytes, and where each message is."""
    found = consume(topics.bootstrap, topics.pipeline.output_topic, lambda raw: raw)
    return [(message["key"].encode(), message["partition"], message["op"]) for message in found]


@pytest.mark.long
def test_keys_have_one_schema_and_their_bytes_stay_whatever_becomes_of_the_registry(made, client, registry, monkeypatch):
    warehouse, topics = made(output_key="avro")
    topics.call(ago(60), "ann", mos=4.5, packets=1)
    assert publish(warehouse)["sent"] == 1
    ((key, _, _),) = keys_of(topics)
    read = AvroDeserializer(client)
    context = SerializationContext(warehouse.pipeline.output_topic, MessageField.KEY)
    assert read(key, context) == {"user1": "ann", "user2": "bob"} and client.get_versions(key_subject(warehouse)) == [1]
    # It has lost all schemas, and would give that of keys another id; nor is it needed. Now Spark's workers make the keys.
    registry.restart()
    registry.register("other", "AVRO", '"string"')
    monkeypatch.setenv(FEW_VARIABLE, "0")
    topics.call(ago(0), "eve", mos=4.5, packets=1)
    assert publish(warehouse)["sent"] == 1
    assert sorted(each for each, _, _ in keys_of(topics)) == [key, key.replace(b"ann", b"eve")]
    assert client.get_subjects() == ["other", f"{warehouse.pipeline.left.topic}-value"]
    assert reconcile.main(warehouse).offenders == []
    assert [line for line in explain(warehouse, ("eve", "bob")) if f": on {warehouse.pipeline.output_topic}-" in line]


@pytest.mark.long
@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_a_retraction_has_the_key_of_what_it_takes_back(made, form):
    warehouse, topics = made(output_key=form)
    for user in ("ann", "eve"):
        topics.call(ago(60), user, mos=4.5, packets=1)
    publish(warehouse)
    erase(warehouse, person(warehouse.pipeline, ["ann", "bob"]), "a test")
    ann = [each for each in keys_of(topics) if b"ann" in each[0]]
    assert [op for _, _, op in ann] == ["upsert", "retract"] and len({(key, partition) for key, partition, _ in ann}) == 1
    assert reconcile.main(warehouse).offenders == []
    assert warehouse.pipeline.output_key == form and len(keys_of(topics)) == 3
