"""Bodies that are meant to cost more than their size, each as long as one wants it."""

from __future__ import annotations

import json
from collections.abc import Callable

HEAD = b'{"user1":"a","user2":"b","timestamp":5,"metrics":'
_CALL = {
    "loss": 0.0125,
    "jitter_ms": 17,
    "codec": "opus",
    "relay": None,
    "bitrates": [32_000, 48_000, {"peak": 1.5e6}],
    "note": "ok, then",
}
_DEEP = b"[" * 490 + b"]" * 490


def plain(size: int) -> bytes:
    """An accepted message with an ordinary payload, a list of objects: what all others are compared with."""
    return _valid(b"[", json.dumps(_CALL).encode() + b",", b"0]")(size)


def _encoded(size: int, times: int) -> bytes:
    """A message whose payload is JSON in a string, or JSON in a string in a string, longer than `size`."""
    text = plain(size).decode()
    for _ in range(times):
        text = json.dumps(text)
    return HEAD + text.encode() + b"}"


def _run(piece: bytes, before: bytes = b"", after: bytes = b"") -> Callable[[int], bytes]:
    """`before`, as many pieces as fit, `after`."""
    return lambda size: before + piece * max((size - len(before) - len(after)) // len(piece), 1) + after


def _valid(opening: bytes, piece: bytes, closing: bytes) -> Callable[[int], bytes]:
    """A message with such a payload."""
    return _run(piece, HEAD + opening, closing + b"}")


def _body(opening: bytes, piece: bytes, closing: bytes) -> Callable[[int], bytes]:
    """A message with its other members before or behind what is repeated."""
    return _run(piece, b'{"user2":"b","metrics":1,' + opening, closing + b"}")


def _balanced(opening: bytes, closing: bytes) -> Callable[[int], bytes]:
    def text(size: int) -> bytes:
        levels = size // (len(opening) + len(closing))
        return HEAD + opening * levels + b"1" + closing * levels + b"}"

    return text


# Name -> a body of about so many bytes. Those said to be valid are accepted, the others have some problem or other.
FAMILIES: dict[str, Callable[[int], bytes]] = {
    "string, truncated": _run(b"x", HEAD + b'"'),
    "JSON in a string, truncated": lambda size: _encoded(size, 1)[:size],
    "JSON in two strings, truncated": lambda size: _encoded(size, 2)[:size],
    "JSON in a string, valid": lambda size: _encoded(size * 7 // 8, 1),
    "JSON in two strings, valid": lambda size: _encoded(size * 7 // 10, 2),
    "one long string, valid": _valid(b'"', b"x", b'"'),
    "backslashes, truncated": _run(b"\\", HEAD + b'"'),
    "backslashes, bare": _run(b"\\"),
    "escaped backslashes, valid": _valid(b'"', rb"\\", b'"'),
    "escaped quotes, valid": _valid(b'"', rb"\"", b'"'),
    "escaped quotes and brackets, valid": _valid(b'"', rb"\"[", b'"'),
    "escaped quotes and brackets, truncated": _run(rb"\\\"[", HEAD + b'"'),
    "quotes, bare": _run(b'"'),
    "quotes after 501 brackets in a string": _run(b'"', HEAD + b'"' + b"[" * 501),
    "empty strings, valid": _valid(b"[", b'"",', b"[]]"),
    "strings of a bracket, valid": _valid(b"[", b'"[",', b"0]"),
    "braces, opening": _run(b"{", HEAD),
    "brackets, opening": _run(b"[", HEAD),
    "brackets, closing": _run(b"]", HEAD + b"["),
    "brackets in a string, valid": _valid(b'"', b"[{", b'"'),
    "empty lists, valid": _valid(b"[", b"[],", b"{}]"),
    "empty objects, valid": _valid(b"[", b"{},", b"[]]"),
    "490 levels again and again, valid": _valid(b"[", _DEEP + b",", b"0]"),
    "kinds in turn, deeper and deeper": _run(b'[{"":', HEAD),
    "kinds in turn, deep and closed": _balanced(b'[{"":', b"}]"),
    "digits, valid": _valid(b"", b"7", b""),
    "digits of the timestamp": _body(b'"user1":"a","timestamp":', b"7", b""),
    "digits of the timestamp, quoted": _body(b'"user1":"a","timestamp":"', b"7", b'"'),
    "zeros before the timestamp, valid": _body(b'"user1":"a","timestamp":"', b"0", b'5"'),
    "fraction, valid": _valid(b"0.", b"7", b""),
    "fraction of the timestamp": _body(b'"user1":"a","timestamp":5.', b"0", b"1"),
    "exponent, valid": _valid(b"1e", b"9", b""),
    "exponent of the timestamp": _body(b'"user1":"a","timestamp":1e', b"9", b""),
    "small numbers, valid": _valid(b"[", b"-0.5e-3,", b"0]"),
    "literals, valid": _valid(b"[", b"null,true,", b"0]"),
    "unicode escapes, valid": _valid(b'"', rb"\u00e9", b'"'),
    "surrogate pairs, valid": _valid(b'"', rb"\ud83d\ude00", b'"'),
    "lone surrogate behind escapes": _valid(b'"', rb"\u00e9", rb'\ud800"'),
    "lone surrogates": _valid(b'"', rb"\ud800", b'"'),
    "surrogate in UTF-8 behind text": _valid(b'"', "é".encode(), b'\xed\xa0\x80"'),
    "not UTF-8 at the end": _valid(b'"', b"x", b'\xff"'),
    "not UTF-8 at all": _run(b"\xff"),
    "wide signs, valid": _valid(b'"', "😀".encode(), b'"'),
    "NUL": _run(b"\0", HEAD),
    "NUL escaped in the key, valid": _body(b'"timestamp":5,"user1":"', rb"\u0000", b'"'),
    "huge key, valid": _body(b'"timestamp":5,"user1":"', b"k", b'"'),
    "huge key, escaped, valid": _body(b'"timestamp":5,"user1":"', rb"\n", b'"'),
    "key is a list": _body(b'"timestamp":5,"user1":[', b'"a",', b"0]"),
    "huge name, valid": _body(b'"timestamp":5,"user1":"a","', b"n", b'":1'),
    "huge name, escaped, valid": _body(b'"timestamp":5,"user1":"a","', rb"\u0061", b'":1'),
    "names that are unknown, valid": _body(b'"timestamp":5,"user1":"a",', b'"x":0,', b'"y":0'),
    "duplicate timestamps, valid": _body(b'"user1":"a",', b'"timestamp":5,', b'"timestamp":6'),
    "duplicate timestamps, quoted, valid": _body(b'"user1":"a",', rb'"timestamp":"\u0035",', b'"timestamp":"6"'),
    "duplicate keys, valid": _body(b'"timestamp":5,', rb'"user1":"\u0061b",', b'"user1":"a"'),
    "duplicate payloads, valid": _body(b'"timestamp":5,"user1":"a",', b'"metrics":{"a":[1]},', b'"metrics":[]'),
    "BOM": lambda size: b"\xef\xbb\xbf" + plain(size),
    "spaces, valid": _run(b" \n", HEAD, b"5}"),
    "two messages": lambda size: plain(size // 2) * 2,
    "plain, truncated": lambda size: plain(size + 1_000)[:size],
    "plain, but the key is missing": lambda size: plain(size).replace(b'"user1"', b'"user9"', 1),
}  # fmt: skip
# Name -> what a key field is made of.
KEY_PIECES = {
    "key of letters": "k",
    "key of separators": "-",
    "key of backslashes": "\\",
    "key of both in turn": "\\-",
    "key of quotes": '"',
    "key of NUL": "\0",
    "key of line ends": "\n",
    "key of wide signs": "😀",
    "key of words": "some-words",
}
