"""The fields of documents: each source that a pipeline file could name, with its value in every record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from include.config.sources import HEADER, KEY, VALUE, Source, parse_source, source_text
from spark_jobs.joining.documents import Documents
from spark_jobs.rules.parsing import normal_key

# Deeper ones, longer texts and further fields hold no key of a pair. A map by user has as many fields as users.
_DEEPEST, _LONGEST, _MOST_FIELDS = 8, 300, 400
# Beyond 64 bits there are no times, and no libraries that agree.
_LARGEST = 2**63
# Of the records; a rarer field is not looked at.
_RARE, _FEW = 0.02, 0.1
ABSENT = -1


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
    rows = len(documents.bodies)
    columns: dict[Source, list[Any]] = {}

    def put(row: int, source: Source, value: Any) -> None:
        if source not in columns and len(columns) < _MOST_FIELDS:
            columns[source] = [None] * rows
        if source in columns and columns[source][row] is None:
            columns[source][row] = value

    for part, of_part in ((VALUE, documents.bodies), (KEY, documents.keys)):
        for row, document in enumerate(of_part):
            for path, value in _scalars(document, ()):
                put(row, Source(part, path), value)
    for row, headers in enumerate(documents.headers):
        for name, text in headers.items():
            if text and len(text) <= _LONGEST:
                put(row, Source(HEADER, (name,)), text)
    found: list[Field] = []
    known: set[int] = set()
    for source, values in columns.items():
        share = sum(value is not None for value in values) / rows
        if share >= _RARE and _is_source(source) and (content := hash(tuple(map(str, values)))) not in known:
            known.add(content)
            found.append(Field(source_text(source), values, share))
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


def _scalars(document: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
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


def _is_source(source: Source) -> bool:
    """Whether a pipeline file can name it."""
    try:
        return parse_source(source_text(source)) == source and source != (VALUE, ())
    except ValueError:
        return False
