"""When a field tells which events pair, and when it does not."""

from __future__ import annotations

import numpy as np
import pytest

from spark_jobs.joining.fields import Field
from spark_jobs.joining.keys import Column, KeyField
from spark_jobs.joining.kinds import Kinds, kinds_of, partners


def found(*kinds: tuple[str | int | None, int, int], used: str = "other") -> Kinds | None:
    """`kinds`: the value, records with a partner, all records."""
    values = [value for value, _, number in kinds for _ in range(number)]
    mask = np.array([place < paired for _, paired, number in kinds for place in range(number)], bool)
    share = sum(value is not None for value in values) / len(values)
    return kinds_of([Field("type", values, share)], {used}, mask)


def test_kinds_that_pair_and_those_that_do_not_are_told_apart() -> None:
    assert found(("ended", 90, 100), ("begun", 1, 100)) == Kinds("type", {"ended": (90, 100)}, {"begun": (1, 100)})
    # Of a rare kind nobody knows.
    rare = found(("ended", 90, 100), ("begun", 1, 100), ("moved", 0, 9))
    assert rare and rare.pairing == {"ended": (90, 100), "moved": (0, 9)}
    assert found(("ended", 90, 100), ("begun", 1, 100), ("moved", 0, 10)).others.keys() == {"begun", "moved"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "kinds",
    [
        [("ended", 90, 100), ("begun", 80, 100)],
        [("ended", 2, 100), ("begun", 1, 100)],
        [("ended", 90, 100), ("begun", 0, 5)],
        [("ended", 90, 100), ("begun", 6, 100)],
        [("ended", 90, 100), ("moved", 15, 100), ("begun", 0, 100)],
        [("ended", 900, 1_000), ("begun", 0, 50)],
        [("ended", 90, 100), ("begun", 0, 100), (None, 0, 30)],
        [(7, 90, 100), (8, 0, 100)],
        [(f"k{number}", 10 * (number % 2), 10) for number in range(21)],
    ],
    ids=[
        "both pair",
        "none pairs",
        "too few",
        "some pair",
        "one in between",
        "not worth it",
        "often absent",
        "numbers",
        "many",
    ],
)
def test_what_does_not_tell_them_apart(kinds: list[tuple[str | int | None, int, int]]) -> None:
    assert found(*kinds) is None


def test_key_and_time_are_no_kinds() -> None:
    assert found(("ended", 90, 100), ("begun", 1, 100), used="type") is None


@pytest.mark.parametrize(("in_any_order", "swapped"), [(False, False), (True, True)])
def test_partners_have_the_same_key_within_the_tolerance(in_any_order: bool, swapped: bool) -> None:
    def column(*codes: int) -> Column:
        return Column(Field("f", [], 1.0), np.array(codes))

    # Left: of (1, 2) at 0 and 100, of (1, -1), a key that is not whole, and without a time.
    fields = (
        KeyField(column(1, 1, 1, 1), column(1, 2, 3), 1, 1),
        KeyField(column(2, 2, -1, 2), column(2, 1, 3), 1, 1),
    )
    times = np.array([0, 100, 0, -1]), np.array([110, 10, 0])
    left, right = partners(fields, times, 10, in_any_order)
    assert left.tolist() == [swapped, True, False, False] and right.tolist() == [True, swapped, False]
