"""Kinds of events of which only some pair, where a topic mixes them: by a field of few texts, such as the type of an event."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import NamedTuple

import numpy as np

from spark_jobs.joining.fields import ABSENT, Field
from spark_jobs.joining.keys import KeyField

# A field of kinds has so many different texts, and nearly all records have it.
_MOST_KINDS, _LEAST_SHARE = 20, 0.9
# A kind of fewer records says nothing, and stays; the others have to pair clearly, or clearly not.
_FEWEST, _PAIRS, _PAIRS_NOT = 10, 0.2, 0.05
# So many records have to be of kinds that do not pair.
_WORTH = 0.05


class Kinds(NamedTuple):
    """`pairing` and `others`: kind -> its records that have a partner, and all of it; kinds of few records are among `pairing`."""

    source: str
    pairing: dict[str, tuple[int, int]]
    others: dict[str, tuple[int, int]]


def kinds_of(fields: list[Field], used: set[str], has_partner: np.ndarray) -> Kinds | None:
    """The field whose kinds tell best what pairs; None if there is none. `used`: sources of key and time. `has_partner`: of each record."""
    candidates = (_split(field, has_partner) for field in fields if field.source not in used and field.share >= _LEAST_SHARE)
    found = [each for each in candidates if each and _records(each.others) >= _WORTH * len(has_partner)]
    return max(found, key=lambda each: _records(each.others), default=None)


def _split(field: Field, has_partner: np.ndarray) -> Kinds | None:
    texts = [value for value in field.values if isinstance(value, str)]
    if not 2 <= len(set(texts)) <= _MOST_KINDS or len(texts) < sum(value is not None for value in field.values):
        return None
    paired: Counter[str] = Counter()
    for value, there in zip(field.values, has_partner.tolist(), strict=True):
        paired[value] += there
    counts = {kind: (paired[kind], number) for kind, number in Counter(texts).items()}
    ratios = {kind: some / number for kind, (some, number) in counts.items() if number >= _FEWEST}
    others = {kind for kind, ratio in ratios.items() if ratio <= _PAIRS_NOT}
    if (
        not others
        or len(others) == len(ratios)
        or any(ratio < _PAIRS for kind, ratio in ratios.items() if kind not in others)
    ):
        return None
    pairing = {kind: each for kind, each in sorted(counts.items()) if kind not in others}
    return Kinds(field.source, pairing, {kind: counts[kind] for kind in sorted(others)})


def _records(kinds: dict[str, tuple[int, int]]) -> int:
    return sum(number for _, number in kinds.values())


def partners(
    fields: tuple[KeyField, ...], times: tuple[np.ndarray, np.ndarray], tolerance: int, in_any_order: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Which left and right records have an event of the other side with the same key within the tolerance (ms, inclusive)."""
    columns = [np.stack([getattr(field, side).codes for field in fields], axis=1) for side in ("left", "right")]
    if in_any_order:
        columns = [np.sort(each, axis=1) for each in columns]
    events = [_times_by_key(codes, at) for codes, at in zip(columns, times, strict=True)]
    left, right = (
        np.array(
            [
                _is_near(there.get(tuple(key), []), ts, tolerance)
                for key, ts in zip(codes.tolist(), at.tolist(), strict=True)
            ],
            bool,
        )
        for codes, at, there in zip(columns, times, reversed(events), strict=True)
    )
    return left, right


def _times_by_key(codes: np.ndarray, at: np.ndarray) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for key, ts in zip(codes.tolist(), at.tolist(), strict=True):
        if ABSENT not in key and ts != ABSENT:
            found.setdefault(tuple(key), []).append(ts)
    return {key: sorted(times) for key, times in found.items()}


def _is_near(times: list[int], ts: int, tolerance: int) -> bool:
    at = bisect_left(times, ts - tolerance)
    return ts != ABSENT and at < len(times) and times[at] <= ts + tolerance
