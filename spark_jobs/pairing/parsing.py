"""Rules 1, 2 and 8: what one message says, and whether it may take part.

A message is parsed strictly (RFC 8259, one object, UTF-8) by msgspec, which skips over the payload without decoding it, so
its text stays as it came: every digit, escape and space inside. Two things are stricter than the letter of JSON: an unpaired
surrogate escape is malformed, because no table could hold the string it stands for, and so is a nesting deeper than `DEEPEST`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from spark_jobs.pairing.reasons import Reason

LARGEST_TS = 2**63 - 1
# Levels of nesting, the message's own braces counted. Python gives up somewhere below 1,000, depending on who calls: a limit of
# our own makes the verdict the same everywhere.
DEEPEST = 500
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS = np.zeros(256, dtype=np.int64)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_ABSENT = (b"", b"null")


class BodyFields(NamedTuple):
    """Names of the body's fields: the key fields in order, the timestamp, the payload."""

    key: tuple[str, ...]
    timestamp: str
    payload: str


class Parsed(NamedTuple):
    """One message, parsed. `key` holds None for a field that is missing; `problem` None means accepted."""

    key: tuple[str | None, ...]
    ts: int | None
    payload: str | None
    problem: Reason | None


def message_parser(fields: BodyFields, latest_ts: int) -> Callable[[bytes | None, int | None], Parsed]:
    """A function (value, record timestamp in ms) -> Parsed. `latest_ts` = W + max_future, inclusive.

    >>> parse = message_parser(BodyFields(("user1", "user2"), "timestamp", "metrics"), latest_ts=2_000)
    >>> parse(b'{"user1":"a","user2":"b","timestamp":1500,"metrics":{"loss":0.10}}', 9)
    Parsed(key=('a', 'b'), ts=1500, payload='{"loss":0.10}', problem=None)
    >>> parse(b'{"user1":"a","user2":"b","timestamp":null}', 9)
    Parsed(key=('a', 'b'), ts=9, payload=None, problem=None)
    >>> [parse(value, 9).problem.value for value in (b"{}{}", b"{}", b'{"user1":"a","user2":"b","timestamp":1.5}',
    ...                                              b'{"user1":"a","user2":"b","timestamp":2001}')]
    ['malformed_json', 'missing_key', 'bad_timestamp', 'future']
    """
    width = len(fields.key)
    decode = _body_decoder(fields)
    nothing: tuple[str | None, ...] = (None,) * width

    def parse(value: bytes | None, record_ts: int | None) -> Parsed:
        try:
            # msgspec does not look at the bytes of strings it skips, so the encoding is checked here.
            body = None if value is None or nests_too_deep(value) else decode(value.decode("utf-8"))
        except (msgspec.DecodeError, UnicodeError):
            body = None
        if body is None:
            return Parsed(nothing, None, None, Reason.MALFORMED_JSON)
        raw = [bytes(getattr(body, name)) for name in body.__struct_fields__]
        key = tuple(_non_empty_string(text) for text in raw[:width])
        payload = None if raw[width + 1] in _ABSENT else raw[width + 1].decode("utf-8")
        ts = _timestamp(raw[width], record_ts)
        if None in key:
            return Parsed(key, ts, payload, Reason.MISSING_KEY)
        if ts is None:
            return Parsed(key, ts, payload, Reason.BAD_TIMESTAMP)
        return Parsed(key, ts, payload, Reason.FUTURE if ts > latest_ts else None)

    return parse


def nests_too_deep(value: bytes) -> bool:
    """Whether brackets outside of strings nest deeper than `DEEPEST`, as far as the value is JSON.

    >>> nests_too_deep(b"[" * 500 + b"]" * 500), nests_too_deep(b"[" * 501), nests_too_deep(b'"' + b"[" * 501 + b'"')
    (False, True, False)
    """
    if len(value) <= DEEPEST or value.count(b"[") + value.count(b"{") <= DEEPEST:
        return False
    brackets = np.frombuffer(_STRING.sub(b"", value), dtype=np.uint8)
    return bool(np.cumsum(_STEPS[brackets]).max(initial=0) > DEEPEST)


def _body_decoder(fields: BodyFields) -> Callable[[str], Any]:
    """Decodes a body into a struct of raw JSON texts, the key fields first, then timestamp and payload."""
    attributes = [*(f"key_{rank}" for rank in range(len(fields.key))), "timestamp", "payload"]
    names: Iterable[str] = (*fields.key, fields.timestamp, fields.payload)
    body = msgspec.defstruct(
        "Body",
        [(attribute, msgspec.Raw, msgspec.field(default=msgspec.Raw(b""))) for attribute in attributes],
        rename=dict(zip(attributes, names, strict=True)),
    )
    return msgspec.json.Decoder(body).decode


def _non_empty_string(text: bytes) -> str | None:
    if text[:1] != b'"' or text == b'""':
        return None
    return msgspec.json.decode(text) if b"\\" in text else text[1:-1].decode("utf-8")


def _timestamp(text: bytes, record_ts: int | None) -> int | None:
    """The body's integer literal, quoted or not; the record's timestamp where the body has none; None: unreadable."""
    if text in _ABSENT:
        return record_ts if record_ts is not None and 0 <= record_ts <= LARGEST_TS else None
    if text[:1] == b'"':
        text = (_non_empty_string(text) or "").encode("utf-8")
    if not text.isdigit():
        return None
    digits = text.lstrip(b"0") or b"0"
    if len(digits) > len(str(LARGEST_TS)):
        return None
    ts = int(digits)
    return ts if ts <= LARGEST_TS else None
