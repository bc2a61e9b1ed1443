"""Records of several schemas at once, as what they say; each schema's own decoding is tested beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO

import numpy as np
import pyarrow as pa
import pytest
from fastavro import schemaless_writer

from include.config.pipeline import Side
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats import decoding
from spark_jobs.formats.decoding import check_schema_files, event_parser
from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.registry import RegisteredSchema
from spark_jobs.rules.parsed_columns import HEADERS, Columns, parse_columns
from tests.helpers.timeline import CALLS

CALL = {"type": "record", "name": "Call", "fields": [{"name": "user1", "type": "string"}, {"name": "user2", "type": "string"},
        {"name": "timestamp", "type": "long"}, {"name": "analytics", "type": "int"}]}  # fmt: skip
# The time is in another unit, and there is another field in front.
NEWER = {"type": "record", "name": "Call", "fields": [{"name": "new", "type": "string"}, *CALL["fields"][:2],
         {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}}, CALL["fields"][3]]}  # fmt: skip
USERS = 'syntax = "proto3"; message Users { string first_user = 1; string second_user = 2; }'
SIDE = Side("calls", "analytics", format="avro")


class Known:
    """In the place of a registry: schemas by id, and how often each was asked for."""

    def __init__(self, **schemas):
        self.schemas = {int(key[1:]): schema for key, schema in schemas.items()}
        self.asked = []

    def schema(self, key):
        self.asked.append(key)
        return self.schemas.get(key)


def avro(schema):
    return RegisteredSchema("AVRO", json.dumps(schema))


def framed(key, body):
    return b"\x00" + key.to_bytes(4, "big") + body


def written(schema, **fields):
    to = BytesIO()
    schemaless_writer(to, schema, {"user1": "ann", "user2": "bob", "timestamp": 5, "analytics": 7} | fields)
    return to.getvalue()


def columns(values, keys=None, headers=None):
    count = len(values)
    return Columns(
        pa.array(values, pa.binary()),
        pa.array([9] * count, pa.int64()),
        pa.array(keys or [None] * count, pa.binary()),
        pa.array(headers or [None] * count, HEADERS),
    )


def read(side, registry, *records, **more):
    parsed = event_parser(replace(CALLS, left=side), side, 2_000, registry)(columns(*records, **more))
    keys = zip(*(key.to_pylist() for key in parsed.key), strict=True)
    return list(zip(keys, *(each.to_pylist() for each in parsed[1:]), strict=True))


GOOD = (("ann", "bob"), 5, "7", None)


def lacking(problem):
    return ((None, None), None, None, problem)


def test_several_schemas_in_one_piece():
    registry = Known(_1=avro(CALL), _2=avro(NEWER), _4=RegisteredSchema("JSON", "{}"))
    body = json.dumps({"user1": "ann", "user2": "bob", "timestamp": 5, "analytics": 7}).encode()
    records = [
        (framed(1, written(CALL)), GOOD),
        (framed(2, written(NEWER, new="x", timestamp=6_999)), (("ann", "bob"), 6, "7", None)),
        (framed(3, written(CALL)), lacking("unknown_schema")),
        (framed(4, body), GOOD),
        (framed(4, b"{"), lacking("malformed_json")),
        (framed(1, written(CALL)[:-1]), lacking("undecodable")),
        (framed(1, written(CALL, user1="")), ((None, "bob"), 5, "7", "missing_key")),
        (framed(1, written(CALL, timestamp=-1)), (("ann", "bob"), None, "7", "bad_timestamp")),
        (framed(1, written(CALL, timestamp=3_000)), (("ann", "bob"), 3_000, "7", "future")),
        (None, lacking("undecodable")),
        (b"", lacking("undecodable")),
        (written(CALL), lacking("undecodable")),
    ]
    order = np.random.default_rng(5).permutation(len(records))
    found = read(SIDE, registry, [records[row][0] for row in order])
    assert found == [records[row][1] for row in order]
    assert sorted(registry.asked) == [1, 2, 3, 4], "each once"


def test_a_schema_that_cannot_be_used_costs_only_its_records(capsys):
    registry = Known(_1=avro({"type": "nothing"}), _2=avro(CALL), _3=RegisteredSchema("PROTOBUF", "messag A {}"))
    found = read(SIDE, registry, [framed(1, b"x"), framed(2, written(CALL)), framed(3, b"\x00x")])
    assert found == [lacking("undecodable"), GOOD, lacking("undecodable")]
    assert "warning: records of schema 1 of the registry are rejected" in capsys.readouterr().err


def test_nothing_at_all():
    assert read(SIDE, Known(), []) == []


def test_only_is_asked_of_decoded_values():
    side = replace(SIDE, only=(("analytics", ("7",)), ("$header.kind", ("end",))))
    ends, begins = [{"key": "kind", "value": b"end"}], [{"key": "kind", "value": b"begin"}]
    values = [
        framed(1, written(CALL)),
        framed(1, written(CALL, analytics=8)),
        framed(1, written(CALL)),
        framed(2, b""),
        framed(2, b""),
    ]
    found = read(side, Known(_1=avro(CALL)), values, headers=[ends, ends, begins, begins, ends])
    assert found == [GOOD, lacking("filtered"), lacking("filtered"), lacking("filtered"), lacking("unknown_schema")]


def test_a_schema_file():
    side = replace(SIDE, schema=json.dumps(NEWER))
    assert read(side, None, [written(NEWER, new="", timestamp=5_999), b"\x00", None]) == [
        GOOD,
        lacking("undecodable"),
        lacking("undecodable"),
    ]
    message = 'syntax = "proto3"; package a; message Call { string user1 = 1; string user2 = 2; sint64 timestamp = 3; int64 analytics = 4; }'
    side = replace(SIDE, format="protobuf", schema=message, message="a.Call")
    assert read(side, None, [b"\x0a\x03ann\x12\x03bob\x18\x0a\x20\x07", b"\x0a"]) == [
        (("ann", "bob"), 5, '"7"', None),
        lacking("undecodable"),
    ]


@pytest.mark.parametrize(
    ("form", "schema", "message"), [("avro", "{", None), ("protobuf", "mess", "A"), ("protobuf", USERS, "Nobody")]
)
def test_a_schema_file_that_cannot_be_used(form, schema, message):
    with pytest.raises(NeedsOperator, match="the schema file of calls cannot be used: ") as refused:
        read(replace(SIDE, format=form, schema=schema, message=message), None, [])
    assert "\n" not in str(refused.value)


def test_keys_have_schemas_of_their_own():
    side = replace(
        SIDE, format="json", key_format="protobuf", key=(("user1", "$key.first_user"), ("user2", "$key.secondUser"))
    )
    registry = Known(_1=RegisteredSchema("PROTOBUF", USERS), _2=avro({"type": "record", "name": "K", "fields": [
        {"name": "first_user", "type": "string"}, {"name": "secondUser", "type": "string"}]}))  # fmt: skip
    body = b'{"timestamp":5,"analytics":7}'
    # Also with schemas of two kinds, whose names of fields differ in their texts.
    keys = [
        framed(1, b"\x00\x0a\x03ann\x12\x03bob"),
        framed(2, b"\x06ann\x06bob"),
        framed(3, b""),
        None,
        framed(1, b"\x00\x0a"),
        framed(3, b""),
    ]
    found = read(side, registry, [body, body, body, body, body, b"{"], keys=keys)
    without = ((None, None), 5, "7")
    expected = [
        GOOD,
        GOOD,
        (*without, "unknown_schema"),
        (*without, "missing_key"),
        (*without, "missing_key"),
        lacking("unknown_schema"),
    ]
    assert found == expected


def test_a_format_with_ids_needs_a_registry():
    with pytest.raises(
        NeedsOperator, match="format avro needs a schema registry: set the connection schema_registry_default"
    ):
        read(SIDE, None, [])


def test_the_whole_value_as_payload():
    side = replace(SIDE, payload_from="$value")
    assert (
        read(side, Known(_1=avro(CALL)), [framed(1, written(CALL))])[0][2]
        == '{"user1":"ann","user2":"bob","timestamp":5,"analytics":7}'
    )


def test_an_id_in_a_header():
    value, at = written(CALL), [{"key": "__value_schema_id", "value": framed(1, b"")}]
    assert read(SIDE, Known(_1=avro(CALL)), [value, value], headers=[at, None]) == [GOOD, lacking("undecodable")]


def test_of_a_key_of_an_unknown_schema_nobody_knows_whether_it_is_selected():
    side = replace(SIDE, format="json", key_format="avro", key=(("user1", "$key.a"),), only=(("$key.kind", ("end",)),))
    body = b'{"user2":"bob","timestamp":5,"analytics":7}'
    found = read(side, Known(), [body, body], keys=[framed(3, b"x"), None])
    assert [row[3] for row in found] == ["unknown_schema", "filtered"]


def test_ids_that_producers_make_up_cost_one_group(monkeypatch):
    pieces = []
    monkeypatch.setattr(
        decoding, "parse_columns", lambda records, *_: pieces.append(len(records.value)) or parse_columns(records, *_)
    )
    values = [framed(number, b"x") for number in range(2, 5_002)]
    found = read(SIDE, Known(_1=avro(CALL)), [*values, framed(1, written(CALL)), b""])
    assert found == [*[lacking("unknown_schema")] * 5_000, GOOD, lacking("undecodable")]
    assert sorted(pieces) == [1, 1, 5_000]


def test_paths_of_messages_that_producers_make_up_compile_nothing(monkeypatch, capsys):
    compiled = []
    monkeypatch.setattr(decoding, "compile_source", lambda *given: compiled.append(given) or compile_source(*given))
    side = replace(SIDE, key=(("user1", "first_user"), ("user2", "second_user")), timestamp="$timestamp")
    body = b"\x0a\x03ann\x12\x03bob"
    values = [framed(1, bytes([2, 2 * path]) + body) for path in range(1, 60)] + [
        framed(1, b"\x00" + body),
        framed(1, b"\x02\x00" + body),
    ]
    found = read(side, Known(_1=RegisteredSchema("PROTOBUF", USERS)), values)
    assert [row[3] for row in found] == [*["undecodable"] * 59, None, None]
    assert len(compiled) == 1 and capsys.readouterr().err.count("warning") == 1


def test_schema_files_are_checked_before_anything_is_planned(monkeypatch):
    wrong = replace(CALLS, left=replace(SIDE, format="protobuf", schema=USERS, message="Nobody"))
    with pytest.raises(NeedsOperator, match=r"the schema file of calls cannot be used: .* no message 'Nobody'"):
        check_schema_files(wrong)
    monkeypatch.delenv("PAIRING_SCHEMA_REGISTRY", raising=False)
    with pytest.raises(NeedsOperator, match="PAIRING_SCHEMA_REGISTRY is not set"):
        check_schema_files(replace(CALLS, left=SIDE))
    with pytest.raises(NeedsOperator, match="PAIRING_SCHEMA_REGISTRY is not set"):
        check_schema_files(replace(CALLS, output_key="avro"))
    with pytest.raises(NeedsOperator, match="is not set: create the connection schema_registry_default"):
        check_schema_files(replace(CALLS, output_format="avro"))
    check_schema_files(CALLS)


def test_names_of_a_schema_lead_to_key_time_payload_and_only():
    """Its JSON has other names: `first_user` is `firstUser` there."""
    text = (
        'syntax = "proto3"; message A { B the_call = 1; } message C { int32 x_y = 1; } '
        "message B { string first_user = 1; string of_kind = 2; int64 ended_at = 3; C all_of = 4; }"
    )
    key = (("user1", "the_call.first_user"), ("user2", "the_call.of_kind"))
    side = replace(SIDE, format="protobuf", schema=text, message="A", key=key, timestamp="the_call.ended_at")
    side = replace(side, payload_from="the_call.all_of", only=(("the_call.all_of.x_y", ("1",)),))
    one, other = (b"\x0a\x0f\x0a\x03ann\x12\x02ok\x18\x05\x22\x02\x08" + number for number in (b"\x01", b"\x02"))
    assert read(side, None, [one, other]) == [(("ann", "ok"), 5, '{"xY":1}', None), lacking("filtered")]


def without(schema, name):
    return schema | {"fields": [field for field in schema["fields"] if field["name"] != name]}


PARTY = {"type": "record", "name": "Party", "fields": [{"name": "id", "type": "string"}]}
MACHINE = {"type": "record", "name": "Machine", "fields": [{"name": "number", "type": "int"}]}
OF_PARTY = replace(SIDE, key=(("user1", "party.id"),))


def test_a_schema_that_lacks_a_field_of_the_key_or_the_time():
    registry = Known(_1=avro(without(CALL, "user2")), _2=avro(without(CALL, "timestamp")), _3=RegisteredSchema(
        "PROTOBUF", 'syntax = "proto3"; message C { string user1 = 1; int64 timestamp = 3; int32 analytics = 4; }'))  # fmt: skip
    body = b"\x00\x0a\x03ann\x12\x03bob\x18\x05\x20\x07"
    found = read(
        SIDE,
        registry,
        [framed(1, written(without(CALL, "user2"))), framed(2, written(without(CALL, "timestamp"))), framed(3, body)],
    )
    # Without its time an event has that of its record.
    lacks_user2 = (("ann", None), 5, "7", "missing_key")
    assert found == [lacks_user2, (("ann", "bob"), 9, "7", None), lacks_user2]


@pytest.mark.parametrize("is_file", [False, True])
def test_a_path_into_a_list(is_file):
    several = CALL | {"fields": [*CALL["fields"][1:], {"name": "party", "type": {"type": "array", "items": PARTY}}]}
    proto = (
        'syntax = "proto3"; message C { repeated P party = 1; string user2 = 2; int64 timestamp = 3; int32 analytics = 4; '
        "message P { string id = 1; } }"
    )
    bodies = written(several, party=[{"id": "ann"}]), b"\x0a\x05\x0a\x03ann\x12\x03bob\x18\x05\x20\x07"
    lacks_user1 = ((None, "bob"), 5, "7", "missing_key")
    if is_file:
        of_avro = replace(OF_PARTY, schema=json.dumps(several))
        of_proto = replace(OF_PARTY, format="protobuf", schema=proto, message="C")
        found = [read(of_avro, None, [bodies[0]])[0], read(of_proto, None, [bodies[1]])[0]]
    else:
        registry = Known(_1=avro(several), _2=RegisteredSchema("PROTOBUF", proto))
        found = read(OF_PARTY, registry, [framed(1, bodies[0]), framed(2, b"\x00" + bodies[1])])
    assert found == [lacks_user1] * 2
    in_list = replace(SIDE, key=(("user1", "party.id"),), timestamp="party.id", payload_from="party")
    assert read(in_list, Known(_1=avro(several)), [framed(1, bodies[0])]) == [
        ((None, "bob"), 9, '[{"id":"ann"}]', "missing_key")
    ]


def test_a_union_whose_branch_differs_from_record_to_record():
    either = CALL | {"fields": [*CALL["fields"][1:], {"name": "party", "type": ["null", MACHINE, PARTY, "string"]}]}
    registry, parties = Known(_1=avro(either)), [{"id": "ann"}, {"number": 7}, None, "ann", {"id": "ann"}]
    found = read(OF_PARTY, registry, [framed(1, written(either, party=party)) for party in parties])
    lacks_user1 = ((None, "bob"), 5, "7", "missing_key")
    assert found == [GOOD, lacks_user1, lacks_user1, lacks_user1, GOOD]
    cut = [framed(1, written(either, party=None)[:-1]), framed(1, written(either, party=None)[:-1] + b"\x08")]
    assert read(OF_PARTY, registry, cut) == [lacking("undecodable")] * 2


def test_a_protobuf_message_of_another_type_has_no_key_or_is_none():
    schema = 'syntax = "proto3"; message C { string user1 = 1; string user2 = 2; int64 timestamp = 3; int32 analytics = 4; }'
    registry = Known(_1=RegisteredSchema("PROTOBUF", f"{schema} message Other {{ double user1 = 1; bytes data = 9; }}"))
    # By the frame another message; and by the frame the right one, but the bytes of another.
    found = read(SIDE, registry, [framed(1, b"\x02\x02\x09" + bytes(7) + b"\x40"), framed(1, b"\x00\x08\x07\x4a\x01x")])
    assert found == [((None, None), 9, None, "missing_key")] * 2


def test_a_key_that_is_not_utf_8_costs_its_record_alone():
    side = replace(SIDE, format="json", key_format="avro", key=(("user1", "$key.user"),))
    key = {"type": "record", "name": "K", "fields": [{"name": "user", "type": "string"}]}
    registry = Known(_1=avro(key), _2=RegisteredSchema("PROTOBUF", 'syntax = "proto3"; message K { string user = 1; }'))
    body = b'{"user2":"bob","timestamp":5,"analytics":7}'
    keys = [
        framed(1, b"\x02\xff"),
        framed(2, b"\x00\x0a\x01\xff"),
        b"\xff\xfe",
        framed(1, b"\x06ann"),
        framed(2, b"\x00\x0a\x03ann"),
    ]
    lacks_user1 = ((None, "bob"), 5, "7", "missing_key")
    assert read(side, registry, [body] * 5, keys=keys) == [lacks_user1, lacks_user1, lacks_user1, GOOD, GOOD]
