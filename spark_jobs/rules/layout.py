"""Where the fields of an event are in a record, and how they are found in JSON texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from include.config.pipeline import PROTOBUF, Pipeline, Side
from include.config.sources import Source, parse_source
from include.config.times import Times

RAW_OR_NOTHING = (msgspec.Raw, msgspec.Raw(b""))
Path = tuple[str, ...]


class Layout(NamedTuple):
    """`key`: the key fields in order; `sources`: where each of them is; `time`: where the time is. `only`: sources, and the texts that each may have.

    `key_text`: what is done to key fields (`include.config.setting_types`). `has_quoted_integers`: the format spells integers as strings.
    """

    key: tuple[str, ...]
    sources: tuple[Source, ...]
    time: Source
    times: Times
    payload: Source
    only: tuple[tuple[Source, frozenset[str]], ...] = ()
    key_text: tuple[str, ...] = ()
    has_quoted_integers: bool = False

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """The key fields in order, the time, the payload, and what `only` asks."""
        return *self.sources, self.time, self.payload, *(source for source, _ in self.only)


def layout_of(pipeline: Pipeline, side: Side) -> Layout:
    """The layout of a side's records."""
    own, times = dict(side.key), pipeline.times(side)
    return Layout(
        pipeline.key,
        tuple(parse_source(own.get(name, name)) for name in pipeline.key),
        parse_source(times.source),
        times,
        parse_source(side.payload_from or side.payload),
        tuple((parse_source(where), frozenset(allowed)) for where, allowed in side.only),
        pipeline.key_text,
        side.format == PROTOBUF,
    )


class Finder:
    """Finds the tokens at some paths in JSON objects. The paths must not be empty.

    >>> Finder([("a", "b"), ("a",), ("c",), ("a", "b", "d")]).find(b'{"a": {"b": [1]}, "x": 2}')
    [b'[1]', b'{"b": [1]}', b'', b'']
    """

    def __init__(self, paths: list[Path]) -> None:
        self._size = len(paths)
        self._root = _Node(dict(enumerate(paths)))

    def find(self, text: bytes) -> list[bytes]:
        """The token at each path, empty where there is none; raises msgspec.DecodeError if the text is not one JSON object."""
        tokens = [b""] * self._size
        self._root.find(text, tokens)
        return tokens


class _Node:
    """One object on the way to some tokens."""

    def __init__(self, paths: Mapping[int, Path]) -> None:
        inner: dict[str, dict[int, Path]] = {}
        for token, (name, *rest) in paths.items():
            inner.setdefault(name, {})[token] = tuple(rest)
        self._children = [
            (
                [token for token, rest in below.items() if not rest],
                _below({token: rest for token, rest in below.items() if rest}),
            )
            for below in inner.values()
        ]
        attributes: list[Any] = [(f"f{number}", *RAW_OR_NOTHING) for number in range(len(inner))]
        names = {f"f{number}": name for number, name in enumerate(inner)}
        self._decode = msgspec.json.Decoder(msgspec.defstruct("Body", attributes, rename=names, gc=False)).decode

    def find(self, text: bytes, tokens: list[bytes]) -> None:
        body: Any = self._decode(text)
        for name, (here, inner) in zip(body.__struct_fields__, self._children, strict=True):
            token = bytes(getattr(body, name))
            for number in here:
                tokens[number] = token
            if inner and token[:1] == b"{":
                inner.find(token, tokens)


def _below(paths: Mapping[int, Path]) -> _Node | None:
    return _Node(paths) if paths else None


def body_struct(fields: Mapping[Path, tuple[Any, ...]]) -> tuple[Any, dict[Path, str]]:
    """A struct for JSON objects with a value at each path, and path -> dotted name of its attribute.

    `fields`: path -> type, and its default where the value may be absent; no path may begin with another one. The objects on the way to a
    value without a default must be there.
    """
    names: dict[Path, str] = {}
    return _struct(fields, (), "", names), names


def _struct(fields: Mapping[Path, tuple[Any, ...]], above: Path, dotted: str, names: dict[Path, str]) -> Any:
    inner: dict[str, dict[Path, tuple[Any, ...]]] = {}
    for (name, *rest), kind in fields.items():
        inner.setdefault(name, {})[tuple(rest)] = kind
    attributes: list[Any] = []
    for number, (name, below) in enumerate(inner.items()):
        attribute = f"f{number}"
        if () in below:
            names[*above, name] = dotted + attribute
            attributes.append((attribute, *below[()]))
            continue
        struct = _struct(below, (*above, name), f"{dotted}{attribute}.", names)
        may_be_absent = all(len(kind) > 1 for kind in below.values())
        attributes.append(
            (attribute, struct, msgspec.field(default_factory=struct)) if may_be_absent else (attribute, struct)
        )
    rename = {f"f{number}": name for number, name in enumerate(inner)}
    return msgspec.defstruct("Body", sorted(attributes, key=len), rename=rename, gc=False)
