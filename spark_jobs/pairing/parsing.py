"""Rules 1, 2 and 8: what one message says, and whether it may take part.

A message is parsed strictly (RFC 8259, one object, UTF-8) by msgspec, which skips over the payload without decoding it, so
its text stays as it came: every digit, escape and space inside. Two things stricter than the letter of JSON, because no
table could hold the result: an unpaired surrogate escape and a nesting deeper than Python's recursion limit are malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from spark_jobs.pairing.reasons import Reason

LARGEST_TS = 2**63 - 1
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
            body = decode(value.decode("utf-8")) if value is not None else None
        except (msgspec.DecodeError, UnicodeError, RecursionError):
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


class ParsedColumns(NamedTuple):
    """`Parsed`, a column each: key fields in order, ts, payload, problem."""

    key: list[pa.Array]
    ts: pa.Array
    payload: pa.Array
    problem: pa.Array


def parse_columns(
    values: Iterable[bytes | None], record_ts: Iterable[int | None], fields: BodyFields, latest_ts: int
) -> ParsedColumns:
    """Parses messages in bulk: aligned values and record timestamps in, aligned Arrow columns out."""
    parse = message_parser(fields, latest_ts)
    keys, ts, payloads, problems = [], [], [], []
    for value, record in zip(values, record_ts, strict=True):
        parsed = parse(value, record)
        keys.append(parsed.key)
        ts.append(parsed.ts)
        payloads.append(parsed.payload)
        problems.append(parsed.problem)
    key_columns = [pa.array([key[rank] for key in keys], pa.string()) for rank in range(len(fields.key))]
    return ParsedColumns(
        key_columns, pa.array(ts, pa.int64()), pa.array(payloads, pa.string()), pa.array(problems, pa.string())
    )
