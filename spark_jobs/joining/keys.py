"""Which fields of both sides together identify a pair.

Equal values alone prove little: both sides name the same few regions, and the same users in other roles. What shows a key are events with equal
values that are near each other in time more often than chance explains (`lags`). A field that is missing in a key lets events of other pairs
come together, which is chance; a field too many keeps the events of one pair apart. The best key has many of the former and few of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from include.config.sources import parse_source
from spark_jobs.joining.fields import ABSENT, Field
from spark_jobs.joining.lags import Events, Lags, Peak

# Two random events agree in a field of few values more often than this; such a field identifies nothing.
_MOST_CHANCE = 0.2
FEWEST_VALUES = 3
# So many records have to have a value that the other side has, too.
LEAST_SHARED = 0.03
# Single fields and keys that are looked at further.
_SINGLES, _COUPLED, _BEGINNINGS, _MOST_FIELDS = 60, 8, 6, 4
_ENOUGH = 4_000
# A further field has to add so much. Whole numbers are measures more often than names of something.
_WORTH, _OF_INTEGERS = 0.005, 0.85
# A name of the pair itself comes with no other pair of the sample; a field that tells less apart names nothing.
_OF_ITS_OWN, _NAMES_SOMETHING = 0.95, 0.5
# A key has to tell pairs apart at least within a minute; one by which most of what meets there is of different pairs is none.
_WITHIN_MS, _LEAST_ALONE = 60_000, 0.2
# So many pairs whose fields have changed places are worth a word.
_CROSSED = 0.05


class Column(NamedTuple):
    """A field of one side as a candidate. `codes` as of `code_fields`."""

    field: Field
    codes: np.ndarray


class KeyField(NamedTuple):
    """A field of each side that hold the same. `shared_left`: the share of left records whose value the right side has; `shared_right`."""

    left: Column
    right: Column
    shared_left: float
    shared_right: float

    @property
    def is_integer(self) -> bool:
        """Whether a side has whole numbers."""
        return self.left.field.is_integer or self.right.field.is_integer

    def __str__(self) -> str:
        return f"{self.left.field.source} = {self.right.field.source}"


class Key(NamedTuple):
    """Fields that identify a pair. `peak`: where its lags are. `alone`: the share of events with equal keys about that time that are one pair.

    `found`: pairs, as a share of those of the key that finds most.
    """

    fields: tuple[KeyField, ...]
    peak: Peak
    alone: float
    found: float

    @property
    def score(self) -> float:
        """From 0 to 1."""
        weight = _OF_INTEGERS if any(field.is_integer for field in self.fields) else 1.0
        return weight * 2 * self.alone * self.found / (self.alone + self.found)

    def __str__(self) -> str:
        return ", ".join(sorted(map(str, self.fields)))


class Times(NamedTuple):
    """The time of each record of both sides: epoch ms, ABSENT where it has none."""

    left: np.ndarray
    right: np.ndarray

    def thinned(self) -> Times:
        """With fewer left events, which show a key as well."""
        is_left_out = np.arange(len(self.left)) % (len(self.left) // _ENOUGH + 1) != 0
        return Times(np.where(is_left_out, ABSENT, self.left), self.right)


def shared_fields(left: Sequence[Column], right: Sequence[Column]) -> list[KeyField]:
    """The fields that share values, those first whose values most records share. Those of few values are left out."""
    found = []
    counts = [
        [np.unique(column.codes[column.codes != ABSENT], return_counts=True) for column in side] for side in (left, right)
    ]
    for mine, (values, numbers) in zip(left, counts[0], strict=True):
        for other, (values_there, numbers_there) in zip(right, counts[1], strict=True):
            common, here, there = np.intersect1d(values, values_there, assume_unique=True, return_indices=True)
            if len(common) < FEWEST_VALUES:
                continue
            of_left, of_right = numbers[here], numbers_there[there]
            shared = int(of_left.sum()) / len(mine.codes), int(of_right.sum()) / len(other.codes)
            chance = float((of_left / of_left.sum()) @ (of_right / of_right.sum()))
            if min(shared) >= LEAST_SHARED and chance <= _MOST_CHANCE:
                found.append(KeyField(mine, other, *shared))
    return sorted(found, key=lambda each: -min(each.shared_left, each.shared_right))


def have_equals(left: Sequence[Column], right: Sequence[Column]) -> bool:
    """Whether any field of one side has a value that any of the other has, however few and frequent these are."""
    mine, theirs = ({code for column in side for code in column.codes.tolist()} for side in (left, right))
    return bool(mine & theirs - {ABSENT})


def find_keys(shared: Sequence[KeyField], times: Times) -> list[Key]:
    """The keys by which pairs are found, the best first; none where chance explains (nearly) everything."""
    whole, times = times, times.thinned()
    begun = _with_peaks([(field,) for field in shared[:_SINGLES]], times)
    # Where everybody has many events, only two fields together show anything.
    begun = begun or _with_peaks(_couples(shared[:_COUPLED]), times)
    if not begun:
        return []
    most = max(peak.excess for _, peak in begun)
    keys = sorted((_key(fields, peak, times, most) for fields, peak in begun), key=_rank)
    grown = [_grown(key, keys, times, most) for key in keys[:_BEGINNINGS]]
    best = min(grown, key=_rank)
    # What else would do, without any field of the best.
    rest = [key for key in keys if _all_sources(best).isdisjoint(_all_sources(key))]
    others = [*grown, *(_grown(key, rest, times, most) for key in rest[:1]), *keys]
    best = _named(best, keys, times, most)
    # What is shown of the best is not of a part of the events.
    best = best._replace(peak=lags_of(best.fields, whole).window(best.peak.center, best.peak.width))
    found = {frozenset(map(str, best.fields)): best}
    for key in sorted(others, key=_rank):
        found.setdefault(frozenset(map(str, key.fields)), key)
    return [key for key in found.values() if key.alone >= _LEAST_ALONE]


def _with_peaks(keys: Sequence[tuple[KeyField, ...]], times: Times) -> list[tuple[tuple[KeyField, ...], Peak]]:
    return [(fields, peak) for fields in keys if (peak := lags_of(fields, times).peak())]


def _couples(fields: Sequence[KeyField]) -> list[tuple[KeyField, ...]]:
    return [couple for couple in combinations(fields, 2) if _sources(couple[0]).isdisjoint(_sources(couple[1]))]


def lags_of(fields: Sequence[KeyField], times: Times) -> Lags:
    """The lags of events that are equal in all of the fields."""
    left, right = (_combined([getattr(field, side).codes for field in fields]) for side in ("left", "right"))
    numbers, codes = np.unique(np.concatenate([left, right]), axis=0, return_inverse=True)
    codes = np.where((numbers == ABSENT).any(axis=1)[codes.ravel()], ABSENT, codes.ravel())
    return Lags(Events(codes[: len(left)], times.left), Events(codes[len(left) :], times.right))


def crossed_share(key: Key, times: Times) -> float:
    """Of the pairs by the key, and by its two fields in changed places, the share of the latter; 0.0 if these are few, or chance."""
    if len(key.fields) != 2:
        return 0.0
    first, second = key.fields
    crossed = (first._replace(right=second.right), second._replace(right=first.right))
    peak = lags_of(crossed, times).window(key.peak.center, key.peak.width)
    share = peak.excess / (peak.excess + key.peak.excess) if peak.is_significant else 0.0
    return share if share >= _CROSSED else 0.0


def _combined(columns: list[np.ndarray]) -> np.ndarray:
    return np.stack(columns, axis=1)


def _key(fields: tuple[KeyField, ...], peak: Peak, times: Times, most: float) -> Key:
    around = lags_of(fields, times).window(peak.center, max(peak.width, _WITHIN_MS)).pairs
    excess = max(peak.excess, 0.0)
    return Key(fields, peak, min(excess / max(around, 1), 1.0) or 1e-9, min(excess / most, 1.0) or 1e-9)


def _grown(key: Key, others: Sequence[Key], times: Times, most: float) -> Key:
    """The key with the fields of others that make it better, the one that does most first."""
    fields = {str(field): field for other in others for field in other.fields}.values()
    while len(key.fields) < _MOST_FIELDS:
        more = [field for field in fields if _all_sources(key).isdisjoint(_sources(field))]
        longer = [(*key.fields, field) for field in more]
        peaks = [(each, lags_of(each, times).window(key.peak.center, key.peak.width)) for each in longer]
        better = max((_key(each, peak, times, most) for each, peak in peaks), key=lambda each: each.score, default=key)
        if better.score < key.score + _WORTH:
            break
        # With less of chance in between, its lags show where they end.
        peak = lags_of(better.fields, times).peak()
        key = _key(better.fields, peak, times, most) if peak else better
    return key


def _named(key: Key, singles: Sequence[Key], times: Times, most: float) -> Key:
    """The key with the other names that its pairs have in common, unless it is a name of the pair itself, which no other pair has.

    In a sample one of two users may tell all pairs apart, because no user calls two others meanwhile.
    """
    again = lags_of(key.fields, times).farthest(key.peak.center)
    if key.peak.excess >= _OF_ITS_OWN * again.pairs:
        return key
    for single in singles:
        (field, *others), parts = single.fields, set().union(*map(_parts, key.fields))
        is_new = not others and _all_sources(key).isdisjoint(_sources(field)) and _parts(field) <= parts
        if not is_new or single.alone < _NAMES_SOMETHING or (field.is_integer and not key.fields[0].is_integer):
            continue
        fields = (*key.fields, field)
        longer = _key(fields, lags_of(fields, times).window(key.peak.center, key.peak.width), times, most)
        key = longer if longer.score >= key.score - _WORTH else key
    return key


def _parts(field: KeyField) -> set[tuple[str, str]]:
    """Body, key or headers of each side."""
    return {(side, parse_source(source).part) for side, source in _sources(field)}


def _all_sources(key: Key) -> set[tuple[str, str]]:
    return set().union(*map(_sources, key.fields))


def _sources(field: KeyField) -> set[tuple[str, str]]:
    return {("left", field.left.field.source), ("right", field.right.field.source)}


def _rank(key: Key) -> tuple[float, int, int]:
    """Nearly equal scores are equal; then fewer fields are better, then narrower lags."""
    return -round(key.score, 2), len(key.fields), key.peak.width
