"""Parses columns of messages with the results of `parsing`, ten times as fast where messages are plain.

A message is plain if its key fields are non-empty strings, its timestamp is a positive integer or comes from the record, and
it is not in the future. msgspec checks that while it decodes, so no further check is needed. Every other message goes to
`message_parser`, the only code that says what is wrong with a message.
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
from spark_jobs.rules.parsing import LARGEST_TS, BodyFields, is_utf8, message_parser
from spark_jobs.rules.reasons import Reason

_NULL = np.frombuffer(b"null", dtype=np.uint8)
_NOT_PLAIN = -1


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
    decode, nothing = _plain_decoder(fields, latest_ts)
    bodies: list[Any] = []
    for text in texts:
        try:
            bodies.append(nothing if text is None else decode(text))
        except msgspec.MsgspecError:
            bodies.append(nothing)
    return bodies


def _plain_decoder(fields: BodyFields, latest_ts: int) -> tuple[Callable[[bytes], Any], Any]:
    """Returns a decoder that raises on messages that are not plain, and the body that stands for such a message."""
    name = Annotated[str, msgspec.Meta(min_length=1)]
    # Zero is not plain: -0 decodes to it, too.
    moment = Annotated[int, msgspec.Meta(gt=0, le=min(latest_ts, LARGEST_TS))] | None
    key = [f"key_{rank}" for rank in range(len(fields.key))]
    attributes: list[Any] = [(attribute, name) for attribute in key]
    attributes += [("ts", moment, None), ("payload", msgspec.Raw, msgspec.Raw(b""))]
    names = dict(zip([*key, "ts", "payload"], [*fields.key, fields.timestamp, fields.payload], strict=True))
    body = msgspec.defstruct("PlainBody", attributes, rename=names, gc=False)
    return msgspec.json.Decoder(body).decode, body(*key, ts=_NOT_PLAIN)


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
