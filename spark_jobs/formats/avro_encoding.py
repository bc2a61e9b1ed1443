"""From JSON values to Avro's bytes: the inverse of `avro_values`.

A value fits a type only if nothing of it would be lost: an integer in its range, a number that a float or double spells alike, no field that the
record does not have. A field that is not there becomes its default. Of a union the first branch that the value fits is taken, because the
texts do not name branches.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from spark_jobs.formats.avro_schema import Node
from spark_jobs.formats.json_text import float_text

Encode = Callable[[Any], bytes]
_BITS = {"int": 31, "long": 63}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# An exponent of ten digits would be a number with as many digits.
_LONGEST_DECIMAL = 5_000


class NotFitting(ValueError):
    """A value is none of the type; the text says why."""


class Fields(tuple[tuple[str, Any], ...]):
    """The fields of a JSON object, in order, each as often as it is there."""


def parse_json(text: str) -> Any:
    """The value of a JSON text: objects as `Fields`, and numbers with every digit, integers as int, others (and -0) as Decimal."""
    return json.loads(text, object_pairs_hook=Fields, parse_float=Decimal, parse_int=_integer)


def _integer(token: str) -> int | Decimal:
    # An integer of Python has no negative zero, and none of thousands of digits.
    return Decimal(token) if token == "-0" or len(token) > _LONGEST_DECIMAL // 2 else int(token)


def long_bytes(value: int) -> bytes:
    r"""A number of 64 bits.

    >>> [long_bytes(value) for value in (0, -1, 64, 2**63 - 1)] == [b"\0", b"\1", b"\x80\1", b"\xfe" + b"\xff" * 8 + b"\1"]
    True
    """
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    if rest < 0x80:
        return bytes((rest,))
    found = bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*found, rest))


def string_bytes(text: str) -> bytes:
    """A text with its length."""
    return _with_length(text.encode())


def value_encoder(node: Node) -> Encode:
    """The function from values of `parse_json` to bytes of the type; it raises NotFitting, and RecursionError for what nests too deep."""
    return _Encoders(is_default=False).of(node)


class _Encoders:
    """Makes each record's function once; one inside itself meets its own. `is_default`: values are spelled as defaults in schemas are."""

    def __init__(self, is_default: bool) -> None:
        self._is_default = is_default
        self._defaults = self if is_default else _Encoders(is_default=True)
        self._of_record: dict[Node, Encode] = {}

    def of(self, node: Node) -> Encode:
        if node.kind == "record":
            return self._record(node)
        if node.kind == "union":
            return self._union(node)
        if node.kind == "array":
            return _array(self.of(node.parts[0]))
        if node.kind == "map":
            return _map(self.of(node.parts[0]))
        # In a schema a decimal is spelled as its bytes.
        return _bytes(node) if self._is_default and node.is_decimal else _scalar(node)

    def _record(self, node: Node) -> Encode:
        if node in self._of_record:
            return self._of_record[node]
        parts: list[tuple[str, Encode, Callable[[], bytes] | None]] = []

        def encode(value: Any) -> bytes:
            fields = _entries(value, "record")
            there = dict(fields)
            if len(there) != len(fields):
                raise NotFitting("a field is there twice")
            found = [_field(name, part, default, there) for name, part, default in parts]
            if there:
                raise NotFitting(f"the record has no field {next(iter(there))}")
            return b"".join(found)

        self._of_record[node] = encode
        for name, part in node.fields:
            default = None
            if name in node.defaults:
                default = partial(self._defaults.of(part), parse_json(json.dumps(node.defaults[name])))
            parts.append((name, self.of(part), default))
        return encode

    def _union(self, node: Node) -> Encode:
        branches = [(long_bytes(rank), self.of(part)) for rank, part in enumerate(node.parts)]

        def encode(value: Any) -> bytes:
            for rank, part in branches:
                try:
                    return rank + part(value)
                except NotFitting:
                    continue
            raise NotFitting("no branch of the union has such a value")

        return encode


def _field(name: str, encode: Encode, default: Callable[[], bytes] | None, there: dict[str, Any]) -> bytes:
    """Takes the field out of `there`."""
    if name in there:
        return encode(there.pop(name))
    if default is None:
        raise NotFitting(f"the field {name} is missing, and has no default")
    return default()


def _entries(value: Any, kind: str) -> Fields:
    if not isinstance(value, Fields):
        raise NotFitting(f"a {kind} is an object")
    return value


def _array(item: Encode) -> Encode:
    def encode(value: Any) -> bytes:
        if not isinstance(value, list):
            raise NotFitting("an array is a list")
        return _block(list(map(item, value)))

    return encode


def _map(of_value: Encode) -> Encode:
    return lambda value: _block([string_bytes(key) + of_value(each) for key, each in _entries(value, "map")])


def _block(items: list[bytes]) -> bytes:
    return b"".join((long_bytes(len(items)), *items, b"\0")) if items else b"\0"


def _scalar(node: Node) -> Encode:
    if node.is_decimal:
        return _decimal(node)
    if node.is_uuid:
        return _uuid
    encoders: dict[str, Encode] = {"null": _null, "boolean": _boolean, "string": _string}
    match node.kind:
        case "int" | "long":
            return _whole_number(_BITS[node.kind])
        case "float" | "double":
            return _floating(node.kind == "float")
        case "bytes" | "fixed":
            return _bytes(node)
        case "enum":
            ranks = {symbol: long_bytes(rank) for rank, symbol in enumerate(node.symbols)}
            return lambda value: _known(ranks, value)
    return encoders[node.kind]


def _null(value: Any) -> bytes:
    if value is not None:
        raise NotFitting("only null is null")
    return b""


def _boolean(value: Any) -> bytes:
    if not isinstance(value, bool):
        raise NotFitting("not a boolean")
    return b"\1" if value else b"\0"


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise NotFitting("not a string")
    return string_bytes(value)


def _known(ranks: dict[str, bytes], value: Any) -> bytes:
    if not isinstance(value, str) or value not in ranks:
        raise NotFitting("not a symbol of the enum")
    return ranks[value]


def _whole_number(bits: int) -> Encode:
    least, most = -(2**bits), 2**bits - 1

    def encode(value: Any) -> bytes:
        if type(value) is not int or not least <= value <= most:
            raise NotFitting(f"not a whole number of {bits + 1} bits")
        return long_bytes(value)

    return encode


def _floating(is_single: bool) -> Encode:
    code = "<f" if is_single else "<d"

    def encode(value: Any) -> bytes:
        if isinstance(value, str) and value in _NOT_FINITE:
            return struct.pack(code, _NOT_FINITE[value])
        if type(value) is not int and not isinstance(value, Decimal):
            raise NotFitting("not a number")
        try:
            raw = struct.pack(code, float(value))
        except OverflowError:
            raise NotFitting("a number out of range") from None
        (kept,) = struct.unpack(code, raw)
        # Every digit that came is in the text of the float, or the number was none.
        if math.isinf(kept) or Decimal(float_text(kept, is_single)) != value:
            raise NotFitting("a number with more digits than a float has")
        return raw

    return encode


def _bytes(node: Node) -> Encode:
    def encode(value: Any) -> bytes:
        try:
            raw = value.encode("latin-1")
        except (AttributeError, UnicodeEncodeError):
            raise NotFitting("not a string of bytes") from None
        return _sized(node, raw)

    return encode


def _sized(node: Node, raw: bytes) -> bytes:
    if node.kind == "bytes":
        return _with_length(raw)
    if len(raw) != node.size:
        raise NotFitting(f"not {node.size} bytes")
    return raw


def _with_length(raw: bytes) -> bytes:
    return long_bytes(len(raw)) + raw


def _uuid(value: Any) -> bytes:
    try:
        found = UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise NotFitting("not a uuid") from None
    if str(found) != value:
        raise NotFitting("not a uuid in its usual form")
    return found.bytes


def _decimal(node: Node) -> Encode:
    def encode(value: Any) -> bytes:
        if type(value) is not int and not isinstance(value, Decimal):
            raise NotFitting("not a number")
        unscaled = _unscaled(value, node.scale)
        size = node.size if node.kind == "fixed" else unscaled.bit_length() // 8 + 1
        try:
            return _sized(node, unscaled.to_bytes(size, signed=True))
        except OverflowError:
            raise NotFitting(f"a decimal of more than {node.size} bytes") from None

    return encode


def _unscaled(value: int | Decimal, scale: int) -> int:
    """The number times ten to the scale, exactly; Decimal's own arithmetic rounds."""
    if isinstance(value, int):
        return value * 10**scale
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or not -scale <= exponent <= _LONGEST_DECIMAL or len(digits) > _LONGEST_DECIMAL:
        raise NotFitting("a decimal with more digits than its scale")
    # Digits one by one: Python refuses to read thousands at once.
    number = 0
    for digit in digits:
        number = number * 10 + digit
    number *= 10 ** (exponent + scale)
    return -number if sign else number
