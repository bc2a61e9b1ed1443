"""Rules 1, 2 and 8: what one message says, and whether it is accepted.

msgspec parses a message strictly (RFC 8259, one object, UTF-8) and skips the payload without decoding it, so the payload keeps
every digit, escape and space. Two things are stricter than JSON: an unpaired surrogate escape is malformed, because no table
could hold its string, and so is a nesting deeper than `nesting.DEEPEST`. `parsing_in_bulk` parses columns of messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from spark_jobs.rules.reasons import Reason

LARGEST_TS = 2**63 - 1
_ABSENT = (b"", b"null")


class BodyFields(NamedTuple):
    """Names of fields of the body: the key fields in order, the timestamp, the payload."""

    key: tuple[str, ...]
    timestamp: str
    payload: str


class Parsed(NamedTuple):
    """One parsed message. `key` has None for a missing field; `ts` in epoch ms, None if unreadable; `problem` None: accepted."""

    key: tuple[str | None, ...]
    ts: int | None
    payload: str | None
    problem: Reason | None


def message_parser(fields: BodyFields, latest_ts: int) -> Callable[[bytes | None, int | None], Parsed]:
    """Returns a function (value, record timestamp in epoch ms) -> Parsed. `latest_ts` = W + max_future, inclusive.

    A value has to be UTF-8 and must not nest too deep; None stands for any other value.

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
            body = None if value is None else decode(value)
        except msgspec.DecodeError:
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


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8. msgspec does not check the strings that it skips."""
    try:
        text.decode("utf-8")
    except UnicodeError:
        return False
    return True


def _body_decoder(fields: BodyFields) -> Callable[[bytes], Any]:
    """Decodes a body into a struct of raw JSON texts, the key fields first, then timestamp and payload."""
    attributes = [*(f"key_{rank}" for rank in range(len(fields.key))), "timestamp", "payload"]
    names = (*fields.key, fields.timestamp, fields.payload)
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
    """The body's integer, quoted or not; the record's timestamp if the body has none; None: unreadable. Epoch ms."""
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
