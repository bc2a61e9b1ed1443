"""Made-up worlds: two topics whose producers know nothing of each other, and the truth about them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, NamedTuple

import pyarrow as pa
from fastavro import schemaless_writer
from google.protobuf.message_factory import GetMessageClass

from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.registry import RegisteredSchema
from spark_jobs.joining.schema_files import SchemaFile
from spark_jobs.kafka.newest import NewestRecords
from spark_jobs.kafka.records import SCHEMA

NOW = 1_767_225_600_000
MINUTES = 120


class Call(NamedTuple):
    """One call: its users, and when its record is sent (epoch ms)."""

    number: int
    user1: str
    user2: str
    at: int


class Sent(NamedTuple):
    """One record as a producer sends it; `value`: bytes, or what becomes JSON. `timestamp`: the record's."""

    value: Any
    timestamp: int
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


Selection = tuple[tuple[str, tuple[str, ...]], ...]
Write = Callable[[Call, random.Random], Sent]
"""Makes the record of a call."""


@dataclass(frozen=True)
class World:
    """How both sides write their calls, and the truth of it.

    `key`: where the fields of the key are on the left and on the right. `times`: source and format of both sides. `pairing`: the share of calls
    of which both sides are sent; of the others one is. `lag_ms`: how long after the left event the right one is, at most. `skew_ms`: what the right
    clock adds to that. `schemas`: of the registry, by id. `files`: schema files. `others`: records of another kind that each call has, and that pair
    with nothing; `only`: what selects those that pair.
    """

    left: Write
    right: Write
    key: frozenset[tuple[str, str]] = frozenset({("user1", "user1"), ("user2", "user2")})
    times: tuple[tuple[str, str], tuple[str, str]] = (("timestamp", "epoch_ms"), ("timestamp", "epoch_ms"))
    payloads: tuple[str, str] = ("analytics", "metrics")
    formats: tuple[str, str] = ("json", "json")
    key_formats: tuple[str, str] = ("json", "json")
    key_text: tuple[str, ...] = ()
    key_order: str = "as_is"
    pairing: float = 0.95
    lag_ms: int = 4_000
    skew_ms: int = 0
    users: int = 40
    calls: int = 600
    schemas: Mapping[int, RegisteredSchema] = field(default_factory=dict)
    files: tuple[SchemaFile | None, SchemaFile | None] = (None, None)
    others: tuple[Write | None, Write | None] = (None, None)
    only: tuple[Selection, Selection] = ((), ())


class Known:
    """In the place of a registry: schemas by id."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        self.schemas = schemas

    def schema(self, key: int | str) -> RegisteredSchema | None:
        return self.schemas.get(key) if isinstance(key, int) else None


def body(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def records(world: World, seed: int = 1) -> tuple[list[Sent], list[Sent], tuple[float, float]]:
    """The records of both sides in the order of their times, and the share of each that has a partner."""
    rng = random.Random(seed)
    names = [f"u{number:03}" for number in range(world.users)]
    sides: tuple[list[Sent], list[Sent]] = ([], [])
    pairs, unpaired = 0, list[tuple[list[Sent], Sent]]()
    for number in range(world.calls):
        user1, user2 = rng.sample(names, 2)
        at = NOW - MINUTES * 60_000 + rng.randrange(MINUTES * 60_000)
        call = Call(number, user1, user2, at)
        is_pair = rng.random() < world.pairing
        on_left = is_pair or rng.random() < 0.5
        if on_left:
            sides[0].append(world.left(call, rng))
        if is_pair or not on_left:
            sides[1].append(world.right(call._replace(at=at + rng.randrange(world.lag_ms) + world.skew_ms), rng))
        pairs += is_pair
        for side, write in zip(sides, world.others, strict=True):
            if write:
                unpaired.append((side, write(call, rng)))
    truth = pairs / len(sides[0]), pairs / len(sides[1])
    for side, other in unpaired:
        side.append(other)
    first, second = (sorted(side, key=lambda sent: sent.timestamp) for side in sides)
    return first, second, truth


def sample(topic: str, sent: list[Sent], partitions: int = 2) -> NewestRecords:
    """The records as they are read from a topic."""
    if not sent:
        return NewestRecords(topic, SCHEMA.empty_table(), True)
    rows = [
        {
            "topic": topic,
            "partition": number % partitions,
            "offset": number // partitions,
            "record_timestamp": each.timestamp,
            "key": each.key,
            "value": body(each.value),
            "headers": [{"key": name, "value": value} for name, value in each.headers] or None,
            "bad_header": False,
        }
        for number, each in enumerate(sent)
    ]
    return NewestRecords(topic, pa.Table.from_pylist(rows, SCHEMA), True)


# Worlds


def sent(rng: random.Random, call: Call, value: Any, key: bytes | None = None, **headers: str) -> Sent:
    """A record that is sent within a second after the call, by a clock that is right."""
    named = tuple((name, text.encode()) for name, text in headers.items())
    return Sent(value, call.at + rng.randrange(50, 900), key, named)


def rating(rng: random.Random) -> dict[str, Any]:
    return {"rating": round(rng.random() * 5, 2), "comment": "x" * rng.randrange(30)}


def loss(rng: random.Random) -> list[Any]:
    return [{"loss": rng.random()} for _ in range(rng.randrange(1, 4))]


def plain_left(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"user1": call.user1, "user2": call.user2, "timestamp": call.at, "analytics": rating(rng)})


def plain_right(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"user1": call.user1, "user2": call.user2, "timestamp": call.at, "metrics": loss(rng)})


def in_either_order(call: Call, rng: random.Random) -> Sent:
    return plain_right(call if rng.random() < 0.6 else call._replace(user1=call.user2, user2=call.user1), rng)


def other_names(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"from_user": call.user1, "to_user": call.user2, "at": call.at, "metrics": loss(rng)})


def nested_left(call: Call, rng: random.Random) -> Sent:
    parties = {"caller": {"id": call.user1, "kind": "user"}, "callee": {"id": call.user2, "kind": "user"}}
    return sent(rng, call, {"v": 1, "call": parties | {"ended": call.at, "analytics": rating(rng)}})


def nested_right(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"meta": {"who.from": call.user1, "$to": call.user2, "ts": call.at * 1000}, "metrics": loss(rng)})


def keyed(call: Call, rng: random.Random) -> Sent:
    key = json.dumps({"a": call.user1, "b": call.user2}).encode()
    return sent(rng, call, {"timestamp": call.at, "metrics": loss(rng)}, key)


def in_headers(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"timestamp": call.at, "metrics": loss(rng)}, caller=call.user1, callee=call.user2)


def in_seconds(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"user1": call.user1, "user2": call.user2, "t": call.at / 1000, "analytics": rating(rng)})


def sent_late(call: Call, rng: random.Random) -> Sent:
    """With the time of sending, which is nearer to the record's but says nothing of the call."""
    late = call.at + rng.randrange(60_000)
    users = {"user1": call.user1, "user2": call.user2}
    return Sent(users | {"sent": late, "ended": call.at, "analytics": rating(rng)}, late + 3)


def in_iso(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"user1": call.user1, "user2": call.user2, "when": iso(call.at), "metrics": loss(rng)})


def with_decoys(side: Write) -> Write:
    """Fields that both sides have, with the same values, and that say nothing of the pair."""

    def write(call: Call, rng: random.Random) -> Sent:
        made = side(call, rng)
        decoys = {
            "type": rng.choice(["ended", "dropped"]),
            "ok": rng.random() < 0.9,
            "region": rng.choice(["eu", "us", "ap", "sa"]),
            "version": "1.4.2",
            "operator": f"u{rng.randrange(40):03}",
            "host": f"node-{rng.randrange(12)}",
            "status": rng.choice([200, 404, 500]),
            "duration": rng.randrange(200),
            "retries": rng.randrange(3),
            "event_id": f"{rng.getrandbits(64):x}",
            "signed_up": "2025-03-01T00:00:00Z",
        }
        return made._replace(value=decoys | made.value)

    return write


def counted(side: Write) -> Write:
    """Each side counts its records: the counts are the same, but not of the same calls."""
    number = 0

    def write(call: Call, rng: random.Random) -> Sent:
        nonlocal number
        number += 1
        made = side(call, rng)
        return made._replace(value={"seq": number} | made.value)

    return write


def with_call_id(side: Write, name: str) -> Write:
    def write(call: Call, rng: random.Random) -> Sent:
        made = side(call, rng)
        return made._replace(value={name: f"call-{call.number:x}"} | made.value)

    return write


def with_region(side: Write) -> Write:
    """Of the call, so the same on both sides; but there are few."""

    def write(call: Call, rng: random.Random) -> Sent:
        made = side(call, rng)
        return made._replace(value={"region": ("eu", "us", "ap", "sa")[call.number % 4]} | made.value)

    return write


def other_calls(call: Call, rng: random.Random) -> Sent:
    """The same users, in calls of their own."""
    users = rng.sample([f"u{number:03}" for number in range(40)], 2)
    at = NOW - rng.randrange(MINUTES * 60_000)
    return plain_right(call._replace(user1=users[0], user2=users[1], at=at), rng)


def strangers(call: Call, rng: random.Random) -> Sent:
    return sent(
        rng, call, {"order": f"o{call.number}", "customer": f"c{rng.randrange(40)}", "at": call.at, "sum": rng.random()}
    )


CALL = {"type": "record", "name": "Call", "fields": [
    {"name": "caller", "type": {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}},
    {"name": "callee", "type": "User"},
    {"name": "ended", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "analytics", "type": {"type": "map", "values": "double"}},
]}  # fmt: skip


def in_avro(call: Call, rng: random.Random) -> Sent:
    """By schema 7 of the registry, with numbers in the place of names."""
    made = in_plain_avro(call, rng)
    return made._replace(value=b"\x00" + (7).to_bytes(4, "big") + made.value)


def in_plain_avro(call: Call, rng: random.Random) -> Sent:
    users = [{"id": int(user[1:]) + 5_000} for user in (call.user1, call.user2)]
    to = BytesIO()
    fields = {"caller": users[0], "callee": users[1], "ended": call.at * 1000 + 7, "analytics": {"mos": rng.random()}}
    schemaless_writer(to, CALL, fields)
    return sent(rng, call, to.getvalue())


REPORT = """syntax = "proto3";
package media;
message Loss { double share = 1; int64 packets = 2; string codec = 3; }
message Report { string from = 1; string to = 2; int64 at = 3; Loss metrics = 4; }
"""
_REPORT = GetMessageClass(compile_source(REPORT, {}).message_named("media.Report"))


def in_plain_protobuf(call: Call, rng: random.Random) -> Sent:
    one, other = (str(int(user[1:]) + 5_000) for user in (call.user1, call.user2))
    metrics = {"share": rng.random(), "packets": rng.randrange(9_000), "codec": "opus"}
    return sent(rng, call, _REPORT(**{"from": one, "to": other, "at": call.at, "metrics": metrics}).SerializeToString())


USERS = {"type": "record", "name": "Users", "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "string"}]}


def keyed_in_avro(call: Call, rng: random.Random) -> Sent:
    """The key by schema 8 of the registry, the value as JSON behind a frame with schema 9."""
    to = BytesIO()
    schemaless_writer(to, USERS, {"a": call.user1, "b": call.user2})
    value = json.dumps({"timestamp": call.at, "metrics": loss(rng)}).encode()
    return sent(rng, call, b"\x00\x00\x00\x00\x09" + value, b"\x00\x00\x00\x00\x08" + to.getvalue())


def by_number(call: Call, rng: random.Random) -> Sent:
    users = [str(int(user[1:]) + 5_000) for user in (call.user1, call.user2)]
    return sent(rng, call, {"from": users[0], "to": users[1], "timestamp": call.at, "metrics": loss(rng)})


def shouting(call: Call, rng: random.Random) -> Sent:
    return plain_right(call._replace(user1=call.user1.upper(), user2=f"{call.user2.upper()} "), rng)


def in_a_log(call: Call, rng: random.Random) -> Sent:
    when = datetime.fromtimestamp(call.at / 1000, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return sent(rng, call, {"user1": call.user1, "user2": call.user2, "when": when, "metrics": loss(rng)})


def ended(call: Call, rng: random.Random) -> Sent:
    made = plain_left(call, rng)
    return made._replace(value={"type": "call_ended"} | made.value)


def begun(call: Call, rng: random.Random) -> Sent:
    """Another kind of event, with another payload, of the same users half an hour before."""
    began = call._replace(at=call.at - rng.randrange(1_200_000, 2_400_000))
    users = {"user1": call.user1, "user2": call.user2}
    kind = rng.choice(["call_begun", "call_rung"])
    return sent(rng, began, users | {"type": kind, "timestamp": began.at, "device": {"name": "x" * 40, "os": "y"}})


def joined(call: Call, rng: random.Random) -> Sent:
    return sent(rng, call, {"pair": f"{call.user1}:{call.user2}", "timestamp": call.at, "analytics": rating(rng)})


_MS = ("timestamp", "epoch_ms")
WORLDS = {
    "plain names": World(plain_left, plain_right),
    "different names": World(
        plain_left,
        other_names,
        frozenset({("user1", "from_user"), ("user2", "to_user")}),
        (_MS, ("at", "epoch_ms")),
    ),
    "nested paths": World(
        nested_left,
        nested_right,
        frozenset({("call.caller.id", r"meta.who\.from"), ("call.callee.id", "meta.$to")}),
        (("call.ended", "epoch_ms"), ("meta.ts", "epoch_us")),
        ("call.analytics", "metrics"),
    ),
    "record key": World(plain_left, keyed, frozenset({("user1", "$key.a"), ("user2", "$key.b")})),
    "headers": World(plain_left, in_headers, frozenset({("user1", "$header.caller"), ("user2", "$header.callee")})),
    "seconds and ISO 8601": World(in_seconds, in_iso, times=(("t", "epoch_s"), ("when", "iso8601"))),
    "two times": World(sent_late, plain_right, times=(("ended", "epoch_ms"), _MS)),
    "skewed clocks": World(plain_left, plain_right, skew_ms=120_000),
    "skewed back": World(plain_left, plain_right, skew_ms=-120_000),
    "Avro": World(
        in_avro,
        by_number,
        frozenset({("caller.id", "from"), ("callee.id", "to")}),
        (("ended", "epoch_us"), _MS),
        formats=("avro", "json"),
        key_text=("integers",),
        schemas={7: RegisteredSchema("AVRO", json.dumps(CALL))},
    ),
    "JSON Schema and Avro keys": World(
        plain_left,
        keyed_in_avro,
        frozenset({("user1", "$key.a"), ("user2", "$key.b")}),
        formats=("json", "json_schema"),
        key_formats=("json", "avro"),
        schemas={8: RegisteredSchema("AVRO", json.dumps(USERS)), 9: RegisteredSchema("JSON", "{}")},
    ),
    "few users, skewed clocks": World(plain_left, plain_right, users=8, calls=2000, lag_ms=20_000, skew_ms=120_000),
    "few values that agree": World(with_region(plain_left), with_region(plain_right), users=12),
    "decoys": World(counted(with_decoys(plain_left)), counted(with_decoys(plain_right)), payloads=("$value", "$value")),
    "noise": World(plain_left, plain_right, pairing=0.3),
    "call id": World(
        with_call_id(plain_left, "call_id"), with_call_id(plain_right, "conversation"), frozenset({("call_id", "conversation")}),
        payloads=("analytics", "metrics"),
    ),
    "upper case": World(plain_left, shouting, key_text=("trim", "lower")),
    "either order": World(plain_left, in_either_order, key_order="any"),
    "times of a log": World(plain_left, in_a_log, times=(_MS, ("when", "%d/%b/%Y:%H:%M:%S %z"))),
    "plain Avro and Protobuf": World(
        in_plain_avro,
        in_plain_protobuf,
        frozenset({("caller.id", "from"), ("callee.id", "to")}),
        (("ended", "epoch_us"), ("at", "epoch_ms")),
        formats=("avro", "protobuf"),
        key_text=("integers",),
        files=(
            SchemaFile("call.avsc", "avro", json.dumps(CALL), None),
            SchemaFile("report.proto", "protobuf", REPORT, "media.Report"),
        ),
    ),
    "kinds of which one pairs": World(
        ended, plain_right, others=(begun, None), only=((("type", ("call_ended",)),), ())
    ),
}  # fmt: skip
APART = {"other calls of the same users": World(plain_left, other_calls), "strangers": World(plain_left, strangers)}
