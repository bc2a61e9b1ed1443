"""Names of columns for key fields and payloads, and which part of a message is its payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from include.config.setting_types import DIRECTION_COLUMNS, RESERVED_COLUMNS
from include.config.sources import KEY, VALUE, Source, is_source, parse_source, source_text
from spark_jobs.joining.fields import USUAL, Path
from spark_jobs.joining.keys import Key

_LONGEST = 64
# Messages that are weighed for the payload, and the share of their bytes beside key and time that it has to have.
_WEIGHED, _MAIN = 200, 0.5


class Payload(NamedTuple):
    """`source`, a column `name`, and its `share` of the bytes beside key and time: the mean of all messages.

    `missing`: the share of messages without it. `others`: other parts that most messages have; `rare`: how many parts fewer have.
    """

    source: str
    name: str
    share: float
    missing: float
    others: list[str]
    rare: int


def key_names(key: Key) -> list[str]:
    """A column name for each field of the key, in their order: that of a plain field if a side has one."""
    names: list[str] = []
    for field in key.fields:
        sources = [parse_source(column.field.source) for column in (field.left, field.right)]
        plain = [source.path[0] for source in sources if source.part == VALUE and len(source.path) == 1]
        path = (sources[0] if sources[0] != (KEY, ()) else sources[1]).path
        names.append(_free(plain[0] if plain else "_".join(path) or "record_key", names))
    return names


def choose_payload(topic: str, bodies: Sequence[Any], used: Collection[str], taken: Collection[str], side: str) -> Payload:
    """The heaviest part of the messages beside the `used` sources if it is most of the rest, otherwise the whole message.

    `bodies`: those of the messages with a key, at least one. `taken`: names that other columns have. `side`: left or right, for a name that
    nothing else gives.
    """
    paths = {source.path for source in map(parse_source, used) if source.part == VALUE}
    weighed = bodies[:: max(len(bodies) // _WEIGHED, 1)]
    # One heavy message weighs as much as any other.
    shares, numbers = dict[Path, float](), Counter[Path]()
    for body in weighed:
        sizes = {path: len(msgspec.json.encode(value)) for path, value in _parts(body, paths, ())}
        numbers.update(sizes.keys())
        whole = sum(sizes.values())
        for path, size in sizes.items():
            shares[path] = shares.get(path, 0.0) + size / whole
    usual = [path for path in sorted(shares, key=shares.__getitem__, reverse=True) if numbers[path] >= USUAL * len(weighed)]
    rare = len(numbers) - len(usual)
    named = [path for path in usual if is_source(Source(VALUE, path))]
    sources = [source_text(Source(VALUE, path)) for path in named]
    share = shares[named[0]] / len(weighed) if named else 0.0
    if share < _MAIN:
        return Payload("$value", _free(topic, [*taken], side), 1.0, 0.0, sources, rare)
    missing = sum(_is_without(body, named[0]) for body in bodies) / len(bodies)
    return Payload(sources[0], _free(named[0][-1], [*taken], side), share, missing, sources[1:], rare)


def _is_without(document: Any, path: Path) -> bool:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document is None


def pipeline_name(left: str, right: str) -> str:
    """A name for the pipeline of two topics.

    >>> pipeline_name("calls.Ended", "media-metrics")
    'calls_ended_media_metrics'
    """
    text = _as_name(f"{left}_{right}".lower()).strip("_")[:_LONGEST]
    return text if text[:1].isalpha() else f"p_{text}"[:_LONGEST]


def _parts(document: Any, used: Collection[Path], path: Path) -> Iterator[tuple[Path, Any]]:
    """The largest parts of a document that hold no used path."""
    for name, value in document.items():
        here = (*path, name)
        if here in used:
            continue
        if isinstance(value, dict) and any(each[: len(here)] == here for each in used):
            yield from _parts(value, used, here)
        elif value is not None:
            yield here, value


def _free(text: str, taken: Collection[str], side: str = "") -> str:
    """A column name that nothing else has."""
    name = _as_name(text) or "field"
    name = f"_{name}"[:_LONGEST] if name[0].isdigit() else name[:_LONGEST]
    used = {*RESERVED_COLUMNS, *DIRECTION_COLUMNS, *(each.lower() for each in taken)}
    tried = [name, f"{side or 'event'}_{name}"[:_LONGEST], *(f"{name[:60]}_{number}" for number in range(2, 100))]
    return next(each for each in tried if each.lower() not in used)


def _as_name(text: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in text)
