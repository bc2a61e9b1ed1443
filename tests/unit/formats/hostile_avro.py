"""Run by test_avro.py in a process of its own: hostile bodies, with a limit of memory and of time for each."""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator

import pyarrow as pa

from spark_jobs.formats.avro import AvroBodies

# Of address space, beyond what libraries have taken; of time for all bodies of a schema, which are some ten thousand.
MEMORY, SECONDS = 512 * 2**20, 10
RECORD = {"type": "record", "name": "R"}
FIXED = {"type": "fixed", "name": "F", "size": 3}


def varint(number: int) -> bytes:
    bits = (number << 1 ^ number >> 63) & 2**64 - 1
    octets = [bits >> shift & 127 for shift in range(0, max(bits.bit_length(), 1), 7)]
    return bytes(octet | 128 for octet in octets[:-1]) + bytes(octets[-1:])


def record(*types: object) -> dict[str, object]:
    return {**RECORD, "fields": [{"name": f"x{n}", "type": t} for n, t in enumerate(types)]}


def in_bulk_and_alone(kind: object) -> Iterator[object]:
    yield record(kind, "string")
    yield record(kind, FIXED)


def arrays_of(kind: object) -> object:
    return {"type": "array", "items": kind}


def maps_of(kind: object) -> object:
    return {"type": "map", "values": kind}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ITEMS: list[object] = ["long", "boolean", ["null", "double"], "string"]
KINDS = [form(item) for form in (arrays_of, maps_of) for item in ITEMS]
KINDS += [maps_of(maps_of("int")), arrays_of(arrays_of("bytes")), DECIMAL]
# Of which each byte of a body is a long text.
LONG = [{"type": "enum", "name": "E", "symbols": ["a" * 1000, "b" * 1000]}, {**DECIMAL, "precision": 1024, "scale": 1024}]
LONG += [{"type": "record", "name": "L", "fields": [{"name": f"{'n' * 998}{n}", "type": "boolean"} for n in "ab"]}]
LONG += [
    ["null", {"type": "record", "name": "L", "fields": [{"name": f"{'n' * 998}{n}", "type": "null"} for n in "abcdefg"]}]
]
EXPANDING = [form(kind) for form in (arrays_of, maps_of) for kind in LONG]
# Of bodies, in bytes. Only where a byte becomes a long text do so many fill the memory.
SHORT, FILLING = 50_000, 300_000
BEGIN = b"\x04\x04ab\x04cd\x00"
# A schema, and a body of it (or none): its beginnings are hostile, too.
SCHEMAS: list[tuple[object, bytes]] = [
    (record(arrays_of("string"), "string"), BEGIN + b"\x06xyz"),
    (record(arrays_of("string"), FIXED), BEGIN + b"xyz"),
    *((schema, b"") for kind in KINDS + EXPANDING for schema in in_bulk_and_alone(kind)),
    (maps_of("null"), b""),
    (record(["null", "R"]), b""),
    (record(["null", "R"], ["null", "R"]), b""),
    (record(arrays_of("R")), b""),
    (record(maps_of("R"), "int"), b""),
    ([record(arrays_of(["null", "R", "string"])), "int"], b""),
]


def hostile(good: bytes, longest: int) -> Iterator[bytes]:
    """Bodies of up to `longest` bytes."""
    chance = random.Random(5)
    yield from (good[:end] for end in range(len(good)))
    for number in (2**62, 2**63 - 1, -(2**63), -(2**62), -1, -2, 2**31, 2**40, -(2**31), 10**9, 10**6):
        for rest in (b"", b"\x00" * 20, b"\x02" * 20, varint(number) * 3, varint(4) + b"\x02" * 9):
            yield from (start + varint(number) + rest for start in (b"", b"\x00", b"\x02", b"\x04"))
    yield from (byte * longest for byte in (b"\x00", b"\x01", b"\x02", b"\x03", b"\x04", b"\x7f", b"\xff"))
    yield varint(longest * 2 // 3) + b"\xff" * (longest * 2 // 3)
    # Items of one byte, or of two.
    yield from (varint(items) + b"\x00" * (longest - 10) for items in (longest - 1_000, longest // 2 - 1_000))
    yield from (chance.randbytes(chance.randrange(60)) for _ in range(3000))
    yield from (bytes(chance.choices((0, 1, 2, 3, 4, 255), k=chance.randrange(60))) for _ in range(3000))


def main() -> None:
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY,) * 2)
    longest = dict.fromkeys(map(json.dumps, (schema for kind in EXPANDING for schema in in_bulk_and_alone(kind))), FILLING)
    for schema, good in SCHEMAS:
        print(schema, file=sys.stderr)
        begun = time.process_time()
        signal.alarm(3 * SECONDS)
        bodies = AvroBodies(json.dumps(schema))
        column = pa.array(hostile(good, longest.get(json.dumps(schema), SHORT)), pa.binary())
        texts = bodies.to_json(column)
        assert len(texts) == len(column)
        if good:
            assert texts[: len(good)].null_count == len(good), schema
        for text in texts.drop_null().to_pylist():
            json.loads(text)
        took = time.process_time() - begun
        assert took < SECONDS, f"{schema} took {took} s"
    print("survived")


if __name__ == "__main__":
    main()
