"""The fields of documents: each source that a pipeline file could name, with its value in every record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from include.config.sources import HEADER, KEY, VALUE, Source, is_source, source_text
from spark_jobs.joining.documents import Documents
from spark_jobs.rules.parsing import normal_key

# Deeper ones and longer texts hold no key of a pair.
_DEEPEST, _LONGEST = 8, 300
# A map by user has as many fields as users; it must not leave keys and headers without room.
_MOST_FIELDS = {VALUE: 400, KEY: 50, HEADER: 50}
# Names that are counted at a time; of more the rarest are forgotten.
_MOST_COUNTED = 20_000
# Beyond 64 bits there are no times, and no libraries that agree.
_LARGEST = 2**63
# Of the records; a rarer field is not looked at.
_RARE, _FEW = 0.02, 0.1
# What so many records have is a name of the producer's; a rarer one may be that of a person, and is not shown.
USUAL = 0.5
ABSENT = -1

Path = tuple[str, ...]


class Field(NamedTuple):
    """`source` as in a pipeline file, and a text, whole number or float of each record, None where it has none.

    `share`: of the records that have it.
    """

    source: str
    values: list[Any]
    share: float

    @property
    def is_integer(self) -> bool:
        """Whether it has whole numbers; a few may be mistakes."""
        return sum(isinstance(value, int) for value in self.values) > _FEW * self.share * len(self.values)


def find_fields(documents: Documents) -> list[Field]:
    """The fields of the values, then of the keys, then of the headers, without repetitions: of fields that are equal in all records the first."""
    found: list[Field] = []
    known: set[int] = set()
    for part, of_part in ((VALUE, documents.bodies), (KEY, documents.keys), (HEADER, documents.headers)):
        for source, values in _columns(part, of_part).items():
            if (content := hash(tuple(map(str, values)))) not in known:
                known.add(content)
                found.append(Field(source_text(source), values, sum(value is not None for value in values) / len(values)))
    return found


def code_fields(
    left: list[Field], right: list[Field], key_text: tuple[str, ...] = ()
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A number for each value of each field, ABSENT for none and for floats; texts that are equal after these steps have equal numbers."""
    numbers: dict[str, int] = {}

    def code(value: Any) -> int:
        if value is None or isinstance(value, float):
            return ABSENT
        return numbers.setdefault(normal_key(str(value), key_text), len(numbers))

    def codes(field: Field) -> np.ndarray:
        return np.fromiter(map(code, field.values), np.int64, len(field.values))

    return list(map(codes, left)), list(map(codes, right))


def _columns(part: str, documents: Sequence[Any]) -> dict[Source, list[Any]]:
    """The values of those sources that enough documents have, in the order of the documents; at most `_MOST_FIELDS`, the most frequent."""
    counts: dict[Path, int] = {}
    for document in documents:
        for path, _ in _scalars(document, ()):
            counts[path] = counts.get(path, 0) + 1
        if len(counts) > _MOST_COUNTED:
            counts = _most_frequent(counts, _MOST_COUNTED // 2)
    often = {path: number for path, number in counts.items() if number >= _RARE * len(documents)}
    named = {path: number for path, number in often.items() if is_source(Source(part, path))}
    columns: dict[Path, list[Any]] = {path: [None] * len(documents) for path in _most_frequent(named, _MOST_FIELDS[part])}
    for row, document in enumerate(documents):
        for path, value in _scalars(document, ()):
            if path in columns:
                columns[path][row] = value
    return {Source(part, path): values for path, values in columns.items()}


def _most_frequent(counts: dict[Path, int], most: int) -> dict[Path, int]:
    """So many of them, in their order; of equally frequent ones those that are less deep."""
    kept = set(sorted(counts, key=lambda path: (-counts[path], len(path)))[:most])
    return {path: number for path, number in counts.items() if path in kept}


def _scalars(document: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The texts and numbers in a document with their paths, which lead through objects only. True and false are no keys, and no times."""
    if isinstance(document, dict):
        if len(path) < _DEEPEST:
            for name, value in document.items():
                yield from _scalars(value, (*path, name))
    elif isinstance(document, str):
        if 0 < len(document) <= _LONGEST:
            yield path, document
    elif isinstance(document, int | float) and not isinstance(document, bool) and abs(document) < _LARGEST:
        yield path, document
