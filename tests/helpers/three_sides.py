"""Every way to group the events of three sides: at most one of a side in a group, groups do not cross. For a handful of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

# The rank of an event on each side, None: the group has none of that side.
Group = tuple[int | None, ...]
Grouping = tuple[Group, ...]
Sides = list[list[int]]


def within(tolerance: int) -> Callable[[list[int | None]], bool]:
    """Every two events of a group are at most so far apart."""
    return lambda times: max(there(times)) - min(there(times)) <= tolerance


def around(anchor: int, tolerance: int) -> Callable[[list[int | None]], bool]:
    """Every event of a group is at most so far from that of the anchor side, which every group has."""

    def fits(times: list[int | None]) -> bool:
        middle = times[anchor]
        return middle is not None and all(abs(ts - middle) <= tolerance for ts in there(times))

    return fits


def there(times: list[int | None]) -> list[int]:
    return [ts for ts in times if ts is not None]


def every_grouping(sides: Sides, fits: Callable[[list[int | None]], bool]) -> list[Grouping]:
    """All sets of groups of two or three events that fit."""
    ranks = [[None, *range(len(side))] for side in sides]
    groups = [group for group in product(*ranks) if sum(rank is not None for rank in group) > 1]
    groups = [group for group in groups if fits(times_of(sides, group))]

    def chosen(rest: list[Group], grouping: Grouping) -> Iterator[Grouping]:
        if not rest:
            yield grouping
            return
        yield from chosen(rest[1:], grouping)
        if not any(_cross(rest[0], other) for other in grouping):
            yield from chosen(rest[1:], (*grouping, rest[0]))

    return list(chosen(groups, ()))


def times_of(sides: Sides, group: Group) -> list[int | None]:
    return [None if rank is None else side[rank] for side, rank in zip(sides, group, strict=True)]


def _cross(one: Group, other: Group) -> bool:
    shared = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return any(a == b for a, b in shared) or len({a < b for a, b in shared}) > 1


def complete(grouping: Grouping) -> int:
    return sum(None not in group for group in grouping)


def grouped(grouping: Grouping) -> int:
    """How many events are not alone."""
    return sum(rank is not None for group in grouping for rank in group)


def spread(sides: Sides, grouping: Grouping) -> int:
    """The sum over the groups of the time from the first event to the last."""
    return sum(max(there(times_of(sides, group))) - min(there(times_of(sides, group))) for group in grouping)


def best(sides: Sides, groupings: list[Grouping]) -> list[Grouping]:
    """Those with the most complete groups, then the most events that are not alone, then the smallest spread."""

    def rank(grouping: Grouping) -> tuple[int, int, int]:
        return -complete(grouping), -grouped(grouping), spread(sides, grouping)

    least = min(map(rank, groupings))
    return [grouping for grouping in groupings if rank(grouping) == least]
