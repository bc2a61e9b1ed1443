"""Rules 1, 2 and 8: what messages say, and whether they are accepted.

A `Layout` says where the fields of an event are. msgspec parses a message strictly (RFC 8259, one object, UTF-8) and skips the payload without
decoding it, so the payload keeps every digit, escape and space. Two things are stricter than JSON: an unpaired surrogate escape is malformed,
because no table could hold its string, and so is a nesting deeper than `DEEPEST`.

`message_parser` is the only code that says what is wrong with a message. Columns are parsed ten times as fast by `parse_columns`, which leaves
to it only the messages that `plain_bodies` cannot read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from include.config.sources import HEADER, KEY, RECORD_TIME, VALUE, Source
from spark_jobs.rules.layout import Finder, Layout
from spark_jobs.rules.reasons import FILTERED, Reason
from spark_jobs.rules.times import LARGEST_TS, time_reader

ABSENT = (b"", b"null")


class ParsedMessage(NamedTuple):
    """One parsed message. `key` has None for a missing field; `ts` in epoch ms, None if unreadable; `problem`: a reason or FILTERED, None: accepted."""

    key: tuple[str | None, ...]
    ts: int | None
    payload: str | None
    problem: str | None


class Record(NamedTuple):
    """One Kafka record. `key`: the JSON text of its key if a path leads into it, else its bytes; `headers`: names and values in their order."""

    value: bytes | None
    timestamp: int | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def message_parser(layout: Layout, latest_ts: int) -> Callable[[Record], ParsedMessage]:
    """A function that parses one record. `latest_ts` = W + max_future, inclusive.

    A value has to be UTF-8 and must not nest too deep; None stands for any other value.

    >>> from include.config.pipeline import PIPELINES
    >>> from include.config.pipeline_file import load_pipeline
    >>> from spark_jobs.rules.layout import layout_of
    >>> calls = load_pipeline(PIPELINES / "calls.yaml")
    >>> parse = message_parser(layout_of(calls, calls.right), latest_ts=2_000)
    >>> parse(Record(b'{"user1":"a","user2":"b","timestamp":1500,"metrics":{"loss":0.10}}', 9))
    ParsedMessage(key=('a', 'b'), ts=1500, payload='{"loss":0.10}', problem=None)
    >>> parse(Record(b'{"user1":"a","user2":"b","timestamp":null}', 9))
    ParsedMessage(key=('a', 'b'), ts=9, payload=None, problem=None)
    >>> [parse(Record(value, 9)).problem.value for value in (b"{}{}", b"{}", b'{"user1":"a","user2":"b","timestamp":1.5}',
    ...                                                      b'{"user1":"a","user2":"b","timestamp":2001}')]
    ['malformed_json', 'missing_key', 'bad_timestamp', 'future']
    """
    tokens_of = _token_finder(layout.all_sources)
    read_time, fields = time_reader(layout.times), len(layout.key)

    def parse(record: Record) -> ParsedMessage:
        tokens, is_json = tokens_of(record)
        for token, (source, allowed) in zip(tokens[fields + 2 :], layout.only, strict=True):
            # Of a value that cannot be read nobody knows whether it is selected.
            if (is_json or source.part != VALUE) and _text(token) not in allowed:
                return ParsedMessage((None,) * fields, None, None, FILTERED)
        if not is_json:
            return ParsedMessage((None,) * fields, None, None, Reason.MALFORMED_JSON)
        key = tuple(_key_field(token, layout.key_text) for token in tokens[:fields])
        time, content = tokens[fields], tokens[fields + 1]
        payload = None if content in ABSENT else content.decode("utf-8")
        ts = _sound(record.timestamp) if time in ABSENT else read_time(without_escapes(time))
        if None in key:
            return ParsedMessage(key, ts, payload, Reason.MISSING_KEY)
        if ts is None:
            return ParsedMessage(key, ts, payload, Reason.BAD_TIMESTAMP)
        return ParsedMessage(key, ts, payload, Reason.FUTURE if ts > latest_ts else None)

    return parse


def _token_finder(sources: tuple[Source, ...]) -> Callable[[Record], tuple[list[bytes], bool]]:
    """A function from a record to the JSON token of each source, empty where there is none, and whether the value is a JSON object."""
    finders = []
    for part in (VALUE, KEY):
        numbers = [number for number, source in enumerate(sources) if source.part == part and source.path]
        finders.append((numbers, Finder([sources[number].path for number in numbers])))

    def find(record: Record) -> tuple[list[bytes], bool]:
        tokens = [_of_part(record, source) for source in sources]
        are_json = []
        for (numbers, finder), text in zip(finders, (record.value, record.key), strict=True):
            try:
                found = finder.find(text or b"")
            except msgspec.DecodeError:
                found = None
            are_json.append(found is not None)
            for number, token in zip(numbers, found or (), strict=False):
                tokens[number] = token
        return tokens, are_json[0]

    return find


def _of_part(record: Record, source: Source) -> bytes:
    """The token of a source that is no path into a text."""
    if source == (VALUE, ()):
        return record.value or b""
    if source == (KEY, ()):
        return text_token(record.key)
    if source.part == HEADER:
        return text_token(next((value for name, value in record.headers if name == source.path[0]), None))
    # A path is filled in later; the record's own time stands where a message has none.
    assert source.part == RECORD_TIME or source.path
    return b""


def text_token(text: bytes | None) -> bytes:
    """A text as a JSON token; empty if it is no UTF-8.

    >>> text_token(b'a"b'), text_token(b"\\xff"), text_token(None)
    (b'"a\\\\"b"', b'', b'')
    """
    try:
        return b"" if text is None else msgspec.json.encode(text.decode("utf-8"))
    except UnicodeError:
        return b""


def without_escapes(token: bytes) -> bytes:
    """A token whose string, if it is one, has its characters as they are, between quotes."""
    return b'"%b"' % msgspec.json.decode(token).encode() if token[:1] == b'"' and b"\\" in token else token


def _text(token: bytes) -> str | None:
    """What a token says, without quotes; None where there is none."""
    token = without_escapes(token)
    text = token[1:-1] if token[:1] == b'"' else token
    return None if token in ABSENT else text.decode("utf-8")


def _key_field(token: bytes, key_text: tuple[str, ...]) -> str | None:
    is_integer = "integers" in key_text and token.removeprefix(b"-").isdigit()
    text = "0" if is_integer and token == b"-0" else _text(token) if token[:1] == b'"' or is_integer else None
    return (text and normal_key(text, key_text)) or None


def normal_key(text: str, key_text: tuple[str, ...]) -> str:
    """The key field after all steps but `integers`.

    >>> normal_key(" Ann ", ("trim", "lower"))
    'ann'
    """
    text = text.strip() if "trim" in key_text else text
    return text.lower() if "lower" in key_text else text.upper() if "upper" in key_text else text


def _sound(record_ts: int | None) -> int | None:
    return record_ts if record_ts is not None and 0 <= record_ts <= LARGEST_TS else None


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8. msgspec does not check the strings that it skips."""
    try:
        text.decode("utf-8")
    except UnicodeError:
        return False
    return True
