"""The JSON text of one Avro value, as fastavro gives it for the plain schema.

A function from values to texts is made once for each type. Texts are the same as those that `avro_columns` makes of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any
from uuid import UUID

from spark_jobs.formats.avro_schema import Node
from spark_jobs.formats.json_text import float_text
from spark_jobs.formats.wanted import Tree, below, is_wanted

Render = Callable[[Any], str]
BoundedRender = Callable[[Any, int], str]
# More digits than any decimal has; Python's time for them grows with their square.
_LONGEST_DECIMAL = 1024


def value_text(node: Node, wanted: Tree | None) -> BoundedRender:
    """The function from a value of the type, and the most characters of a text, to its text.

    It raises ValueError or IndexError for what is no value of the type. It raises ValueError if the text is longer because of what the
    schema says (names, symbols, scales), before it has grown. What a body says itself is not counted: no byte is more than six characters.
    """
    renders = _Renders()
    of_value = renders.of(node, wanted)

    def render(value: Any, most: int) -> str:
        renders.left = most
        return of_value(value)

    return render


def constant_text(node: Node) -> str:
    """The text of a type whose values have no byte.

    >>> constant_text(Node("record", fields=[("a", Node("null"))]))
    '{"a":null}'
    """
    if node.kind == "null":
        return "null"
    if node.kind == "record":
        return f"{{{','.join([f'{encode_basestring(name)}:{constant_text(part)}' for name, part in node.fields])}}}"
    return decimal_text(b"", node.scale) if node.is_decimal else '""'


def bytes_text(value: bytes) -> str:
    r"""A string of the code points 0 to 255, one a byte, as in Avro's own JSON.

    >>> bytes_text(b"a\xff") == '"aÿ"'
    True
    """
    return encode_basestring(value.decode("latin-1"))


def decimal_text(unscaled: bytes, scale: int) -> str:
    """The number, with each digit of its scale. `unscaled`: two's complement, the highest byte first. Raises ValueError if it is too long.

    >>> decimal_text((12340).to_bytes(4), 3), decimal_text(b"\\xff", 2), decimal_text(b"", 0)
    ('12.340', '-0.01', '0')
    """
    if len(unscaled) > _LONGEST_DECIMAL:
        raise ValueError(f"a decimal of {len(unscaled)} bytes")
    number = int.from_bytes(unscaled, signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{text}" if number < 0 else text


class _Renders:
    def __init__(self) -> None:
        # Of records as a whole: one that is inside itself meets its own function here.
        self._of_record: dict[Node, Render] = {}
        # Characters that the text may still grow by.
        self.left = 0

    def of(self, node: Node, wanted: Tree | None) -> Render:
        if node.is_zero_size:
            constant = constant_text(node)
            return self._counted(lambda _: constant)
        if node.kind == "record":
            return self._record(node, wanted)
        if node.kind == "union":
            return self._union(node, wanted)
        if node.kind == "array":
            item = self.of(node.parts[0], None)
            return lambda values: f"[{','.join(map(item, values))}]"
        if node.kind == "map":
            return self._map(node)
        if node.kind == "enum":
            return self._counted(_symbol(node))
        return self._counted(_scalar(node)) if node.is_decimal else _scalar(node)

    def _count(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise ValueError("the text is too long")

    def _counted(self, of_value: Render) -> Render:
        def render(value: Any) -> str:
            text = of_value(value)
            self._count(len(text))
            return text

        return render

    def _record(self, node: Node, wanted: Tree | None) -> Render:
        if not wanted and node in self._of_record:
            return self._of_record[node]
        parts: list[tuple[str, str, Render]] = []
        labels = 0

        def render(value: Any) -> str:
            self._count(labels)
            return f"{{{','.join([label + text(value.get(name)) for label, name, text in parts])}}}"

        if not wanted:
            self._of_record[node] = render
        for rank, (name, part) in enumerate(node.fields):
            if is_wanted(name, wanted):
                parts.append((f"{encode_basestring(name)}:", f"f{rank}", self.of(part, below(name, wanted))))
        labels = sum(len(label) for label, _, _ in parts)
        return render

    def _union(self, node: Node, wanted: Tree | None) -> Render:
        if node.optional:
            other = self.of(node.optional, wanted)
            return lambda value: "null" if value is None else other(value)
        branches = {f"b{rank}": self.of(part, wanted) for rank, part in enumerate(node.parts)}

        def render(value: Any) -> str:
            if value is None:
                return "null"
            ((name, inner),) = value.items()
            return branches[name](inner)

        return render

    def _map(self, node: Node) -> Render:
        of_value = self.of(node.parts[0], None)

        def render(entries: Any) -> str:
            texts = [f"{encode_basestring(entry['key'])}:{of_value(entry.get('value'))}" for entry in entries]
            return f"{{{','.join(texts)}}}"

        return render


def _scalar(node: Node) -> Render:
    if node.is_decimal:
        return lambda value: decimal_text(value, node.scale)
    if node.is_uuid:
        return lambda value: f'"{UUID(bytes=value)}"'
    renders: dict[str, Render] = {
        "boolean": _boolean,
        "float": lambda value: float_text(value, True),
        "double": lambda value: float_text(value, False),
        "string": encode_basestring,
        "bytes": bytes_text,
        "fixed": bytes_text,
        "int": str,
        "long": str,
    }
    return renders[node.kind]


def _symbol(node: Node) -> Render:
    texts = [encode_basestring(symbol) for symbol in node.symbols]

    def render(index: int) -> str:
        if index < 0:
            raise IndexError(f"an enum has no symbol {index}")
        return texts[index]

    return render


def _boolean(value: bytes) -> str:
    if value not in (b"\x00", b"\x01"):
        raise ValueError(f"a boolean of {value!r}")
    return "true" if value == b"\x01" else "false"
