"""The plain schema that is given to the decoders in place of a schema.

It describes the same bytes with fewer means, so that less of the decoders has to be trusted, and both give the same shapes:

- no logical types, defaults, aliases, namespaces: a value stays what it is on the wire,
- an int is a long, a map is an array of records (`key`, `value`): all entries stay, in their order,
- fields of a record are named f0, f1 …; those without a byte on the wire (null, a record of nulls) are left out,
- a branch of a union of several types is a record whose only field, b0, b1 …, tells which branch it is,
- a record inside itself is written out down to `DEEPEST` types. A body that is deeper is no message, so no body ends the stack.

fastavro believes more bytes than pyruhvro does. For it an enum is a long and a boolean a byte, which `avro_values` checks, and a union
has no branches that are counted from its end.
"""

from __future__ import annotations

import sys
from typing import Any, SupportsIndex

from fastavro import parse_schema

from spark_jobs.formats.avro_schema import DEEPEST, Node

# More columns than this in one record batch cost more than they save.
_MOST_COLUMNS = 1000
# No body has so many bytes.
_IMPOSSIBLE_BYTES = 2**40

_SCALARS_IN_BULK = ("boolean", "int", "long", "float", "double", "string", "bytes", "enum")


def bulk_schema(node: Node) -> dict[str, Any]:
    """The plain schema for pyruhvro."""
    return _PlainSchema(is_bulk=True).whole(node)


def alone_schema(node: Node) -> Any:
    """The plain schema for fastavro, as its reader takes it."""
    parsed: Any = parse_schema(_PlainSchema(is_bulk=False).whole(node))
    for each in (parsed, *parsed["__named_schemas"].values()):
        _guard_unions(each)
    return parsed


def can_decode_in_bulk(node: Node) -> bool:
    """Whether pyruhvro may be given the plain schema: it has only types of which tests show that it reads them as fastavro does.

    It knows no fixed (so no duration, and no decimal or uuid on it), no union of several types and no record inside itself. A map of what
    takes no byte, and a record of nothing else, are left to fastavro, too: they are rare.
    """
    return _columns(node) <= _MOST_COLUMNS


def _columns(node: Node) -> int:
    """The Arrow columns of the plain schema; more than `_MOST_COLUMNS` if it has a type that cannot be decoded in bulk."""
    if node.kind in _SCALARS_IN_BULK:
        return 1
    parts: list[Node] = []
    if node.kind == "record" and not node.is_recursive:
        parts = [part for _, part in node.fields if not part.is_zero_size]
    elif node.kind == "union" and node.optional:
        parts = [node.optional]
    elif node.kind in ("array", "map"):
        parts = node.parts
    count = 1 if parts else _MOST_COLUMNS + 1
    for part in parts:
        # A schema of a few named types can have more columns than memory.
        if count <= _MOST_COLUMNS:
            count += _columns(part)
    return count


class _PlainSchema:
    """Makes the plain schema of a node. `is_bulk`: for pyruhvro, for which bytes are a string, of the same form on the wire."""

    def __init__(self, is_bulk: bool) -> None:
        self._is_bulk = is_bulk
        # Of a record and its depth.
        self._names: dict[tuple[Node, int], str] = {}
        self._count = 0

    def whole(self, node: Node) -> dict[str, Any]:
        """A record whose only field, f0, is the node: pyruhvro reads nothing but records."""
        return self._record([("f0", self._plain(node, 0))])

    def _plain(self, node: Node, depth: int) -> Any:
        if node.kind == "record":
            return self._record_of(node, depth)
        if node.kind == "enum" and self._is_bulk:
            return {"type": "enum", "name": self._name(), "symbols": list(node.symbols)}
        if node.kind == "boolean" and not self._is_bulk:
            return self._fixed(1)
        if node.kind == "fixed":
            return self._fixed(node.size)
        if node.kind == "array":
            return {"type": "array", "items": self._plain(node.parts[0], depth + 1)}
        if node.kind == "map":
            value = node.parts[0]
            entry = [("key", "string")] + ([] if value.is_zero_size else [("value", self._plain(value, depth + 1))])
            return {"type": "array", "items": self._record(entry)}
        if node.kind == "union":
            return [self._branch(rank, part, node, depth + 1) for rank, part in enumerate(node.parts)]
        if node.kind == "bytes":
            return "string" if self._is_bulk else "bytes"
        return "long" if node.kind in ("int", "enum") else node.kind

    def _branch(self, rank: int, part: Node, union: Node, depth: int) -> Any:
        if part.kind == "null":
            return "null"
        plain = "null" if part.is_zero_size else self._plain(part, depth)
        return plain if union.optional else self._record([(f"b{rank}", plain)])

    def _record_of(self, node: Node, depth: int) -> Any:
        if depth > DEEPEST:
            return self._fixed(_IMPOSSIBLE_BYTES)
        if name := self._names.get((node, depth)):
            return name
        name = self._names[node, depth] = self._name()
        parts = enumerate(part for _, part in node.fields)
        return self._record(
            [(f"f{rank}", self._plain(part, depth + 1)) for rank, part in parts if not part.is_zero_size], name
        )

    def _record(self, fields: list[tuple[str, Any]], name: str = "") -> dict[str, Any]:
        return {"type": "record", "name": name or self._name(), "fields": [{"name": n, "type": t} for n, t in fields]}

    def _fixed(self, size: int) -> dict[str, Any]:
        return {"type": "fixed", "name": self._name(), "size": size}

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"


class _Branches(list[Any]):
    """The branches of a union. None is at a negative index, which fastavro takes from a body as it is."""

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, int) and index < 0:
            raise IndexError(f"a union has no branch {index}")
        return super().__getitem__(index)

    def __len__(self) -> int:
        # Compiled code adds it to a negative index, and asks for the sum.
        return sys.maxsize


def _guard_unions(schema: Any) -> Any:
    """The plain schema with `_Branches`, most of it changed in place."""
    if isinstance(schema, list):
        return schema if isinstance(schema, _Branches) else _Branches(map(_guard_unions, schema))
    if isinstance(schema, dict):
        for each in schema.get("fields", ()):
            each["type"] = _guard_unions(each["type"])
        if "items" in schema:
            schema["items"] = _guard_unions(schema["items"])
    return schema
