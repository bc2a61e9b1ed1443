"""Parses columns of messages, ten times as fast as `message_parser` where they are plain.

A message is plain if its key fields are non-empty strings, its time is positive or comes from the record, and it is not in the future. msgspec
checks that while it decodes, so no further check is needed. Every other message goes to `message_parser`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.config.sources import HEADER, KEY, RECORD_TIME, VALUE, Source
from spark_jobs.rules.layout import RAW_OR_NOTHING, Finder, Layout, Path, body_struct
from spark_jobs.rules.nesting import DEEPEST, nests_too_deep
from spark_jobs.rules.parsing import (
    ABSENT,
    ParsedMessage,
    Record,
    is_utf8,
    message_parser,
    normal_key,
    text_token,
    without_escapes,
)
from spark_jobs.rules.reasons import FILTERED, Reason
from spark_jobs.rules.times import LARGEST_TS, time_reader

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_NULL = np.frombuffer(b"null", dtype=np.uint8)
_NOT_PLAIN = -1
_STRING = Annotated[str, msgspec.Meta(min_length=1)]
Texts = list[bytes | None]


class ParsedColumns(NamedTuple):
    """The fields of `ParsedMessage` as columns; `key`: one for each key field, in order."""

    key: list[pa.Array]
    ts: pa.Array
    payload: pa.Array
    problem: pa.Array


class Columns(NamedTuple):
    """Records as aligned columns: `value`, `key` (binary), `timestamp` (int64, epoch ms), `headers` (lists of `key` and `value`).

    `key` is the JSON text of the key if the layout leads into it. `key` and `headers` may be None if the layout does not need them.
    """

    value: pa.Array
    timestamp: pa.Array
    key: pa.Array | None = None
    headers: pa.Array | None = None


def parse_columns(records: Columns, layout: Layout, latest_ts: int) -> ParsedColumns:
    """Parses records into aligned columns. `latest_ts` = W + max_future, inclusive. Raises ValueError if one column is longer than the other."""
    if len(records.value) != len(records.timestamp):
        raise ValueError(f"{len(records.value)} messages, but {len(records.timestamp)} record timestamps")
    parts = _Parts(records, layout)
    filtered = parts.filter()
    keys, ts, payloads, unread = parts.plain_fields(latest_ts)
    moments, problems = pa.array(ts, pa.int64()), pa.nulls(len(ts), pa.string())
    without_time = pc.indices_nonzero(pc.less(pc.fill_null(moments, _NOT_PLAIN), 0)).to_pylist()
    if unread or without_time:
        stamps = records.timestamp.to_pylist()
        unread |= _take_times_of_records(without_time, ts, stamps, latest_ts)
        reasons: list[str | None] = [None] * len(ts)
        parse = message_parser(layout, latest_ts)
        for row in unread:
            parsed = parts.nothing(FILTERED) if row in filtered else parse(parts.record(row, stamps[row]))
            for fields, field in zip(keys, parsed.key, strict=True):
                fields[row] = field
            ts[row], reasons[row] = parsed.ts, parsed.problem
            payloads[row] = b"" if parsed.payload is None else parsed.payload.encode()
        moments, problems = pa.array(ts, pa.int64()), pa.array(reasons, pa.string())
    columns = [pa.array(fields, pa.string()) for fields in keys]
    return ParsedColumns(columns, moments, _payload_column(payloads), problems)


def problems_with_headers(problems: pa.Array, bad: pa.Array) -> pa.Array:
    """The problems of messages, with `bad_header` for those that have a bad header (`bad`, bool) and no other problem.

    >>> problems_with_headers(pa.array([None, "future", None]), pa.array([True, True, False])).to_pylist()
    ['bad_header', 'future', None]
    """
    # Almost no column has one.
    if not pc.any(bad).as_py():
        return problems
    return pc.if_else(pc.and_(bad, pc.is_null(problems)), str(Reason.BAD_HEADER), problems)


class _Parts:
    """The values, keys and headers of records, and the fields in them."""

    def __init__(self, records: Columns, layout: Layout) -> None:
        self.texts, self.layout = _sound(records.value), layout
        sources = layout.all_sources
        self._into_key = any(source.part == KEY and source.path for source in sources)
        has_key, has_headers = (any(source.part == part for source in sources) for part in (KEY, HEADER))
        keys = _column(records.key, len(self.texts)) if has_key else None
        self._keys: Texts = _sound(keys) if self._into_key else _as_list(keys)
        self._headers = records.headers if has_headers else None
        self._undecoded: set[int] = set()

    def record(self, row: int, timestamp: int | None) -> Record:
        headers = self._headers[row].as_py() or () if self._headers is not None else ()
        pairs = tuple((header["key"], header["value"]) for header in headers)
        return Record(self.texts[row], timestamp, self._keys[row] if self._keys else None, pairs)

    def nothing(self, problem: str) -> ParsedMessage:
        return ParsedMessage((None,) * len(self.layout.key), None, None, problem)

    def filter(self) -> set[int]:
        """The rows that `only` leaves out: nothing else is read of them. Values that cannot be decoded stay."""
        out: set[int] = set()
        for source, allowed in self.layout.only:
            tokens = {spelled for each in allowed for spelled in (each.encode(), b'"%b"' % each.encode())} - {*ABSENT}
            for row, token in enumerate(self._tokens(source)):
                if token is not None and without_escapes(token) not in tokens:
                    out.add(row)
        for row in out:
            self.texts[row] = None
        return out

    def _tokens(self, source: Source) -> list[bytes | None]:
        """The token of each row, empty where there is none; None where the text cannot be decoded."""
        if not source.path or source.part == HEADER:
            return list(self._whole(source))
        find = Finder([source.path]).find

        def token(text: bytes | None) -> bytes | None:
            try:
                return find(text or b"")[0]
            except msgspec.DecodeError:
                return b"" if source.part == KEY else None

        return list(map(token, self.texts if source.part == VALUE else self._keys))

    def _whole(self, source: Source) -> list[bytes]:
        if source.part == HEADER:
            return list(map(text_token, header_texts(self._headers, source.path[0], len(self.texts))))
        if source.part == KEY:
            return list(map(text_token, self._keys))
        return [text or b"" for text in self.texts]

    def plain_fields(self, latest_ts: int) -> tuple[list[list[Any]], list[int | None], list[Any], set[int]]:
        """Key fields, timestamps and payloads of all rows, and the rows in which these are not to be relied on.

        A timestamp is None where the message has none, `_NOT_PLAIN` where it is not plain.
        """
        layout = self.layout
        name: Any = (_STRING | int if "integers" in layout.key_text else _STRING,)
        fields = [(source, name) for source in layout.sources]
        has_integers = layout.times.format in (None, "epoch_ms") and not layout.has_quoted_integers
        # Zero is not plain: -0 decodes to it, too.
        moment = Annotated[int, msgspec.Meta(gt=0, le=min(latest_ts, LARGEST_TS))] | None
        fields.append((layout.time, (moment, None) if has_integers else RAW_OR_NOTHING))
        fields.append((layout.payload, RAW_OR_NOTHING))
        columns = self._decoded(fields)
        *keys, ts, payloads = columns
        unread = set(self._undecoded)
        if layout.key_text:
            for number, key in enumerate(keys):
                keys[number] = [normal_key(str(each), layout.key_text) for each in key]
        for key, source in zip(keys, layout.sources, strict=True):
            # Only the struct of a path has checked that.
            if layout.key_text or not source.path or source.part == HEADER:
                unread.update(row for row, each in enumerate(key) if not each)
        if layout.time.part == RECORD_TIME:
            ts = [None] * len(self.texts)
        elif not has_integers or not layout.time.path or layout.time.part == HEADER:
            ts = _times(ts, time_reader(layout.times), latest_ts)
        return keys, ts, payloads, unread

    def _decoded(self, fields: list[tuple[Source, tuple[Any, ...]]]) -> list[list[Any]]:
        """The column of each field."""
        columns: list[list[Any]] = [[] for _ in fields]
        for part, texts in ((VALUE, self.texts), (KEY, self._keys)):
            waiting = {
                number: source.path for number, (source, _) in enumerate(fields) if source.part == part and source.path
            }
            if part == VALUE and not waiting:
                # The value has to be JSON, whatever is read of it.
                self._decode({}, texts)
            while waiting:
                # A path that is there twice, or begins with another one, needs a struct of its own.
                chosen: dict[Path, int] = {}
                for number, path in waiting.items():
                    if not any(path[: len(other)] == other for other in waiting.values() if other != path):
                        chosen.setdefault(path, number)
                found = self._decode({path: fields[number][1] for path, number in chosen.items()}, texts)
                for path, number in chosen.items():
                    columns[number] = found[path]
                    del waiting[number]
        for number, (source, kind) in enumerate(fields):
            if source.part != RECORD_TIME and (not source.path or source.part == HEADER):
                whole = self._whole(source)
                # Of a key field the text, of others the token.
                columns[number] = whole if len(kind) > 1 else list(map(_string, whole))
        return columns

    def _decode(self, kinds: dict[Path, tuple[Any, ...]], texts: Sequence[bytes | None]) -> dict[Path, list[Any]]:
        struct, names = body_struct(kinds)
        # It raises on messages that are not plain.
        decode = msgspec.json.Decoder(struct).decode
        nothing = decode(_example(kinds))
        bodies: list[Any] = []
        for row, text in enumerate(texts):
            try:
                bodies.append(decode(text))  # type: ignore[arg-type]  # Of None it raises TypeError.
            except (msgspec.MsgspecError, TypeError):
                self._undecoded.add(row)
                bodies.append(nothing)
        return {path: list(map(attrgetter(name), bodies)) for path, name in names.items()}


def _example(kinds: dict[Path, tuple[Any, ...]]) -> bytes:
    """A text that the struct of these fields accepts."""
    example: dict[str, Any] = {}
    for path, kind in kinds.items():
        if len(kind) == 1:
            at = example
            for name in path[:-1]:
                at = at.setdefault(name, {})
            at[path[-1]] = "x"
    return msgspec.json.encode(example)


def _string(token: bytes) -> str:
    return msgspec.json.decode(token) if token[:1] == b'"' else ""


def _column(column: pa.Array | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.binary()) if column is None else column


def _as_list(column: pa.Array | None) -> Texts:
    return [] if column is None else column.to_numpy(zero_copy_only=False).tolist()


def header_texts(headers: pa.Array | None, name: str, rows: int) -> Iterable[bytes | None]:
    """The value of each record's first header of that name, None without one."""
    found: Texts = [None] * rows
    if headers is not None:
        parents, flat = pc.list_parent_indices(headers), headers.flatten()
        is_wanted = pc.equal(flat.field("key"), name)
        wanted = zip(parents.filter(is_wanted).to_pylist(), flat.field("value").filter(is_wanted).to_pylist(), strict=True)
        # The first one is set last.
        for row, value in reversed(list(wanted)):
            found[row] = value
    return found


def _times(tokens: list[Any], read: Callable[[bytes], int | None], latest_ts: int) -> list[int | None]:
    def time(token: Any) -> int | None:
        token = bytes(token)
        if token in ABSENT:
            return None
        ts = read(token)
        return _NOT_PLAIN if ts is None or ts > latest_ts else ts

    return list(map(time, tokens))


def _sound(column: pa.Array) -> Texts:
    """The messages, with None for those that are not UTF-8, which msgspec may miss, or nest too deep for it."""
    texts = _as_list(column)
    for row in pc.indices_nonzero(pc.greater(pc.binary_length(column), DEEPEST)).to_pylist():
        text = texts[row]
        if text is not None and nests_too_deep(text):
            texts[row] = None
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return [text if text is not None and is_utf8(text) else None for text in texts]
    return texts


def _take_times_of_records(rows: list[int], ts: list[int | None], stamps: list[int | None], latest_ts: int) -> set[int]:
    """Fills the record's timestamp into `ts` in those of these rows that have no time of their own; the others are returned."""
    rest = set()
    for row in rows:
        stamp = stamps[row]
        if ts[row] is None and stamp is not None and 0 <= stamp <= min(latest_ts, LARGEST_TS):
            ts[row] = stamp
        else:
            rest.add(row)
    return rest


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
