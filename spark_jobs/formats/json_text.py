r"""From Arrow columns to columns of JSON texts, each row one text.

A null row of an argument is a null row of the result, and becomes `null` where it is put into an object or a list. Arrays may be
slices of others. All texts of one result must be smaller than 2 GB together; Arrow raises ArrowInvalid if they are not, so callers give
as few rows as that needs.

Numbers are spelled with every digit: integers as they are, floats by the fewest digits that read back to the same value of their width
(0.1 of a float32 is `0.1`). JSON has no NaN and no Infinity; they become the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Characters that a JSON string has to escape.
_ESCAPED_IN_JSON = r'["\\\x00-\x1f]'
_SPACE, _QUOTE, _BACKSLASH = b' "\\'
_NOT_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}

# From here on the digits are as Python's, but the exponent is not.
_LEAST_PLAIN, _FIRST_WITH_EXPONENT = 1e-4, 1e10


class UnescapedTexts(NamedTuple):
    """Texts (no nulls) that are JSON strings once they stand between quotes. `objects` writes the quotes with the names, which is faster."""

    texts: pa.Array


def strings(texts: pa.Array) -> pa.Array:
    r"""Texts (of the type string) as JSON strings, spelled as json.dumps(ensure_ascii=False) spells them.

    >>> strings(pa.array(["x", 'a"b', "é\n", None])).to_pylist() == ['"x"', r'"a\"b"', r'"é\n"', None]
    True
    """
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    if not _may_need_escapes(texts):
        return quoted
    escaped = pc.match_substring_regex(texts, _ESCAPED_IN_JSON)
    if not pc.any(escaped).as_py():
        return quoted
    spelled = [json.dumps(text, ensure_ascii=False) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(quoted, escaped, pa.array(spelled, pa.string()))


def field_strings(texts: pa.Array) -> pa.Array | UnescapedTexts:
    """As `strings`, for a field of `objects`."""
    return strings(texts) if texts.null_count or _may_need_escapes(texts) else UnescapedTexts(texts)


def _may_need_escapes(texts: pa.Array) -> bool:
    # A look at all bytes at once is twenty times as fast as an expression for each text.
    if not len(texts):
        return False
    _, offsets, data = texts.buffers()
    begin, end = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    content = np.frombuffer(data or b"", np.uint8)[begin:end]
    return bool((content < _SPACE).any() or (content == _QUOTE).any() or (content == _BACKSLASH).any())


def booleans(values: pa.Array) -> pa.Array:
    """
    >>> booleans(pa.array([True, False, None])).to_pylist()
    ['true', 'false', None]
    """
    return values.cast(pa.string())


def numbers(values: pa.Array) -> pa.Array:
    """Integers (of any width) and floats (32 or 64 bits) as JSON numbers.

    >>> numbers(pa.array([2**63 - 1, None])).to_pylist(), numbers(pa.array([0.1], pa.float32())).to_pylist()
    (['9223372036854775807', None], ['0.1'])
    >>> numbers(pa.array([1.0, 1e300, float("-inf")])).to_pylist()
    ['1', '1e+300', '"-Infinity"']
    """
    texts = values.cast(pa.string())
    if not pa.types.is_floating(values.type):
        return texts
    strange = pc.invert(pc.is_finite(values))
    if not pc.any(strange).as_py():
        return texts
    named = [_NOT_FINITE[text] for text in texts.filter(strange).to_pylist()]
    return pc.replace_with_mask(texts, strange, pa.array(named, pa.string()))


def float_text(value: float, is_single: bool) -> str:
    """The number as `numbers` spells it. `is_single`: it has 32 bits.

    >>> float_text(1.0, False), float_text(float(np.float32(0.1)), True), float_text(1e10, False), float_text(1e-5, False)
    ('1', '0.1', '1e+10', '0.00001')
    """
    if _LEAST_PLAIN <= abs(value) < _FIRST_WITH_EXPONENT:
        text = np.format_float_positional(np.float32(value), trim="-") if is_single else repr(value)
        return text.removesuffix(".0")
    column = pa.array([value], pa.float32() if is_single else pa.float64())
    return str(numbers(column)[0].as_py())


def objects(fields: Sequence[tuple[str, pa.Array | UnescapedTexts, pa.Array | None]], valid: pa.Array) -> pa.Array:
    """One object a row, null where not `valid` (bool, no nulls).

    `fields`: the name, the texts of the values, and the rows (bool, no nulls) in which the field is left out; None: in none.

    >>> ids, loss = pa.array(["1", "2", "3"]), pa.array([None, "0.5", "0.1"])
    >>> objects([("id", ids, None), ("loss", loss, pc.is_null(loss))], pa.array([True, True, False])).to_pylist()
    ['{"id":1}', '{"id":2,"loss":0.5}', None]
    """
    # A part is a text for all rows, or one for each row. `between` comes after the last one, the same in all rows.
    parts: list[pa.Array | str] = []
    between = "{"
    # Whether a row already has a field, so that a comma is due.
    begun: pa.Array | bool = False
    for name, texts, left_out in fields:
        value, quote = (texts.texts, '"') if isinstance(texts, UnescapedTexts) else (pc.coalesce(texts, "null"), "")
        label = f"{json.dumps(name, ensure_ascii=False)}:{quote}"
        if left_out is None and isinstance(begun, bool):
            parts += [f"{between}{',' if begun else ''}{label}", value]
            between, begun = quote, True
            continue
        head = pc.if_else(begun, f",{label}", label)
        field = pc.binary_join_element_wise(head, value, quote, "")
        parts += [between, field if left_out is None else pc.if_else(left_out, "", field)]
        between = ""
        begun = True if begun is True or left_out is None else pc.or_(begun, pc.invert(left_out))
    # The last part gives the object its rows and its nulls.
    return pc.binary_join_element_wise(*parts, pc.if_else(valid, f"{between}}}", pa.scalar(None, pa.string())), "")


def flat(array: pa.Array) -> pa.Array:
    """The items of all lists of the array in order (of a MapArray: structs of key and value), without those of null lists.

    >>> flat(pa.array([[1, 2], [3], None, [4]])[1:]).to_pylist()
    [3, 4]
    """
    return _lists(array).flatten()


def lists(array: pa.Array, items: pa.Array) -> pa.Array:
    """One JSON array a row of `array` (any list type). `items`: the texts of `flat(array)`.

    >>> array = pa.array([[1, None], [], None])
    >>> lists(array, numbers(flat(array))).to_pylist()
    ['[1,null]', '[]', None]
    """
    return _joined(array, pc.coalesce(items, "null"), "[", "]")


def maps(array: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    """One JSON object a row of `array` (a MapArray, or lists of entries), its fields in the order of the entries.

    `keys`: the JSON strings of the keys in `flat(array)`; `values`: the texts of the values. A key that occurs twice stays twice.

    >>> array = pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.int64()))
    >>> keys, values = flat(array).flatten()
    >>> maps(array, strings(keys), numbers(values)).to_pylist()
    ['{"a":1,"b":null}', '{}', None]
    """
    return _joined(array, pc.binary_join_element_wise(keys, pc.coalesce(values, "null"), ":"), "{", "}")


def _joined(array: pa.Array, items: pa.Array, opening: str, closing: str) -> pa.Array:
    # Offsets of our own: those of a slice, or beside null lists that hold items, do not count the flattened items.
    lengths = pc.fill_null(pc.list_value_length(_lists(array)), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    last = pc.if_else(array.is_valid(), closing, pa.scalar(None, pa.string()))
    return pc.binary_join_element_wise(opening, joined, last, "")


def _lists(array: pa.Array) -> pa.Array:
    # Arrow's functions on lists do not know maps.
    if not pa.types.is_map(array.type):
        return array
    entries = pa.struct([pa.field("key", array.type.key_type, nullable=False), pa.field("value", array.type.item_type)])
    return array.cast(pa.list_(entries))
