"""Rules 1, 2 and 8: what messages say, and whether they are accepted.

msgspec parses a message strictly (RFC 8259, one object, UTF-8) and skips the payload without decoding it, so the payload keeps
every digit, escape and space. Two things are stricter than JSON: an unpaired surrogate escape is malformed, because no table
could hold its string, and so is a nesting deeper than `DEEPEST`.

Columns of messages are parsed ten times as fast where these are plain. A message is plain if its key fields are non-empty strings, its
timestamp is a positive integer or comes from the record, and it is not in the future. msgspec checks that while it decodes, so no further
check is needed. Every other message goes to `message_parser`, the only code that says what is wrong with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.rules.nesting import DEEPEST, nests_too_deep
from spark_jobs.rules.reasons import Reason

LARGEST_TS = 2**63 - 1
_ABSENT = (b"", b"null")
_RAW = (msgspec.Raw, msgspec.Raw(b""))
_NULL = np.frombuffer(b"null", dtype=np.uint8)
_NOT_PLAIN = -1


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
    decode = msgspec.json.Decoder(_body_struct(fields, _RAW, _RAW)).decode

    def parse(value: bytes | None, record_ts: int | None) -> Parsed:
        try:
            body = decode(value or b"")
        except msgspec.DecodeError:
            return Parsed((None,) * len(fields.key), None, None, Reason.MALFORMED_JSON)
        *names, time, content = (bytes(getattr(body, name)) for name in body.__struct_fields__)
        key = tuple(map(_non_empty_string, names))
        payload = None if content in _ABSENT else content.decode("utf-8")
        ts = _timestamp(time, record_ts)
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


def _body_struct(fields: BodyFields, key: tuple[Any, ...], ts: tuple[Any, ...]) -> Any:
    """A struct with the body's key fields, `ts` and `payload`; `key`, `ts`: their type, and their default where they may be absent."""
    attributes: list[Any] = [*((f"key_{rank}", *key) for rank in range(len(fields.key))), ("ts", *ts), ("payload", *_RAW)]
    names = (*fields.key, fields.timestamp, fields.payload)
    rename = {attribute: name for (attribute, *_), name in zip(attributes, names, strict=True)}
    return msgspec.defstruct("Body", attributes, rename=rename, gc=False)


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


class ParsedColumns(NamedTuple):
    """The fields of `Parsed` as columns; `key`: one for each key field, in order."""

    key: list[pa.Array]
    ts: pa.Array
    payload: pa.Array
    problem: pa.Array


def parse_columns(
    values: pa.Array | Iterable[bytes | None], record_ts: pa.Array | Iterable[int | None], fields: BodyFields, latest_ts: int
) -> ParsedColumns:
    """Parses aligned values (binary) and record timestamps (int64, epoch ms) into aligned columns.

    `latest_ts` = W + max_future, inclusive. Raises ValueError if one column is longer than the other.
    """
    column = values if isinstance(values, pa.Array) else pa.array(values, pa.binary())
    records = record_ts if isinstance(record_ts, pa.Array) else pa.array(record_ts, pa.int64())
    if len(column) != len(records):
        raise ValueError(f"{len(column)} messages, but {len(records)} record timestamps")
    texts = _sound(column)
    bodies = _plain_bodies(texts, fields, latest_ts)
    keys = [list(map(attrgetter(f"key_{rank}"), bodies)) for rank in range(len(fields.key))]
    ts = list(map(attrgetter("ts"), bodies))
    payloads = list(map(attrgetter("payload"), bodies))
    moments = pa.array(ts, pa.int64())
    problems: pa.Array = pa.nulls(len(texts), pa.string())
    if unsure := pc.indices_nonzero(pc.less(pc.fill_null(moments, _NOT_PLAIN), 0)).to_pylist():
        reasons: list[str | None] = [None] * len(texts)
        parse = message_parser(fields, latest_ts)
        stamps = records.to_pylist()
        for row in _not_plain(unsure, ts, stamps, latest_ts):
            parsed = parse(texts[row], stamps[row])
            for rank, name in enumerate(parsed.key):
                keys[rank][row] = name
            ts[row], reasons[row] = parsed.ts, parsed.problem
            payloads[row] = b"" if parsed.payload is None else parsed.payload.encode()
        moments, problems = pa.array(ts, pa.int64()), pa.array(reasons, pa.string())
    return ParsedColumns([pa.array(key, pa.string()) for key in keys], moments, _payload_column(payloads), problems)


def problems_with_headers(problems: pa.Array, bad: pa.Array) -> pa.Array:
    """The problems of messages, with `bad_header` for those that have a bad header (`bad`, bool) and no other problem.

    >>> problems_with_headers(pa.array([None, "future", None]), pa.array([True, True, False])).to_pylist()
    ['bad_header', 'future', None]
    """
    # Almost no column has one.
    if not pc.any(bad).as_py():
        return problems
    return pc.if_else(pc.and_(bad, pc.is_null(problems)), str(Reason.BAD_HEADER), problems)


def _plain_bodies(texts: list[bytes | None], fields: BodyFields, latest_ts: int) -> list[Any]:
    """One body for each message; its `ts` is None if the message has none, `_NOT_PLAIN` if it is not plain."""
    name = Annotated[str, msgspec.Meta(min_length=1)]
    # Zero is not plain: -0 decodes to it, too.
    moment = Annotated[int, msgspec.Meta(gt=0, le=min(latest_ts, LARGEST_TS))] | None
    plain = _body_struct(fields, (name,), (moment, None))
    # It raises on messages that are not plain.
    decode, nothing = msgspec.json.Decoder(plain).decode, plain(*fields.key, ts=_NOT_PLAIN)
    bodies: list[Any] = []
    for text in texts:
        try:
            bodies.append(nothing if text is None else decode(text))
        except msgspec.MsgspecError:
            bodies.append(nothing)
    return bodies


def _sound(column: pa.Array) -> list[bytes | None]:
    """The messages, with None for those that are not UTF-8, which msgspec may miss, or nest too deep for it."""
    texts: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    for row in pc.indices_nonzero(pc.greater(pc.binary_length(column), DEEPEST)).to_pylist():
        text = texts[row]
        if text is not None and nests_too_deep(text):
            texts[row] = None
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return [text if text is not None and is_utf8(text) else None for text in texts]
    return texts


def _not_plain(unsure: list[int], ts: list[int | None], records: list[int | None], latest_ts: int) -> list[int]:
    """The rows that `message_parser` must parse. Fills the record's timestamp into `ts` where a plain message has none of its own."""
    rows = []
    for row in unsure:
        record = records[row]
        if ts[row] is None and record is not None and 0 <= record <= min(latest_ts, LARGEST_TS):
            ts[row] = record
        else:
            rows.append(row)
    return rows


def _payload_column(payloads: list[Any]) -> pa.Array:
    """A string column of JSON texts (bytes or msgspec.Raw, known to be UTF-8); an empty text and `null` are no payload."""
    lengths = np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    text = np.frombuffer(b"".join(payloads), dtype=np.uint8)
    four = np.flatnonzero(lengths == len(_NULL))
    absent = lengths == 0
    absent[four] = (text[offsets[four][:, None] + np.arange(len(_NULL))] == _NULL).all(axis=1)
    validity = pa.array(~absent).buffers()[1]
    column = pa.LargeStringArray.from_buffers(len(payloads), pa.py_buffer(offsets), pa.py_buffer(text), validity)
    return column.cast(pa.string())
