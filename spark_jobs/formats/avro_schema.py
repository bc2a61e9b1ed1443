"""An Avro schema as a tree of nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from fastavro import parse_schema

# How many types a record may be inside of. Of records with an optional successor: 50 successors.
DEEPEST = 100
# Characters of a name or a symbol, digits of a decimal behind its point, and the text of a value that has no byte. All are in texts as
# often as a body of few bytes says.
_LONGEST_NAME, _LARGEST_SCALE, _LONGEST_CONSTANT = 1000, 1024, 10_000

_SCALARS = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")
_UNITS = {"timestamp-millis": "epoch_ms", "timestamp-micros": "epoch_us", "timestamp-nanos": "epoch_ns"}


class Bound(NamedTuple):
    """The text of a value has at most `fixed` bytes, and `per_byte` more for each of its bytes, of which it has `least` or more."""

    fixed: int
    per_byte: int
    least: int


@dataclass(eq=False)
class Node:
    """One type of a schema. A named type is one node, wherever it is used; a record inside itself is a circle of nodes.

    `kind`: a name of the specification. `fields`: of a record; `defaults`: of those that have one, as the schema spells it.
    `parts`: the item of an array, the value of a map, the branches of a union.
    """

    kind: str
    logical: str = ""
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    fields: list[tuple[str, Node]] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    parts: list[Node] = field(default_factory=list)
    is_recursive: bool = False

    @property
    def is_decimal(self) -> bool:
        return self.logical == "decimal" and self.kind in ("bytes", "fixed")

    @property
    def is_uuid(self) -> bool:
        """Whether it is a uuid of 16 bytes; one that is a text is a string like others."""
        return self.logical == "uuid" and self.kind == "fixed" and self.size == 16

    @cached_property
    def optional(self) -> Node | None:
        """The other type of a union of null and one type that takes bytes."""
        kinds = [part.kind for part in self.parts]
        if self.kind != "union" or len(kinds) != 2 or "null" not in kinds:
            return None
        other = self.parts[1 - kinds.index("null")]
        return None if other.is_zero_size else other

    # Without the cache a schema of thirty records, each used twice by the next, would take minutes.
    @cached_property
    def is_zero_size(self) -> bool:
        """Whether no value has a byte on the wire."""
        if self.kind == "record":
            return not self.is_recursive and all(node.is_zero_size for _, node in self.fields)
        return self.kind == "null" or (self.kind == "fixed" and self.size == 0)

    @cached_property
    def bound(self) -> Bound:
        """How long texts can be. Only for a type without a record inside itself."""
        parts = [part.bound for part in self.parts or [part for _, part in self.fields]]
        if self.kind == "record":
            labels = sum(len(json.dumps(name)) + 2 for name, _ in self.fields)
            per_byte = max((part.per_byte for part in parts), default=0)
            return Bound(2 + labels + sum(part.fixed for part in parts), per_byte, sum(part.least for part in parts))
        if self.kind == "union":
            fixed, per_byte = (max((part[at] for part in parts), default=0) for at in (0, 1))
            return Bound(fixed, per_byte, 1)
        if self.kind in ("array", "map"):
            # An item with its comma, and the key of a map with its quotes and its colon.
            (fixed, per_byte, least), key = parts[0], self.kind == "map"
            return Bound(2, -(-(fixed + 1 + 3 * key) // (least + key)) + max(per_byte, 6 * key), 1)
        if self.kind == "null":
            return Bound(4, 0, 0)
        longest = max(map(len, self.symbols), default=0)
        # A number or a uuid; a control character is six.
        return Bound(40 + self.scale + longest, 6, self.size if self.kind == "fixed" else 1)


def read_schema(schema: str, named: Sequence[str] = ()) -> Node:
    """The node of a schema; `named`: the schemas it refers to, each after those that it refers to itself.

    Raises ValueError, in one line, if it is no Avro schema, or one of which a body of few bytes has a text without end: it has arrays of
    items without a byte, or names, scales or values without a byte that are very long.
    """
    known: dict[str, Any] = {}
    try:
        for text in named:
            parse_schema(json.loads(text), known)
        return _SchemaReader(known).node(parse_schema(json.loads(schema), known), 0)
    except RecursionError as problem:
        raise ValueError("the Avro schema nests too deep") from problem
    # fastavro raises a dozen types for what is wrong with a schema, KeyError and TypeError among them.
    except Exception as problem:
        reason = " ".join(f"{type(problem).__name__} {problem}".split())
        raise ValueError(f"not an Avro schema that can be read: {reason}") from problem


class _SchemaReader:
    """From a schema that fastavro has checked, with full names, to nodes."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._known = known
        self._named: dict[str, Node] = {}
        self._open: list[str] = []

    def node(self, schema: Any, depth: int) -> Node:
        if depth > DEEPEST:
            raise ValueError(f"its types nest deeper than {DEEPEST}")
        if isinstance(schema, list):
            return Node("union", parts=[self.node(branch, depth + 1) for branch in schema])
        if isinstance(schema, str):
            return self._named_type(schema, self._known[schema], depth) if schema in self._known else _scalar(schema, {})
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._known:
            return self.node(kind, depth)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named_type(_name(schema["name"]), schema, depth)
        if kind in ("array", "map"):
            item = self.node(schema["items" if kind == "array" else "values"], depth + 1)
            if kind == "array" and item.is_zero_size:
                raise ValueError("it has an array of items that take no byte")
            return Node(kind, parts=[item])
        return _scalar(kind, schema)

    def _named_type(self, name: str, schema: Any, depth: int) -> Node:
        if name in self._named:
            self._named[name].is_recursive |= name in self._open
            return self._named[name]
        kind = "record" if schema["type"] == "error" else schema["type"]
        node = self._named[name] = Node(kind, str(schema.get("logicalType", "")))
        if kind == "fixed":
            node.size = _whole_number(schema["size"], "size")
            node.scale = _scale(node, schema)
        elif kind == "enum":
            node.symbols = tuple(map(_name, _list(schema["symbols"], "symbols")))
        else:
            self._open.append(name)
            fields = _list(schema["fields"], "fields")
            node.fields = [(_name(each["name"]), self.node(each["type"], depth + 1)) for each in fields]
            node.defaults = {each["name"]: each["default"] for each in fields if "default" in each}
            self._open.pop()
        if node.is_zero_size and node.bound.fixed > _LONGEST_CONSTANT:
            raise ValueError(f"its type {name} takes no byte, and its text is longer than {_LONGEST_CONSTANT:,} characters")
        return node


# fastavro does not look at everything that a schema says.
def _scalar(kind: str, schema: dict[str, Any]) -> Node:
    if kind not in _SCALARS:
        raise ValueError(f"it has an unknown type {kind}")
    node = Node(kind, str(schema.get("logicalType", "")))
    node.scale = _scale(node, schema)
    return node


def _scale(node: Node, schema: dict[str, Any]) -> int:
    if not node.is_decimal:
        return 0
    scale, precision = _whole_number(schema.get("scale", 0), "scale"), _whole_number(schema["precision"], "precision")
    if scale > min(precision, _LARGEST_SCALE):
        raise ValueError(f"the scale of a decimal is larger than its precision or {_LARGEST_SCALE:,}")
    return scale


def _whole_number(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{what} is no whole number")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name is no string")
    if len(value) > _LONGEST_NAME:
        raise ValueError(f"a name is longer than {_LONGEST_NAME:,} characters: {value[:40]}…")
    # JSON can spell halves of characters, which no text can hold: this raises UnicodeEncodeError.
    value.encode()
    return value


def unit_of(node: Node, path: Sequence[str]) -> str | None:
    """What the schema itself says of the unit of the field at the path: epoch_ms, epoch_us or epoch_ns; None: nothing.

    >>> unit_of(read_schema('["null", {"type": "long", "logicalType": "timestamp-micros"}]'), ())
    'epoch_us'
    """
    found: Node | None = node.optional or node
    for name in path:
        found = dict(found.fields).get(name) if found else None
        found = found and (found.optional or found)
    return _UNITS.get(found.logical) if found and found.kind == "long" else None
