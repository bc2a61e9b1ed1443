"""Protobuf schemas and bodies: two written ones, and random ones whose bodies are valid, merged of several, or damaged."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.protobuf import ProtobufBodies

SCALARS = "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes".split()
KEYS = "int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string".split()
WELL_KNOWN = [
    f"google.protobuf.{name}" for name in "Timestamp Duration Empty BoolValue StringValue BytesValue Int64Value".split()
]
WELL_KNOWN += [f"google.protobuf.{name}" for name in "UInt32Value DoubleValue FloatValue".split()]
IMPORTS = "".join(f'import "google/protobuf/{name}.proto";\n' for name in "timestamp duration empty wrappers".split())
HEADS = {"proto2": 'syntax = "proto2";', "proto3": 'syntax = "proto3";', "2023": 'edition = "2023";'}
_NUMBERS = [0, 1, -1, 127, 128, 2**31 - 1, -(2**31), 2**32 - 1, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 1_700_000_000]
_FLOATS = [0.0, -0.0, 1.0, 0.1, -2.5, 1e16, 1e21, 1e22, 1e-5, 1e-6, 1e-7, 5e-324, 1e-42, 1e38, 1.7e308, 123456789.125]
_FLOATS += [float("nan"), float("inf"), float("-inf"), 16777217.0, 3.4028234663852886e38]
_STRINGS = ["", "C:\\x", "x", "é", 'a"b\\c', "\x00\n\x1f\x7f", "\u2028", "😀", "user-17", "a" * 40]
_WORDS = "0 -1 536870912 1e400 inf nan \" '\\xff' é /* // { } [ ] ( map< message enum group extend extensions reserved oneof".split()
_WORDS += "option import public weak required stream [default=1] [packed=true] M0 .M0 google.protobuf.Any max;".split()
_WORDS += ["", "\n", "\0", "service S {}", "M" * 3000]
_BYTES = [b"", b"\x00", b"\xff\xfe", b"abcd", b"{}" * 20]


def random_schema(random: Random, syntax: str) -> str:
    """The text of a schema with the messages M0 (the outermost) to M3 and the enum E; nothing in it is recursive."""
    closed = " option features.enum_type = CLOSED;" if syntax == "2023" and random.random() < 0.5 else ""
    text = f"{HEADS[syntax]}\npackage random;\n{IMPORTS}enum E {{{closed} ZERO = 0; ONE = 1; TWO = 2; LESS = -3; }}\n"
    for index in range(4):
        types = [*SCALARS, *WELL_KNOWN, "E", *(f"M{inner}" for inner in range(index + 1, 4))] + [f"M{index + 1}"] * 4 * (
            index < 3
        )
        text += f"message M{index} {{\n{''.join(_members(random, syntax, types))}}}\n"
    return text


def _members(random: Random, syntax: str, types: list[str]) -> Iterator[str]:
    numbers = iter(random.sample([*range(1, 30), 100, 5000, 10_000], 30))
    for _ in range(random.randint(0, 7)):
        number, kind = next(numbers), random.choice(types)
        name = f"{random.choice(['field', 'the_field', 'aB'])}_{number}"
        roll = random.random()
        if roll < 0.15:
            value = random.choice(
                [other for other in types if not other.startswith("google") and (other != "E" or syntax == "proto3")]
            )
            yield f"  map<{random.choice(KEYS)}, {value}> {name} = {number};\n"
        elif roll < 0.3:
            inside = "".join(f" {random.choice(types)} {name}_{member} = {next(numbers)};" for member in "abc")
            yield f"  oneof {name} {{{inside} }}\n"
        else:
            label = random.choice(
                ["repeated", "" if syntax != "proto2" else "optional", "optional" if syntax != "2023" else ""]
            )
            option = " [features.field_presence = IMPLICIT]" if syntax == "2023" and label == "" and kind in SCALARS else ""
            yield f"  {label} {kind} {name} = {number}{option if random.random() < 0.5 else ''};\n"


def random_message(random: Random, message: Any, density: float = 0.7) -> Any:
    """Fills some fields of the message."""
    for field in message.DESCRIPTOR.fields:
        if random.random() > density:
            continue
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(random.randint(0, 3)):
                if value.message_type is not None:
                    random_message(random, target[_scalar(random, key)])
                else:
                    target[_scalar(random, key)] = _scalar(random, value)
        elif field.message_type is not None:
            for one in [target.add() for _ in range(random.randint(0, 3))] if field.is_repeated else [target]:
                if not field.is_repeated:
                    one.SetInParent()
                random_message(random, one)
        elif field.is_repeated:
            target.extend(_scalar(random, field) for _ in range(random.randint(0, 4)))
        else:
            setattr(message, field.name, _scalar(random, field))
    return message


def _scalar(random: Random, field: Any) -> Any:
    if field.enum_type is not None:
        return random.choice([0, 1, 2, -3, *([] if field.enum_type.is_closed else [7])])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return random.choice(_FLOATS) if random.random() < 0.7 else random.uniform(-1e6, 1e6)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.type == field.TYPE_STRING:
        return random.choice(_STRINGS)
    if field.type == field.TYPE_BYTES:
        return random.choice(_BYTES)
    bits, signed = {
        field.CPPTYPE_INT32: (32, 1), field.CPPTYPE_INT64: (64, 1), field.CPPTYPE_UINT32: (32, 0), field.CPPTYPE_UINT64: (64, 0)
    }[field.cpp_type]  # fmt: skip
    lowest = -(2 ** (bits - 1)) if signed else 0
    return random.choice([number for number in _NUMBERS if lowest <= number < lowest + 2**bits])


def random_bodies(random: Random, descriptor: Any, count: int) -> list[bytes | None]:
    """Bodies of the message type: a third valid, a third of several messages in a row, the rest damaged or made of random fields."""
    cls = GetMessageClass(descriptor)
    bodies: list[bytes | None] = [None]
    while len(bodies) < count:
        parts = [
            random_message(random, cls(), random.random()).SerializePartialToString()
            for _ in range(random.choice([1, 1, 2, 3]))
        ]
        body = b"".join(parts)
        roll = random.random()
        if roll < 0.2 and body:
            body = body[: random.randrange(len(body))]
        elif roll < 0.35 and body:
            changed = bytearray(body)
            changed[random.randrange(len(changed))] = random.choice([0, 1, 2, 0x7F, 0x80, 0xFF, random.randrange(256)])
            body = bytes(changed)
        elif roll < 0.5:
            body = b"".join(_random_field(random, descriptor) for _ in range(random.randint(1, 4)))
        bodies.append(body)
    return bodies


def varint(number: int, width: int = 1) -> bytes:
    """A number on the wire, in at least so many bytes."""
    number %= 2**64
    digits = []
    while number or len(digits) < width:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits[:-1], digits[-1] & 0x7F]) if digits else b"\0"


def _random_field(random: Random, descriptor: Any) -> bytes:
    """A field of the message or an unknown one, of any wire type, sometimes spelled too long."""
    numbers = [field.number for field in descriptor.fields] or [1]
    number, kind = random.choice([*numbers, *numbers, 77]), random.choice([0, 0, 1, 2, 2, 2, 3, 5, random.randrange(8)])
    tag = varint(number << 3 | kind, random.choice([1, 1, 1, 2, 5, 6]))
    if kind == 0:
        return tag + varint(random.choice(_NUMBERS), random.choice([1, 1, 9, 10]))
    if kind in (1, 5):
        return tag + random.randbytes(8 if kind == 1 else 4)
    if kind == 3:
        return tag + varint(8, 1) + varint(5) + varint(number << 3 | 4)
    content = b"".join(varint(random.choice(_NUMBERS)) for _ in range(random.randint(0, 3)))
    inner = [field.message_type for field in descriptor.fields if field.number == number and field.message_type is not None]
    if inner and random.random() < 0.8:
        content = b"".join(_random_field(random, inner[0]) for _ in range(random.randint(0, 3)))
    length = random.choice([len(content)] * 12 + [len(content) + 1, 2**31, 2**64 - 1])
    return tag + varint(length, random.choice([1, 1, 1, 3, 5, 6])) + content


def changed(random: Random, text: str) -> str:
    """The text with some of its words left out, doubled, moved, or replaced."""
    words = text.replace(";", " ; ").replace("{", " { ").replace("}", " } ").split(" ")
    for _ in range(random.randint(0, 3)):
        at = random.randrange(len(words))
        roll = random.random()
        if roll < 0.3:
            other = random.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif roll < 0.5:
            del words[at]
        elif roll < 0.7:
            words[at:at] = words[at : at + random.randint(1, 20)] * random.choice([1, 1, 1, 50])
        else:
            words[at] = random.choice(_WORDS)
    return " ".join(words)


EVENT = """syntax = "proto3";
package calls;
import "google/protobuf/timestamp.proto";
message Event {
  string user_id = 1; string peer = 2 [json_name = "to"]; google.protobuf.Timestamp sent_at = 3;
  message Metrics { double loss = 1; int64 packets = 2; map<string, string> tags = 3; google.protobuf.Timestamp seen = 4; }
  Metrics metrics = 4; repeated Metrics more = 5; optional int32 port = 6; oneof how { string video = 7; bytes audio = 8; }
}
"""
# Left to Protobuf, one message after the other.
BY_ONE = """syntax = "proto2";
package calls;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/field_mask.proto";
message Event {
  optional string user = 1; optional Event inner = 2; optional google.protobuf.Any any = 3; optional google.protobuf.Struct free = 4;
  optional google.protobuf.FieldMask mask = 5; optional group Old = 6 { optional int32 x = 1; } extensions 100 to 200;
  optional google.protobuf.Value value = 7;
}
extend Event { optional double extra = 100; }
"""


def bodies_of(source: str, wanted: Any = None) -> ProtobufBodies:
    """Of the first message of a schema without imports of its own."""
    return ProtobufBodies(compile_source(source, {}).message_at([0]), wanted)


def is_in_bulk(bodies: ProtobufBodies) -> bool:
    """Whether the bodies are rendered in bulk."""
    return bodies._columns is not None


def texts(bodies: ProtobufBodies, contents: list[bytes | None]) -> list[str | None]:
    """The texts of all contents together."""
    found: list[str | None] = bodies.to_json(pa.array(contents, pa.binary())).to_pylist()
    return found


def body(source: str, content: dict[str, Any]) -> bytes:
    """The body of the first message with this content, in Protobuf's JSON mapping."""
    message = compile_source(source, {}).message_at([0])
    return bytes(ParseDict(content, GetMessageClass(message)(), descriptor_pool=message.file.pool).SerializeToString())
