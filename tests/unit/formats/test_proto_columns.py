"""Messages rendered in bulk: with the texts that Protobuf prints one by one, and only where that is sure."""

from __future__ import annotations

import json
from random import Random

import pytest
from google.protobuf.json_format import MessageToDict

from spark_jobs.formats.protobuf import ProtobufBodies
from tests.helpers.proto_schemas import BY_ONE, EVENT, HEADS, bodies_of, is_in_bulk, random_bodies, random_schema, texts


@pytest.mark.parametrize("syntax", HEADS)
def test_in_bulk_and_one_by_one_all_bodies_have_the_same_text_in_the_meaning_of_protobuf(syntax: str) -> None:
    for seed in range(8):
        random = Random(f"{syntax} {seed}")
        bodies = bodies_of(random_schema(random, syntax))
        assert is_in_bulk(bodies)
        contents = random_bodies(random, bodies._message, 60)
        one_by_one = [None if content is None else bodies._text(content) for content in contents]
        assert texts(bodies, contents) == one_by_one
        for content, text in zip(contents, one_by_one, strict=True):
            if content is not None and text is not None:
                message = bodies._class.FromString(content)
                assert json.loads(text) == MessageToDict(message, descriptor_pool=bodies._message.file.pool)


def test_of_wanted_fields_in_bulk_and_one_by_one_the_texts_are_the_same() -> None:
    for seed in range(12):
        random = Random(seed)
        whole = bodies_of(random_schema(random, "proto3"))
        names = [field.name for field in whole._message.fields]
        wanted = {
            name: {"field_1": {}, "theField2": {}} if random.random() < 0.3 else {}
            for name in names
            if random.random() < 0.4
        }
        bodies = ProtobufBodies(whole._message, wanted)
        assert is_in_bulk(bodies)
        contents = random_bodies(random, bodies._message, 40)
        assert texts(bodies, contents) == [None if content is None else bodies._text(content) for content in contents]


@pytest.mark.parametrize("fields", ["user", "mask value", "inner", "any", "old"])
def test_schemas_are_rendered_in_bulk_if_what_is_wanted_of_them_can_be(fields: str) -> None:
    assert is_in_bulk(bodies_of(BY_ONE, {field: {} for field in fields.split()})) == (fields == "user")


def test_rows_that_columns_cannot_show_alone_are_printed_by_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, printed = bodies_of(EVENT), []
    text = bodies._text
    monkeypatch.setattr(bodies, "_text", lambda content: printed.append(content) or text(content))
    tag, two_ways = b"\x1a\x06\x0a\x01a\x12\x01b", b"\x3a\x01v\x42\x01\xff"
    odd = [
        (two_ways, '{"audio":"/w=="}'),
        (b"\x22\x10" + tag + tag, '{"metrics":{"tags":{"a":"b"}}}'),
        # An entry with an unknown field is no entry for Protobuf.
        (b"\x22\x07\x1a\x05\x0a\x01a\x18\x01", '{"metrics":{}}'),
        # An unknown group is a field like others.
        (b"\xa3\x06\xa4\x06\x0a\x01x", '{"userId":"x"}'),
    ]
    assert texts(bodies, [b"\x0a\x01y", *(content for content, _ in odd), b""]) == [
        '{"userId":"y"}',
        *(text for _, text in odd),
        "{}",
    ]
    assert sorted(printed) == sorted(content for content, _ in odd)


def test_a_field_that_is_at_too_many_places_and_a_chain_of_messages_that_is_too_long_are_left_to_protobuf() -> None:
    chain = "".join(f"message M{level} {{ M{level + 1} next = 1; }} " for level in range(400))
    assert not is_in_bulk(bodies_of(f'syntax = "proto3"; {chain} message M400 {{}}'))
    wide = "".join(
        f"message M{level} {{ {' '.join(f'M{level + 1} f{n} = {n};' for n in range(1, 11))} }} " for level in range(30)
    )
    assert not is_in_bulk(bodies_of(f'syntax = "proto3"; {wide} message M30 {{}}'))


def test_extensions_and_closed_enums_in_maps_are_left_to_protobuf_where_they_are_wanted() -> None:
    source = """syntax = "proto2"; enum E { ZERO = 0; ONE = 1; } extend A { optional int32 far = 100; }
    message A { optional int32 near = 1; map<string, E> many = 2; extensions 100 to 200; }"""
    content = b"\x08\x01\x12\x05\x0a\x01a\x10\x01\x12\x05\x0a\x01b\x10\x02\xa0\x06\x02"
    for wanted, in_bulk, text in [
        ({}, False, '{"[far]":2,"many":{"a":"ONE"},"near":1}'),
        ({"near": {}, "many": {}}, False, '{"many":{"a":"ONE"},"near":1}'),
        ({"near": {}}, True, '{"near":1}'),
    ]:
        bodies = bodies_of(source, wanted)
        assert (is_in_bulk(bodies), texts(bodies, [content]), bodies._text(content)) == (in_bulk, [text], text)
    extended = 'syntax = "proto2"; message A { optional int32 near = 1; extensions 100 to 200; } extend A { optional int32 far = 100; }'
    assert texts(bodies_of(extended), [content]) == ['{"[far]":2,"near":1}']


def test_an_entry_of_a_map_without_a_message_has_an_empty_one() -> None:
    bodies = bodies_of(
        'syntax = "proto3"; message A { map<string, B> many = 1; } message B { int32 b = 1; optional int32 c = 2; }'
    )
    assert texts(bodies, [b"\x0a\x03\x0a\x01a\x0a\x00"]) == ['{"many":{"":{},"a":{}}}']


def test_what_two_names_of_a_field_want_is_put_together() -> None:
    source = 'syntax = "proto3"; message A { B the_b = 1; } message B { int32 b = 1; int32 c = 2; int32 d = 3; }'
    bodies = bodies_of(source, {"the_b": {"b": {}}, "theB": {"c": {}}})
    assert texts(bodies, [b"\x0a\x06\x08\x01\x10\x02\x18\x03"]) == ['{"theB":{"b":1,"c":2}}']
