"""One Protobuf message to a JSON text, by Protobuf's own printer: for all schemas, and slow (15 µs for a small message).

The text is spelled as `proto_columns` spells it in bulk, to the byte: fields and keys sorted by name, nothing between tokens, floats as
`json_text.numbers` has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from spark_jobs.formats.json_text import float_text
from spark_jobs.formats.proto_columns import selected
from spark_jobs.formats.wanted import Tree

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

# Objects in objects. Protobuf parses no deeper than 100 messages, but an Any is parsed for itself; Python could not recurse much deeper.
DEEPEST = 128
_ENCODE = msgspec.json.Encoder(order="sorted").encode


class MessagePrinter:
    """Prints messages of one type. `wanted`: only these fields; an empty tree: all."""

    def __init__(self, message: Descriptor, wanted: Tree) -> None:
        from google.protobuf.json_format import Error, MessageToDict
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        self._parse = GetMessageClass(message).FromString
        self._wanted = wanted
        self._pool = message.file.pool
        self._to_dict = MessageToDict
        # What Protobuf raises for content that has no JSON form.
        self._refusals = (DecodeError, Error, ValueError, TypeError, OverflowError, RecursionError)

    def text(self, body: bytes) -> str | None:
        """The text of the body; None if it is no message of the type, or if what is wanted of it has no JSON form."""
        try:
            message = self._parse(body)
            _clear_unwanted(message, self._wanted)
            _check_strings(message)
            content = self._to_dict(message, descriptor_pool=self._pool)
            return _ENCODE(_spelled(content, DEEPEST)).decode()
        except self._refusals:
            return None


def _clear_unwanted(message: Any, wanted: Tree) -> None:
    """Removes the fields of a message that are not wanted."""
    if not wanted:
        return
    trees = {field.name: tree for field, tree in selected(message.DESCRIPTOR, wanted)}
    for field, value in message.ListFields():
        if field.is_extension:
            message.ClearExtension(field)
        elif field.name not in trees:
            message.ClearField(field.name)
        elif trees[field.name]:
            _clear_unwanted(value, trees[field.name])


def _check_strings(message: Any) -> None:
    """Raises ValueError if a string is not UTF-8. In proto2 Protobuf accepts it, has bytes for it, and prints those as Python does."""
    for field, value in message.ListFields():
        parts: list[tuple[Any, Iterable[Any]]] = [(field, value if field.is_repeated else (value,))]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            parts = [(entry["key"], value), (entry["value"], value.values())]
        for kind, values in parts:
            if kind.type == kind.TYPE_STRING and any(isinstance(one, bytes) for one in values):
                raise ValueError("a string is not UTF-8")
            if kind.message_type is not None:
                for one in values:
                    _check_strings(one)


def _spelled(value: Any, deepest: int) -> Any:
    """The value with its floats as texts. Raises ValueError if objects nest deeper than this."""
    if isinstance(value, float):
        return msgspec.Raw(float_text(value, False).encode())
    if isinstance(value, dict):
        if deepest == 0:
            raise ValueError("the message nests too deep")
        return {name: _spelled(item, deepest - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_spelled(item, deepest) for item in value]
    return value
