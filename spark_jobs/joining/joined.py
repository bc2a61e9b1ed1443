"""A field of one side that holds two fields of the other, joined. No setting takes it apart, so it is only named."""

from __future__ import annotations

from itertools import permutations

from spark_jobs.joining.fields import Field

_SEPARATORS = "-_:|/,; "
# So many of the values have to be two fields of the other side, joined; of fewer, chance or another rule may be the reason.
_MOST = 0.5
_FEWEST = 3
# Fields of the other side that are tried, those with most of the parts first.
_TRIED = 6


def joined_field(left: list[Field], right: list[Field]) -> str | None:
    """The first such field, in words; None if there is none."""
    for names, (one, other) in ((("left", "right"), (left, right)), (("right", "left"), (right, left))):
        for field in one:
            for separator in _SEPARATORS:
                if found := _two_of(field, separator, other):
                    both = " and ".join(each.source for each in found)
                    return f"{field.source} of the {names[0]} side is {both} of the {names[1]} side, joined by {separator!r}"
    return None


def _two_of(field: Field, separator: str, other: list[Field]) -> tuple[Field, Field] | None:
    values = {value for value in field.values if isinstance(value, str)}
    parts = {part for value in values for part in value.split(separator)}
    if len(values) < _FEWEST or sum(separator in value for value in values) < _MOST * len(values):
        return None
    shared = [(len(parts.intersection(map(str, each.values))), each) for each in other]
    likely = sorted((each for each in shared if each[0]), key=lambda each: -each[0])[:_TRIED]
    for (_, first), (_, second) in permutations(likely, 2):
        pairs = zip(first.values, second.values, strict=True)
        together = {f"{one}{separator}{two}" for one, two in pairs if one is not None and two is not None}
        if len(values & together) >= _MOST * len(values):
            return first, second
    return None
