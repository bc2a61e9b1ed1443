"""Finds which events of a stretch are matched, in one walk back and one walk forward.

A stretch is a list of left and right events in session order. Its nodes are the places before, between and after its events; the
level of a node is the number of lefts less the number of rights before it. An excursion goes from a node to the next node on the
same level: as many lefts as rights, matched first with first, second with second and so on. Some optimum consists of
excursions and of single events left alone, because an unmatched event inside a pair could take the place of the pair's far
end. So the best of what follows a node is either that of the next node, or an excursion and the best of what follows that:

- its distances add up to |sum of its rights' ts - sum of its lefts' ts|, a difference of prefix sums;
- it keeps the tolerance if the k-th right is near enough to the k-th left for all its k. For an excursion upwards from level d,
  that is n + 1 - (rights of the stretch with ts <= left's ts + T) <= d for each of its lefts, n the left's number in the stretch
  from 0: the largest such `need` decides. Downwards the same with the sides exchanged and -d. The largest `need` inside comes
  from the chain of excursions one level further, and a chain's from its first excursion and the chain behind it.

Among equals the excursion is taken: the optima form a lattice, and its least element matches earliest on both sides, which is
also lexicographically the first. (docs/decisions/0015-linear-matching.md has the whole argument.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_jobs.rules.rules import LEFT, Flags, Ints

# How many stretches, the longest ones, are walked one by one; the others are walked together, one event of each in a step.
_ONE_BY_ONE = 32
# How many nodes of such a stretch are Python integers at a time: these take four times the memory of numpy's.
_NODES_AT_ONCE = 100_000
# Gains up to this are added in 64 bits, larger ones as Python integers.
_LARGEST = 2**62
_NEVER = -(2**62)


class _Nodes(NamedTuple):
    """One entry a node, stretch after stretch, and a last one, "nowhere", for nodes that do not exist.

    `following`: the next node on this level, where the excursion from here ends. `inner`: the next node, if a chain one level further
    begins there. `behind`: `following`, if the chain continues there. `need`: of the event after this node. `limit`: the largest
    `need` with which the excursion is possible. `gain`: the value of the excursion.
    """

    following: Ints
    inner: Ints
    behind: Ints
    need: Ints
    limit: Ints
    gain: Ints


def matched_events(ts: Ints, side: Ints, start: Ints, tolerance_ms: int) -> Flags:
    """True for each event that the best matching matches. `start`: the first event of each stretch, beginning with 0.

    Among events of one side and timestamp only the number of matched ones counts, not which they are. In a stretch, ts ascend
    in steps of at most the tolerance, which is at most a year, so no sum of distances exceeds 64 bits.

    >>> matched_events(np.array([0, 50, 100]), np.array([1, 0, 1]), np.array([0]), 60).tolist()
    [True, True, False]
    """
    length = np.diff(np.append(start, len(ts)))
    # A stretch has one node more than events.
    node = np.arange(len(ts)) + np.repeat(np.arange(len(start)), length)
    first = node[start]
    nodes = _nodes(ts, side, start, node, tolerance_ms)
    longest_first = np.argsort(-length, kind="stable")
    entered = [_walk_one(nodes, int(first[n]), int(length[n])) for n in longest_first[:_ONE_BY_ONE]]
    others = longest_first[_ONE_BY_ONE:]
    entered.append(_walk_many(nodes, first[others], length[others]))
    taken = np.concatenate(entered)
    inside = np.zeros(len(nodes.need), dtype=np.int64)
    inside[taken] += 1
    inside[nodes.following[taken]] -= 1
    return np.cumsum(inside)[node] > 0


def _nodes(ts: Ints, side: Ints, start: Ints, node: Ints, tolerance_ms: int) -> _Nodes:
    nowhere = len(ts) + len(start)
    length = np.diff(np.append(start, len(ts)))
    upwards = side == LEFT
    sign = np.where(upwards, 1, -1)
    level = np.cumsum(_spread(sign, node + 1, nowhere))
    following = _next_on_level(level, node[start], length)
    here = np.arange(nowhere + 1)
    signed_ts = np.cumsum(_spread(sign * (ts - np.repeat(ts[start], length)), node + 1, nowhere + 1))
    direction = _spread(sign, node, nowhere + 1)
    limit = _spread(sign * level[node], node, nowhere + 1)
    limit[following == nowhere] = _NEVER
    return _Nodes(
        following,
        inner=np.where(direction == np.append(direction[1:], 0), here + 1, nowhere),
        behind=np.where(direction == direction[following], following, nowhere),
        need=_spread(_needs(ts, upwards, start, tolerance_ms), node, nowhere + 1),
        limit=limit,
        gain=_gain((following - here) // 2, np.abs(signed_ts[following] - signed_ts), tolerance_ms, int(length.max())),
    )


def _spread(values: Ints, node: Ints, count: int) -> Ints:
    """An array with these values at these nodes and 0 elsewhere."""
    spread = np.zeros(count, dtype=np.int64)
    spread[node] = values
    return spread


def _needs(ts: Ints, upwards: Flags, start: Ints, tolerance_ms: int) -> Ints:
    """The lowest level (for rights: its negative) of an excursion in which each event finds its partner near enough."""
    # All stretches on one axis need one search. A reach into the next stretch is harmless: it means "all of this one".
    step = np.diff(ts, prepend=ts[0])
    step[start] = 0
    axis = np.cumsum(step)
    reach = np.searchsorted(axis, axis + tolerance_ms, side="right")
    lefts, rights = np.append(0, np.cumsum(upwards)), np.append(0, np.cumsum(~upwards))
    return np.where(upwards, lefts[:-1] + 1 - rights[reach], rights[:-1] + 1 - lefts[reach])


def _gain(pairs: Ints, distances: Ints, tolerance_ms: int, longest: int) -> Ints:
    """The gain of each excursion. A pair counts more than all distances of a stretch together, so more pairs always win."""
    unit = tolerance_ms * (longest // 2) + 1
    if unit * (longest // 2) >= _LARGEST:
        pairs, distances = pairs.astype(object), distances.astype(object)
    return pairs * unit - distances


def _next_on_level(level: Ints, first: Ints, length: Ints) -> Ints:
    """For each node the next one of its stretch on the same level, else nowhere."""
    nowhere = len(level)
    # Each stretch has its own places for all levels that it can reach.
    place = level + np.repeat(2 * first + length - level[first], length + 1)
    order = np.argsort(place * nowhere + np.arange(nowhere))
    again = np.flatnonzero(np.diff(place[order]) == 0)
    following = np.full(nowhere + 1, nowhere)
    following[order[again]] = order[again + 1]
    return following


def _walk_one(nodes: _Nodes, first: int, length: int) -> Ints:
    """The nodes of one stretch where the best matching enters an excursion."""
    nowhere = length + 1
    chain = [_NEVER] * (length + 2)
    best = [0] * (length + 1)
    taken_to = [0] * length
    so_far = 0
    for end in range(length, 0, -_NODES_AT_ONCE):
        begin = max(0, end - _NODES_AT_ONCE)
        columns = [column[first + begin : first + end][::-1] for column in nodes]
        columns[:3] = [np.minimum(column - first, nowhere) for column in columns[:3]]
        rows = zip(range(end - 1, begin - 1, -1), *(column.tolist() for column in columns), strict=True)
        for node, following, inner, behind, worst, limit, gain in rows:
            inside, further = chain[inner], chain[behind]
            if inside > worst:
                worst = inside
            chain[node] = further if further > worst else worst
            if worst <= limit and (value := best[following] + gain) >= so_far:
                taken_to[node] = following
                so_far = value
            best[node] = so_far
    entered = []
    node = 0
    while node < length:
        if taken_to[node]:
            entered.append(node)
            node = taken_to[node]
        else:
            node += 1
    return np.array(entered, dtype=np.int64) + first


def _walk_many(nodes: _Nodes, first: Ints, length: Ints) -> Ints:
    """As `_walk_one`, for many stretches together, the longest first: step by step from their ends, then from their starts."""
    chain = np.full(len(nodes.need), _NEVER)
    best = np.zeros(len(nodes.need), dtype=nodes.gain.dtype)
    taken = np.zeros(len(nodes.need), dtype=bool)
    steps = int(length.max(initial=0))
    still = np.searchsorted(-length, -np.arange(steps))
    for step, count in enumerate(still.tolist()):
        node = (first + length)[:count] - 1 - step
        worst = np.maximum(nodes.need[node], chain[nodes.inner[node]])
        chain[node] = np.maximum(worst, chain[nodes.behind[node]])
        value, alone = best[nodes.following[node]] + nodes.gain[node], best[node + 1]
        taken[node] = take = (worst <= nodes.limit[node]) & (value >= alone)
        best[node] = np.where(take, value, alone)
    entered = [first[:0]]
    node, stop = first, first + length
    while len(node):
        take = taken[node]
        entered.append(node[take])
        node = np.where(take, nodes.following[node], node + 1)
        node, stop = node[node < stop], stop[node < stop]
    return np.concatenate(entered)
