"""The schema of compounds in a real registry: made, registered once, grown with the sides', refused where it is not compatible."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import ConfigCompatibilityLevel, SchemaRegistryClient, ServerConfig

from include.config.pipeline import Side
from include.local.process import free_port
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.formats import registry_client
from spark_jobs.formats.output_key import key_schema
from spark_jobs.formats.registration import encoder, register_key, register_output
from tests.helpers.timeline import CALLS
from tests.integration.test_output_formats import CALL, GROWN, OTHER, REPORT, avro_reader, protobuf_reader

pytestmark = pytest.mark.integration

ROW = {
    "user1": "ann",
    "user2": "bob",
    "ts": 5,
    "left.payload": '{"mos":4.5,"packets":1}',
    "right.payload": '{"packets":"1"}',
}


@pytest.fixture
def registry(apicurio):
    return apicurio


@pytest.fixture
def client(registry):
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def avro(request):
    """With subjects of its own: a registry never forgets the versions of one."""
    name = f"t{abs(hash(request.node.nodeid)):x}"
    left, right = Side(f"{name}-a", "analytics", format="avro"), Side(f"{name}-m", "metrics")
    return replace(CALLS, output_format="avro", left=left, right=right, output_topic=f"{name}-o")


@pytest.fixture
def protobuf(avro):
    left, right = replace(avro.left, format="json"), replace(avro.right, format="protobuf")
    return replace(avro, output_format="protobuf", left=left, right=right)


def value(schema, **more):
    columns = {source: pa.array([(ROW | more)[source]]) for _, source in schema.fields}
    return encoder(schema)(columns)[0].as_py()


def subject_of(side_or_topic):
    return f"{getattr(side_or_topic, 'topic', side_or_topic)}-value"


def only_compatible(client, pipeline):
    client.set_config(subject_of(pipeline.output_topic), ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))


def test_in_avro_a_schema_is_registered_once_grows_and_is_refused(registry, client, avro):
    settings, subject = {"url": registry.url}, subject_of(avro.left)
    registry.register(subject, "AVRO", json.dumps(CALL))
    first = register_output(avro, settings)
    only_compatible(client, avro)
    assert register_output(avro, settings) == first
    registry.register(subject, "AVRO", json.dumps(GROWN))
    second = register_output(avro, settings)
    assert first.id != second.id and client.get_versions(subject_of(avro.output_topic)) == [1, 2]
    read = avro_reader(registry.url)
    stats = {"mos": 4.5, "packets": 1}
    assert read(value(first))["analytics"] == stats and read(value(second))["analytics"] == stats | {"jitter": None}
    registry.register(subject, "AVRO", json.dumps(OTHER))
    with pytest.raises(
        NeedsOperator, match=f"not compatible with version 2 of {subject_of(avro.output_topic)} in the schema registry at "
    ) as line:
        register_output(avro, settings)
    assert "nothing was sent: put settings and schemas back" in str(line.value) and "\n" not in str(line.value)
    assert client.get_versions(subject_of(avro.output_topic)) == [1, 2]


@pytest.mark.parametrize("has_file", [False, True])
def test_in_protobuf_the_sides_file_is_a_reference(registry, client, protobuf, has_file):
    settings, pipeline = {"url": registry.url}, protobuf
    if has_file:
        pipeline = replace(protobuf, right=replace(protobuf.right, schema=REPORT, message="media.Report"))
    else:
        registry.register(subject_of(protobuf.right), "PROTOBUF", REPORT)
    first = register_output(pipeline, settings)
    only_compatible(client, pipeline)
    assert register_output(pipeline, settings) == first
    read = protobuf_reader(registry.url)
    expected = {"user1": "ann", "user2": "bob", "ts": 5, "analytics": ROW["left.payload"], "metrics": {"packets": "1"}}
    assert read(value(first)) == expected
    grown = REPORT.replace("int64 packets = 2;", "int64 packets = 2; string more = 3;")
    if has_file:
        pipeline = replace(pipeline, right=replace(pipeline.right, schema=grown))
    else:
        registry.register(subject_of(protobuf.right), "PROTOBUF", grown)
    second = register_output(pipeline, settings)
    assert (
        client.get_versions(subject_of(pipeline.output_topic)) == [1, 2]
        and read(value(first)) == read(value(second)) == expected
    )
    more = read(value(second, **{"right.payload": '{"more":"x","packets":"1"}'}))
    assert more["metrics"] == {"packets": "1", "more": "x"}


def test_sides_whose_schema_is_not_there_or_of_another_kind_are_named(registry, avro):
    settings = {"url": registry.url}
    with pytest.raises(
        NeedsOperator, match=rf"payloads of {avro.left.topic} under .*-value, which is not there: register it"
    ):
        register_output(avro, settings)
    registry.register(subject_of(avro.left), "PROTOBUF", REPORT)
    with pytest.raises(NeedsOperator, match=r"which is PROTOBUF: register it there in avro, or set output\.format: json"):
        register_output(avro, settings)


def test_messages_of_one_name_in_both_files_are_refused(registry, protobuf):
    left = replace(CALLS.left, format="protobuf")
    report = Side("other", "metrics", format="protobuf")
    for topic, text in ((left.topic, REPORT.replace("metrics", "analytics")), ("other", REPORT)):
        registry.register(f"{topic}-value", "PROTOBUF", text)
    with pytest.raises(
        NeedsOperator, match=r"no protobuf schema can be made of those of analyticsTopic and other: .*media\."
    ):
        register_output(replace(protobuf, left=left, right=report), {"url": registry.url})


def test_a_registry_that_is_away_is_one_line(avro, monkeypatch):
    monkeypatch.setattr(registry_client, "PATIENCE_S", 0.5)
    with pytest.raises(JobProblem, match=r"the schema registry at http.* cannot be reached") as line:
        register_output(avro, {"url": f"http://127.0.0.1:{free_port()}"})
    assert "\n" not in str(line.value) and not isinstance(line.value, NeedsOperator)


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_the_schema_of_keys_is_registered_once_or_refused(registry, client, avro, form):
    settings, pipeline = {"url": registry.url}, replace(avro, output_key=form, output_topic=f"{avro.output_topic}-{form}")
    subject = f"{pipeline.output_topic}-key"
    first = register_key(pipeline, settings)
    assert (first, client.get_versions(subject)) == (key_schema(pipeline, first.id), [1])
    assert register_key(pipeline, settings) == first and client.get_versions(subject) == [1]
    client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.BACKWARD))
    other = replace(pipeline, key=("user1", "other"))
    with pytest.raises(
        NeedsOperator, match=f"not compatible with version 1 of {subject} in .*; nothing was sent: have the registry accept"
    ) as line:
        register_key(other, settings)
    assert "\n" not in str(line.value) and client.get_versions(subject) == [1]
