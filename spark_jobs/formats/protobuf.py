"""Protobuf messages to JSON texts, by Protobuf's canonical JSON mapping.

Protobuf's own parser (upb) says whether a body is a message. Most schemas are then rendered in bulk (`proto_columns`), the others, and
single rows that the bulk cannot show, message by message with json_format, twenty times as slow. Both ways spell a text alike to the byte,
because duplicates compare payloads byte for byte: fields and keys of maps are sorted by name, nothing stands between tokens, and floats
are as `json_text` spells them. What becomes of a message does not depend on those around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.config.times import ISO_8601
from spark_jobs.formats.proto_columns import TIMESTAMP, NotPlain, ProtoColumns, field_of, object_of
from spark_jobs.formats.proto_messages import MessagePrinter
from spark_jobs.formats.wanted import Tree

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

Rows: TypeAlias = npt.NDArray[np.bool_]

# A message object that is used again keeps the memory of all that it parsed. So many bytes at most, or one body.
_BYTES_FOR_ONE = 65_536
# Bodies that go through columns at once: how many, and after a failure how many in the pieces of these.
_PIECES = (65_536, 4_096, 512, 64)
_BYTES_AT_ONCE = 2**26


class ProtobufBodies:
    """Turns bodies of one message type into JSON texts. `message`: see `proto_schemas`; another one of the same schema costs a tenth of a ms.

    `wanted`: only these fields have to be in the texts, named by their JSON names or their names in the schema; None: all. Below a
    list, a map, or a message with a JSON form of its own the whole value is wanted.

    Raises ValueError if messages inside of messages make a chain of about a thousand types.
    """

    def __init__(self, message: Descriptor, wanted: Tree | None = None) -> None:
        from google.protobuf.message_factory import GetMessageClass

        self._message = message
        self._wanted = wanted or {}
        try:
            self._class = GetMessageClass(message)
        except RecursionError:
            raise ValueError("the Protobuf schema has a chain of messages that is too long") from None
        self._text = MessagePrinter(message, self._wanted).text
        try:
            self._columns: ProtoColumns | None = ProtoColumns(message, self._wanted)
        except NotPlain:
            self._columns = None

    def json_path(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """The path by JSON names. From the first unknown field on, and inside lists, maps and well-known types, names stay as they are."""
        fields = list(self._fields(path))
        return (*(field.json_name for field in fields), *path[len(fields) :])

    def timestamp_unit(self, path: tuple[str, ...]) -> str | None:
        """`ISO_8601` if the field at the path (JSON names or names in the schema) is a google.protobuf.Timestamp, else None."""
        fields = list(self._fields(path))
        if not fields or len(fields) < len(path) or fields[-1].is_repeated or fields[-1].message_type is None:
            return None
        return ISO_8601 if fields[-1].message_type.full_name == TIMESTAMP else None

    def _fields(self, path: tuple[str, ...]) -> Iterator[FieldDescriptor]:
        message: Descriptor | None = self._message
        for name in path:
            field = None if message is None else field_of(message, name)
            if field is None:
                return
            yield field
            message = object_of(field)

    def to_json(self, bodies: pa.Array) -> pa.Array:
        """One JSON text (string) for each body (binary); null where it is null, no message of the type, or has no JSON form.

        A Timestamp out of range, an Any of an unknown type and a string that is not UTF-8 have none. All texts must be smaller than 2 GB
        together; Arrow raises ArrowInvalid if they are not.
        """
        contents = bodies.to_numpy(zero_copy_only=False).tolist()
        plain, by_one = self._sorted(contents)
        if plain.all():
            return self._rendered(bodies)
        texts = pa.nulls(len(bodies), pa.string())
        if plain.any():
            mask = pa.array(plain)
            texts = pc.replace_with_mask(texts, mask, self._rendered(bodies.filter(mask)))
        if by_one.any():
            mask = pa.array(by_one)
            texts = pc.replace_with_mask(texts, mask, self._texts(bodies.filter(mask)))
        return texts

    def _sorted(self, contents: list[bytes | None]) -> tuple[Rows, Rows]:
        """Of the contents that Protobuf accepts, which can be rendered in bulk, and which cannot."""
        from google.protobuf.message import DecodeError

        in_bulk, by_one = np.zeros(len(contents), dtype=bool), np.zeros(len(contents), dtype=bool)
        accepted = by_one if self._columns is None else in_bulk
        has_maps = self._columns is not None and self._columns.has_maps
        room = -1
        for row, content in enumerate(contents):
            if content is None:
                continue
            room -= len(content)
            if room < 0:
                message, room = self._class(), _BYTES_FOR_ONE
                parse = message.ParseFromString
            try:
                parse(content)
            except DecodeError:
                continue
            (by_one if has_maps and _has_unknown_fields(message) else accepted)[row] = True
        return in_bulk, by_one

    def _rendered(self, bodies: pa.Array) -> pa.Array:
        """The texts of messages (no nulls) in bulk."""
        average = bodies.nbytes // max(len(bodies), 1) + 1
        first = min(_PIECES[0], max(_BYTES_AT_ONCE // average, 1))
        texts = [text for piece in _cut(bodies, first) for text in self._pieces(piece, 1)]
        return texts[0] if len(texts) == 1 else pa.concat_arrays(texts or [pa.array([], pa.string())])

    def _pieces(self, bodies: pa.Array, level: int) -> Iterator[pa.Array]:
        assert self._columns is not None
        try:
            texts, strange = self._columns.render(bodies)
        # A panic of ptars is a BaseException of no class that Python could name.
        except BaseException as problem:
            if not isinstance(problem, ValueError) and type(problem).__name__ != "PanicException":
                raise
            if level == len(_PIECES):
                yield self._texts(bodies)
            else:
                for piece in _cut(bodies, _PIECES[level]):
                    yield from self._pieces(piece, level + 1)
            return
        if strange is not None:
            texts = pc.replace_with_mask(texts, strange, self._texts(bodies.filter(strange)))
        yield texts

    def _texts(self, bodies: pa.Array) -> pa.Array:
        return pa.array(map(self._text, bodies.to_numpy(zero_copy_only=False).tolist()), pa.string())


def _cut(bodies: pa.Array, size: int) -> Iterable[pa.Array]:
    return (bodies.slice(begin, size) for begin in range(0, len(bodies), size))


def _has_unknown_fields(message: Any) -> bool:
    """Whether the message or one inside of it has them. Removes them."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() != size)
