"""From columns of Protobuf fields to JSON texts, spelled as Protobuf's JSON mapping says.

The columns are those of plain messages (see `proto_columns`). A value that they cannot show rightly is strange: its text means nothing,
and its row has to be printed by Protobuf.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.formats.json_text import UnescapedTexts, booleans, field_strings, flat, lists, maps, numbers, strings

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor

# What the JSON texts of a column's values consist of: texts for all rows, and columns with a text for each. Joined as late as possible:
# a row's text is then copied once. Of rows without a value they mean nothing.
Parts = list[pa.Array | str]
# The texts, and which are strange (bool, no nulls); None: none of them.
Texts = tuple[Parts, pa.Array | None]
Render = Callable[[pa.Array], Texts]

_NULL_VALUE = "google.protobuf.NullValue"
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


class Field(NamedTuple):
    """A field of a plain message: its JSON name, its column, how its values are rendered, and which of them the text leaves out."""

    name: str
    column: str
    render: Render
    left_out: Callable[[pa.Array], pa.Array]


class Fields(NamedTuple):
    """The fields of a plain message in the order of the text. `oneofs`: the columns of each oneof."""

    fields: Sequence[Field]
    oneofs: Sequence[Sequence[str]]


def object_texts(fields: Fields, columns: Callable[[str], pa.Array]) -> Texts:
    """One object a row. `columns`: the column of a name."""
    # Not by `json_text.objects`: it makes a column of each object, a third slower for messages in messages.
    parts: Parts = ["{"]
    strange: list[pa.Array | None] = []
    # Whether a row already has a field, so that a comma is due.
    begun: pa.Array | bool = False
    for field in fields.fields:
        column = columns(field.column)
        value, odd = field.render(column)
        strange.append(odd)
        label = f"{json.dumps(field.name, ensure_ascii=False)}:"
        comma = [","] if begun is True else [] if begun is False else [pc.if_else(begun, ",", "")]
        left_out = field.left_out(column)
        if pc.any(left_out).as_py():
            parts.append(pc.if_else(left_out, "", joined([*comma, label, *value])))
            if begun is not True:
                begun = pc.invert(left_out) if begun is False else pc.or_(begun, pc.invert(left_out))
        else:
            parts += [*comma, label, *value]
            begun = True
    for oneof in fields.oneofs:
        present = sum(columns(name).is_valid().to_numpy(zero_copy_only=False).astype(np.int8) for name in oneof)
        strange.append(rows_of(np.greater(present, 1)))
    return [*parts, "}"], _any_of(strange)


def struct_texts(fields: Fields, column: pa.Array) -> Texts:
    """Messages that are regular objects."""
    parts, strange = object_texts(fields, column.field)
    # Without a field the parts do not tell how many rows there are.
    return parts if fields.fields else [pa.repeat("{}", len(column))], strange


def joined(parts: Parts) -> pa.Array:
    """One text a row. At least one of the parts must be a column."""
    merged: Parts = []
    for part in parts:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged[0] if len(merged) == 1 else pc.binary_join_element_wise(*merged, "")


def string_texts(column: pa.Array) -> Texts:
    # Rows without a value need no null, which would cost as much as the texts.
    texts = field_strings(pa.Array.from_buffers(pa.string(), len(column), [None, *column.buffers()[1:]], 0, column.offset))
    return ['"', texts.texts, '"'] if isinstance(texts, UnescapedTexts) else [texts], None


def bytes_texts(column: pa.Array) -> Texts:
    values = column.to_numpy(zero_copy_only=False).tolist()
    encoded = pa.array([None if value is None else b64encode(value) for value in values], pa.binary())
    return ['"', encoded.cast(pa.string()), '"'], None


def boolean_texts(column: pa.Array) -> Texts:
    return [booleans(column)], None


def number_texts(column: pa.Array) -> Texts:
    return [numbers(column)], None


def single_texts(column: pa.Array) -> Texts:
    """Floats of 32 bits. Protobuf prints at least six digits, so numbers below the normal ones, which have fewer, are strange."""
    size = pc.abs(column)
    return [numbers(column)], _some(pc.and_(pc.greater(size, 0), pc.less(size, _SMALLEST_NORMAL)))


def long_texts(column: pa.Array) -> Texts:
    """Integers of 64 bits are strings."""
    return ['"', column.cast(pa.string()), '"'], None


def enum_texts(enum: EnumDescriptor, column: pa.Array) -> Texts:
    """Names; of an unknown number that number, or strange if the enum is closed."""
    if enum.full_name == _NULL_VALUE:
        return [pa.repeat("null", len(column))], None
    encoded = pc.dictionary_encode(column)
    numbers_ = encoded.dictionary.to_pylist()
    known = [enum.values_by_number.get(number) for number in numbers_]
    names = [str(number) if value is None else json.dumps(value.name) for number, value in zip(numbers_, known, strict=True)]
    texts = pa.array(names, pa.string()).take(encoded.indices)
    if not enum.is_closed or None not in known:
        return [texts], None
    unknown = pa.array([value is None for value in known], pa.bool_())
    return [texts], _some(unknown.take(encoded.indices))


def wrapped_texts(render: Render, column: pa.Array) -> Texts:
    """Wrappers are the value that they hold."""
    return render(column.field(0))


def list_texts(render: Render, column: pa.Array) -> Texts:
    """Repeated fields."""
    items, strange = render(flat(column))
    return [lists(column, joined(items))], _lists_with(column, strange)


def map_texts(render: Render, column: pa.Array) -> Texts:
    """Maps, in the order of their keys' texts, so that the text does not depend on the order on the wire.

    A map is strange if a key occurs twice in it. An entry without a value has the default of its type, as the columns do.
    """
    keys, values = flat(column).flatten()
    names = keys.cast(pa.string())
    parts, strange = render(values)
    texts = joined(parts)
    owners = np.repeat(np.arange(len(column)), _lengths(column))
    if not _ascend(owners, names):
        order = pc.sort_indices(pa.table({"owner": owners, "name": names}), [("owner", "ascending"), ("name", "ascending")])
        names, texts = names.take(order), texts.take(order)
        twice = np.append(_follows(owners, names, pc.equal), False)
        strange = _any_of([None if strange is None else strange.take(order), rows_of(twice)])
    return [maps(column, strings(names), texts)], _lists_with(column, strange)


def _ascend(owners: npt.NDArray[np.int64], names: pa.Array) -> bool:
    """Whether in each list the names ascend, none of them twice."""
    same_list = owners[1:] == owners[:-1]
    return bool((_follows(owners, names, pc.less) | ~same_list).all())


def _follows(
    owners: npt.NDArray[np.int64], names: pa.Array, compare: Callable[[pa.Array, pa.Array], pa.Array]
) -> npt.NDArray[np.bool_]:
    """For each name but the last, whether it compares so to the next one, in the same list."""
    if len(names) < 2:
        return np.zeros(max(len(names) - 1, 0), dtype=bool)
    result: npt.NDArray[np.bool_] = compare(names[:-1], names[1:]).to_numpy(zero_copy_only=False)
    return result & (owners[1:] == owners[:-1])


def _lists_with(column: pa.Array, strange: pa.Array | None) -> pa.Array | None:
    """The lists of the column that have a strange item."""
    if strange is None:
        return None
    found = np.zeros(len(column), dtype=bool)
    found[np.repeat(np.arange(len(column)), _lengths(column))[strange.to_numpy(zero_copy_only=False)]] = True
    return bools(found)


def _lengths(column: pa.Array) -> npt.NDArray[np.int32]:
    lengths: npt.NDArray[np.int32] = np.diff(column.offsets.to_numpy())
    return lengths


def bools(rows: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(rows, pa.bool_())


def rows_of(rows: npt.NDArray[np.bool_]) -> pa.Array | None:
    """The rows; None if there are none."""
    return bools(rows) if rows.any() else None


def _some(rows: pa.Array) -> pa.Array | None:
    """The rows without nulls; None if there are none."""
    return pc.fill_null(rows, False) if pc.any(rows).as_py() else None


def _any_of(columns: Sequence[pa.Array | None]) -> pa.Array | None:
    result = None
    for column in columns:
        if column is not None:
            result = column if result is None else pc.or_(result, column)
    return result
