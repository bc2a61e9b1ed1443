"""Protobuf messages to JSON texts in bulk: ptars makes Arrow columns of their fields, `proto_texts` makes texts of the columns.

ptars does not see the schema but a plain copy of it, made here: ptars would round times and show enums without their meaning, and only
wanted fields are decoded. It must be given only messages that Protobuf accepted: it takes lengths and tags that Protobuf refuses.

What columns do not show as Protobuf prints it is left to Protobuf: schemas with a group, a high field number, a recursive or extendable
message, Any, Struct, Value, ListValue, FieldMask, or a map to a closed enum or to a message with a form of its own; and the rows that
`proto_texts` calls strange.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.formats.proto_texts import (
    Field,
    Fields,
    Render,
    boolean_texts,
    bytes_texts,
    enum_texts,
    joined,
    list_texts,
    long_texts,
    map_texts,
    number_texts,
    object_texts,
    single_texts,
    string_texts,
    struct_texts,
    wrapped_texts,
)
from spark_jobs.formats.proto_times import duration_texts, timestamp_texts
from spark_jobs.formats.wanted import Tree

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

TIMESTAMP = "google.protobuf.Timestamp"
_TIMES = {TIMESTAMP: timestamp_texts, "google.protobuf.Duration": duration_texts}
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value" for kind in "Double Float Int64 UInt64 Int32 UInt32 Bool String Bytes".split()
)
_OTHERS = frozenset(f"google.protobuf.{name}" for name in "Any FieldMask ListValue Struct Value".split())
# Messages that are no JSON objects of their fields.
_OWN_FORM = _WRAPPERS | _OTHERS | _TIMES.keys()
# A schema with more fields, each counted at every place where it is, is left to Protobuf: few messages can make a billion places.
_MOST_FIELDS = 1_000
# ptars takes 16 bytes for each number up to the highest one, and ends the process if it gets no 8 GB.
_HIGHEST_NUMBER = 10_000
# Protobuf parses no message that is inside of more.
_DEEPEST = 100


class NotPlain(Exception):
    """Columns cannot show messages of this schema."""


def selected(message: Descriptor, wanted: Tree) -> list[tuple[FieldDescriptor, Tree]]:
    """The wanted fields in the order of their JSON names, with what is wanted of each. Names of unknown fields are nothing."""
    if not wanted:
        return [(field, {}) for field in sorted(message.fields, key=lambda field: field.json_name)]
    chosen: dict[str, tuple[FieldDescriptor, Tree]] = {}
    for name, tree in wanted.items():
        if (field := field_of(message, name)) is not None:
            tree = {} if object_of(field) is None else tree
            chosen[field.json_name] = field, _both(chosen[field.json_name][1], tree) if field.json_name in chosen else tree
    return [chosen[name] for name in sorted(chosen)]


def _both(one: Tree, other: Tree) -> Tree:
    if not one or not other:
        return {}
    return {name: _both(one.get(name, tree), other.get(name, tree)) for name, tree in {**one, **other}.items()}


def field_of(message: Descriptor, name: str) -> FieldDescriptor | None:
    """The field of this JSON name, or else of this name in the schema; None if there is none."""
    for field in message.fields:
        if field.json_name == name:
            return field
    return message.fields_by_name.get(name)


def object_of(field: FieldDescriptor) -> Descriptor | None:
    """The message whose fields are those of the field's JSON object; None if it is no such object."""
    message = field.message_type
    return None if message is None or field.is_repeated or message.full_name in _OWN_FORM else message


class ProtoColumns:
    """Renders messages of one type. `wanted`: only these fields have to be in the texts; an empty tree: all."""

    def __init__(self, message: Descriptor, wanted: Tree) -> None:
        """Raises NotPlain if the schema has something that is left to Protobuf.

        `has_maps`: of messages with unknown fields, these texts may be wrong. Protobuf leaves out a map's entry that has one.
        """
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool
        from ptars import HandlerPool

        if message.full_name in _OWN_FORM:
            raise NotPlain
        self._file = FileDescriptorProto(name="plain.proto", package="plain", syntax="proto3")
        self._room = _MOST_FIELDS
        self.has_maps = False
        name, self._fields = self._message(message, wanted, frozenset())
        pool = DescriptorPool()
        pool.AddSerializedFile(self._file.SerializeToString())
        plain = pool.FindMessageTypeByName(f"plain.{name}")
        self._handler = HandlerPool([plain.file]).get_for_message(plain)

    def render(self, bodies: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """The texts of messages (binary, no nulls) that Protobuf accepts, and which rows (bool) are strange: their texts mean nothing.

        Raises ValueError if ptars refuses a message, as one of proto2 with a string that is not UTF-8.
        """
        batch = self._handler.array_to_record_batch(bodies)
        parts, strange = object_texts(self._fields, batch.column)
        return joined(parts) if self._fields.fields else pa.repeat("{}", len(bodies)), strange

    def _message(self, message: Descriptor, wanted: Tree, around: frozenset[str]) -> tuple[str, Fields]:
        """Adds the plain copy of a message that is inside of those `around`. Returns its name and its fields."""
        chosen = selected(message, wanted)
        self._room -= len(chosen)
        if message.full_name in around or (message.is_extendable and not wanted) or self._room < 0 or len(around) > _DEEPEST:
            raise NotPlain
        plain = self._new()
        fields = [self._field(plain, field, tree, around | {message.full_name}) for field, tree in chosen]
        names, oneofs = {field.name for field, _ in chosen}, []
        for oneof in message.oneofs:
            present = [field for field in oneof.fields if field.name in names]
            if len(oneof.fields) > 1 and present:
                # The last field of a oneof counts, so those that are not wanted are needed, too.
                for field in oneof.fields:
                    if field not in present:
                        self._declared(plain, field, self._new().name)
                oneofs.append([_column(field) for field in oneof.fields])
        return plain.name, Fields(fields, oneofs)

    def _new(self) -> DescriptorProto:
        return self._file.message_type.add(name=f"M{len(self._file.message_type)}")

    def _field(self, plain: DescriptorProto, field: FieldDescriptor, wanted: Tree, around: frozenset[str]) -> Field:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return Field(field.json_name, _column(field), self._map(plain, field, field.message_type, around), _is_empty)
        name, render = self._value(field, wanted, around)
        self._declared(plain, field, name)
        if field.is_repeated:
            return Field(field.json_name, _column(field), partial(list_texts, render), _is_empty)
        return Field(field.json_name, _column(field), render, pc.is_null if field.has_presence else _is_default)

    def _value(self, field: FieldDescriptor, wanted: Tree, around: frozenset[str]) -> tuple[str, Render]:
        """The name of the plain copy of the field's message, if it is one, and how its values are rendered."""
        if field.enum_type is not None:
            return "", partial(enum_texts, field.enum_type)
        if field.message_type is None:
            return "", _SCALARS.get(field.type, number_texts)
        kind = field.message_type.full_name
        if kind in _OTHERS:
            raise NotPlain
        name, fields = self._message(field.message_type, {} if kind in _OWN_FORM else wanted, around)
        if kind in _WRAPPERS:
            return name, partial(wrapped_texts, fields.fields[0].render)
        if kind in _TIMES:
            return name, _TIMES[kind]
        return name, partial(struct_texts, fields)

    def _declared(self, plain: DescriptorProto, field: FieldDescriptor, message: str) -> None:
        """Adds the field to the plain message. `message`: the name of its plain message, if it is one."""
        declared = _plain_field(plain, field, _column(field), message)
        if field.is_repeated:
            declared.label = declared.LABEL_REPEATED
        elif field.has_presence and not declared.type_name:
            declared.proto3_optional = True
            declared.oneof_index = len(plain.oneof_decl)
            plain.oneof_decl.add(name=f"_{declared.name}")

    def _map(self, plain: DescriptorProto, field: FieldDescriptor, entries: Descriptor, around: frozenset[str]) -> Render:
        key, value = (entries.fields_by_name[name] for name in ("key", "value"))
        if value.enum_type is not None and value.enum_type.is_closed:
            raise NotPlain
        if value.message_type is not None and value.message_type.full_name in _OWN_FORM:
            raise NotPlain
        name, render = self._value(value, {}, around)
        # On the wire a map is a list of entries. ptars panics over an entry of a map that has no message.
        entry = self._new()
        _plain_field(entry, key, "key", "")
        _plain_field(entry, value, "value", name)
        declared = _plain_field(plain, field, _column(field), entry.name)
        declared.label = declared.LABEL_REPEATED
        self.has_maps = True
        return partial(map_texts, render)


def _plain_field(plain: DescriptorProto, field: FieldDescriptor, name: str, message: str) -> FieldDescriptorProto:
    if field.type == field.TYPE_GROUP or field.number > _HIGHEST_NUMBER:
        raise NotPlain
    declared = plain.field.add(name=name, number=field.number, type=field.type, label=field.LABEL_OPTIONAL)
    if field.enum_type is not None:
        declared.type = declared.TYPE_INT32
    if field.message_type is not None:
        declared.type_name = f".plain.{message}"
    return declared


def _column(field: FieldDescriptor) -> str:
    return f"f{field.number}"


def _is_empty(column: pa.Array) -> pa.Array:
    """Which lists or maps have no items."""
    return pa.array(column.offsets.to_numpy()[1:] == column.offsets.to_numpy()[:-1])


def _is_default(column: pa.Array) -> pa.Array:
    """Which values of a field without presence Protobuf counts as absent. A zero with a sign is present."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return pc.equal(pc.binary_length(column), 0)
    if pa.types.is_boolean(column.type):
        return pc.invert(column)
    if pa.types.is_floating(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    return pc.equal(column, 0)


# FieldDescriptor's numbers of the types; the module that names them is imported late.
_FLOAT, _INT64, _UINT64, _FIXED64, _BOOL, _STRING, _BYTES, _SFIXED64, _SINT64 = 2, 3, 4, 6, 8, 9, 12, 16, 18
_SCALARS: dict[int, Render] = {
    _FLOAT: single_texts,
    _BOOL: boolean_texts,
    _STRING: string_texts,
    _BYTES: bytes_texts,
    **dict.fromkeys((_INT64, _UINT64, _FIXED64, _SFIXED64, _SINT64), long_texts),
}
