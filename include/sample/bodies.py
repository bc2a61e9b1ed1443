"""The bytes of sample events: users, payloads, and every way in which a body can be wrong.

All is built as JSON text, never through a number type, so the truth has a payload digit by digit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import NamedTuple

from include.config.pipeline import Pipeline

GIVEN_NAMES = [
    *("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hana", "ivo", "june", "kai", "lou", "mia", "ned", "ola", "pia"),
    *("quin", "rex", "sue", "tom", "uma", "vic", "wes", "yan", "abe", "bea", "cai", "dot", "eli", "fay", "gil", "hal"),
    *("Zoë", "Łukasz", "Ольга", "美咲", "نور", "🎧", 'O"Neil', "back\\slash", "a space"),
]
# Payloads that careless code would change: each must reach the output unchanged. None: the body lacks the field.
RICH_PAYLOADS: tuple[str | None, ...] = (
    None,
    "null",
    "true",
    "[]",
    "{}",
    '""',
    '"just text"',
    '"42"',
    '"quote \\" backslash \\\\ slash \\/ tab \\t null \\u0000 snow \\u2603 ☃"',
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "123456789012345.678901234567890",
    "0.1000000000000000055511151231257827",
    "1e-7",
    '[1,[2,[3,{"deep":[null,false,"x"]}]]]',
    '{"nested":{"list":[1,2.50,{"none":null}],"ключ":"значение 🎧"}, "spaced" : [ ] }',
    '{"user1":"decoy","user2":"decoy","timestamp":1,"analytics":{"ts":2},"metrics":3}',
)


_SPELLINGS = json.JSONEncoder(ensure_ascii=False).encode, json.JSONEncoder().encode


class Users(NamedTuple):
    """One pair's key: `text` the fields as each side's bodies spell them in JSON, `kafka_key` their joined names."""

    names: tuple[str, ...]
    text: tuple[str, str]
    kafka_key: bytes

    def turned(self, fields: tuple[str, ...]) -> Users:
        """The same with the names in the other order, for a pipeline to which the order says nothing."""
        return users_named(fields, self.names[::-1])


def users_named(fields: tuple[str, ...], names: tuple[str, ...]) -> Users:
    """The left side writes names in UTF-8, the right side with escapes: their events must still be paired."""
    spelt = [
        ",".join([f'"{field}":{spell(name)}' for field, name in zip(fields, names, strict=True)]) for spell in _SPELLINGS
    ]
    return Users(names, (spelt[0], spelt[1]), "-".join(names).encode())


def payload(rng: Random, side: int) -> str | None:
    """The JSON text of a payload, None for a body without one; one in ten is of RICH_PAYLOADS."""
    draw = rng.random()
    if draw < 0.1:
        return RICH_PAYLOADS[int(draw * 10 * len(RICH_PAYLOADS))]
    digits = int(draw * 1_000_000)
    if side == 0:
        return f'{{"device":"phone","setup_ms":{digits % 3_000},"rating":{digits % 50 / 10}}}'
    return f'{{"codec":"opus","rtt_ms":{digits % 400},"loss":{draw:.6f}}}'


def body(pipeline: Pipeline, side: int, users: Users, timestamp: str | None, payload_text: str | None, extra: bool) -> bytes:
    """One event as JSON. `timestamp`: its JSON text, None to leave it out. `extra`: with a field that the pipeline does not use."""
    fields = users.text[side]
    if timestamp is not None:
        fields = f'{fields},"{pipeline.timestamp}":{timestamp}'
    if payload_text is not None:
        fields = f'{fields},"{pipeline.sides[side].payload}":{payload_text}'
    if extra:
        return f' {{ "sample_extra" : {{"{pipeline.key[0]}":"decoy"}} , {fields} }}\n'.encode()
    return f"{{{fields}}}".encode()


class Broken(NamedTuple):
    """A kind of event that must be rejected, and the function that makes its body from the parts of a good one."""

    reason: str
    spell: Callable[[Pipeline, int, Users, int], bytes | None]


def broken_variants() -> Iterator[Broken]:
    """Every kind of unreadable event, each with exactly one fault."""
    for malform in _MALFORMED:
        yield Broken("malformed_json", partial(_malformed, malform))
    for spelling in _BAD_KEYS:
        yield Broken("missing_key", partial(_missing_key, spelling))
    for text in _BAD_TIMESTAMPS:
        yield Broken("bad_timestamp", partial(_bad_timestamp, text))


_MALFORMED: tuple[Callable[[bytes], bytes | None], ...] = (
    lambda good: b"not JSON at all",
    lambda good: good + good,
    lambda good: good + b" and more",
    lambda good: good[:-1] + b',"sample_extra":NaN}',
    lambda good: good.replace(b'{"sample":true}', b"NaN"),
    lambda good: good.replace(b'"', b"'"),
    lambda good: b"[" + good + b"]",
    lambda good: b"null",
    lambda good: good[: len(good) // 2],
    lambda good: good[:-1] + b',"sample_extra":"\xff\xfe"}',
    lambda good: good.replace(b'{"sample":true}', b'"\xff\xfe"'),
    lambda good: b"",
    lambda good: None,
)
_BAD_TIMESTAMPS = (
    "-1",
    "{ts}.5",
    "{ts}.0",
    '"soon"',
    '""',
    '"-{ts}"',
    "true",
    "[{ts}]",
    "9223372036854775808",
    '"99999999999999999999"',
)


# Spellings of one key field; empty: the field is left out.
_BAD_KEYS = ("", '"{field}":""', '"{field}":7', '"{field}":null', '"{field}":["{field}"]')


def _good(pipeline: Pipeline, side: int, users: Users, timestamp: str) -> bytes:
    return body(pipeline, side, users, timestamp, '{"sample":true}', extra=False)


def _malformed(
    malform: Callable[[bytes], bytes | None], pipeline: Pipeline, side: int, users: Users, ts: int
) -> bytes | None:
    return malform(_good(pipeline, side, users, str(ts)))


def _bad_timestamp(text: str, pipeline: Pipeline, side: int, users: Users, ts: int) -> bytes:
    return _good(pipeline, side, users, text.format(ts=ts))


def _missing_key(spelling: str, pipeline: Pipeline, side: int, users: Users, ts: int) -> bytes:
    """The last key field is the bad one."""
    others = [f'"{field}":{json.dumps(name)}' for field, name in zip(pipeline.key[:-1], users.names, strict=False)]
    text = ",".join([*others, *([spelling.format(field=pipeline.key[-1])] if spelling else [])])
    return _good(pipeline, side, users._replace(text=(text, text)), str(ts)).replace(b"{,", b"{")
