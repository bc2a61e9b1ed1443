"""Compounds in Protobuf: the schema made of the sides', and what a consumer finds."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.output_schema import OutputSchema, SideSchema
from spark_jobs.formats.proto_output import proto_encoder, proto_schema
from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.registry import RegisteredSchema
from tests.helpers.proto_schemas import EVENT, bodies_of, random_message, random_schema
from tests.helpers.timeline import CALLS

PROTOBUF = replace(
    CALLS,
    output_format="protobuf",
    right=replace(CALLS.right, format="protobuf", key=(("user1", "user_id"), ("user2", "to"))),
)
OTHER_FIRST = EVENT.replace("message Event {", "message Other { string user_id = 1; }\nmessage Event {")


def side(text: str, source: str = "right.payload") -> dict[str, SideSchema]:
    return {source: SideSchema(RegisteredSchema("PROTOBUF", text), 1)}


def registered(pipeline: Any, sides: dict[str, SideSchema], newest: RegisteredSchema | None = None) -> OutputSchema:
    made = proto_schema(pipeline, sides, newest)
    references = tuple((name, sides[source].schema.text) for name, source in made.imports)
    return OutputSchema(258, "PROTOBUF", made.text, references, pipeline.value_fields)


def published(schema: OutputSchema, rows: list[dict[str, Any]]) -> list[Any]:
    columns = {source: pa.array([row.get(source) for row in rows]) for _, source in schema.fields}
    values = proto_encoder(schema)(columns).to_pylist()
    assert values == proto_encoder(schema)(columns).to_pylist()
    assert all(value[:6] == b"\0\0\0\1\2\0" for value in values)
    made = GetMessageClass(compile_source(schema.text, dict(schema.references)).message_at([0]))
    return [made.FromString(value[6:]) for value in values]


def row(**more: Any) -> dict[str, Any]:
    return {"user1": "ann", "user2": "é", "ts": 2**62, "left.payload": None, "right.payload": None} | more


def lines(schema: OutputSchema) -> list[str]:
    return [line.strip() for line in schema.text.splitlines()[3:-1]]


def test_payloads_without_a_schema_are_texts() -> None:
    given = [row(), row(ts=0, **{"left.payload": '{"a":0.10}', "right.payload": '"x"'})]
    empty, full = published(registered(PROTOBUF, {}), given)
    assert MessageToDict(empty) == {"user1": "ann", "user2": "é", "ts": str(2**62)}
    assert MessageToDict(full) == {"user1": "ann", "user2": "é", "analytics": '{"a":0.10}', "metrics": '"x"'}


@pytest.mark.parametrize("text", [EVENT, OTHER_FIRST])
def test_a_payload_is_the_message_of_its_side_or_a_text_beside_it(text: str) -> None:
    schema = registered(PROTOBUF, side(text))
    assert lines(schema)[-3:] == [
        "optional string analytics = 4;", ".calls.Event.Metrics metrics = 5;", "optional string metrics_json = 6;"
    ]  # fmt: skip
    fits = ['{"loss":0.5,"packets":"9007199254740993","seen":"2024-01-01T00:00:00.001Z","tags":{"a":"1","b":"2"}}', "{}"]
    # Not as it is printed: a field that is gone, another type, a number where a text stands, a sign of zero.
    others = ['{"gone":1}', '{"packets":"x"}', '{"packets":1}', "[]", '{"loss":-0}x']
    found = published(schema, [row(**{"right.payload": each}) for each in [*fits, *others]])
    assert [each.HasField("metrics") for each in found] == [True] * 2 + [False] * 5
    assert found[0].metrics.packets == 2**53 + 1 and dict(found[0].metrics.tags) == {"a": "1", "b": "2"}
    assert [each.metrics_json for each in found] == ["", "", *others]


@pytest.mark.parametrize(
    ("payload_from", "kind"),
    [
        ("metrics", ".calls.Event.Metrics"),
        ("$value", ".calls.Event"),
        ("metrics.packets", "optional string"),
        ("more", "optional string"),
        ("sent_at", "optional string"),
        ("none", "optional string"),
        ("$key", "optional string"),
    ],
)
def test_the_payload_may_be_anywhere(payload_from: str, kind: str) -> None:
    pipeline = replace(PROTOBUF, right=replace(PROTOBUF.right, payload_from=payload_from))
    assert f"{kind} metrics = 5;" in lines(registered(pipeline, side(EVENT)))


def test_a_field_keeps_its_number_and_no_other_gets_it() -> None:
    first = registered(PROTOBUF, side(EVENT))
    newest = RegisteredSchema("PROTOBUF", first.text, first.references)
    assert registered(PROTOBUF, side(EVENT), newest) == first
    more = replace(PROTOBUF, left=replace(PROTOBUF.left, payload="stats"))
    second = registered(more, side(EVENT), newest)
    assert lines(second)[1:] == [
        "reserved 4;", "string user1 = 1;", "string user2 = 2;", "int64 ts = 3;", "optional string stats = 7;",
        ".calls.Event.Metrics metrics = 5;", "optional string metrics_json = 6;",
    ]  # fmt: skip
    third = registered(PROTOBUF, side(EVENT), RegisteredSchema("PROTOBUF", second.text, second.references))
    assert lines(third)[1] == "reserved 4, 7;" and "optional string analytics = 8;" in lines(third)


def test_a_message_of_somebody_else_under_the_subject_gives_no_numbers() -> None:
    foreign = RegisteredSchema("PROTOBUF", 'syntax = "proto3";\nmessage Compound { string ts = 1; }')
    assert registered(PROTOBUF, {}, foreign) == registered(PROTOBUF, {}, RegisteredSchema("AVRO", '"string"'))
    assert registered(PROTOBUF, {}, foreign) == registered(PROTOBUF, {})


def test_both_sides_may_have_one_file() -> None:
    left = replace(PROTOBUF.left, format="protobuf", key=PROTOBUF.right.key, payload_from="metrics")
    schema = registered(replace(PROTOBUF, left=left), {**side(EVENT, "left.payload"), **side(EVENT)})
    (found,) = published(schema, [row(**{"left.payload": '{"packets":"1"}', "right.payload": '{"packets":"2"}'})])
    assert (found.analytics.packets, found.metrics.packets, len(schema.references)) == (1, 2, 1)


def test_a_schema_that_cannot_be_used_is_named() -> None:
    with pytest.raises(NeedsOperator, match="payloads of metricsTopic cannot be published by the newest schema of"):
        registered(PROTOBUF, side("message {"))


def test_random_messages_of_random_schemas_come_back() -> None:
    pipeline = replace(
        PROTOBUF, right=replace(PROTOBUF.right, payload_from="$value", key=(("user1", "$key"), ("user2", "$header.x")))
    )
    for seed in range(3):
        random = Random(f"published {seed}")
        text = random_schema(random, "proto3")
        bodies = bodies_of(text)
        contents = [random_message(random, bodies._class()).SerializeToString(deterministic=True) for _ in range(20)]
        texts = [bodies._text(content) for content in contents]
        found = published(registered(pipeline, side(text)), [row(**{"right.payload": each}) for each in texts if each])
        # A NaN has many forms, and a text one.
        assert [bodies._text(each.metrics.SerializeToString()) for each in found] == [each for each in texts if each]
        assert not any(each.metrics_json for each in found)
