"""How far the chains of an interval's keys reach beyond its edges, found step by step outwards. Pure: arrays in, arrays out.

A chain is events of one key with no silence longer than the gap. Keys are numbers, equal for equal keys. Two keys share a number by chance
only: then their events are read together, which changes no outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.rules.rules import Flags, Ints
from spark_jobs.tables.records import Window

BEFORE, AFTER = -1, 1


class Reach(NamedTuple):
    """`key`: numbers of keys, ascending, each once. `until`: the outward time of the last event of each one's chain."""

    key: Ints
    until: Ints

    @classmethod
    def none(cls) -> Reach:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of(cls, key: Ints, time: Ints) -> Reach:
        """The last of the times of each key.

        >>> Reach.of(np.array([7, 3, 7]), np.array([1, 2, 5]))
        Reach(key=array([3, 7]), until=array([2, 5]))
        """
        order = np.lexsort((time, key))
        key, time = key[order], time[order]
        last = np.ones(len(key), dtype=bool)
        last[:-1] = key[1:] != key[:-1]
        return cls(key[last], time[last])

    def where(self, wanted: Flags) -> Reach:
        return Reach(self.key[wanted], self.until[wanted])

    def has(self, key: Ints, time: Ints | None = None) -> Flags:
        """Which of these are among the keys, and not later than the last event of their chain (`time` None: at any time)."""
        if not len(self.key):
            return np.zeros(len(key), dtype=bool)
        at = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
        mine = self.key[at] == key
        return mine if time is None else mine & (time <= self.until[at])


@dataclass
class Edge:
    """An edge of the interval and what is known of the chains that cross it.

    Outward times grow away from the interval: epoch ms behind it (`side` AFTER), negated epoch ms before it (BEFORE).
    """

    side: int
    gap_ms: int
    # The keys with an event in the interval that is no further than the gap from the edge.
    reach: Reach
    # The first outward time whose events are not read yet, and where reading ends (exclusive).
    read: int
    limit: int
    events: int = 0  # beyond the edge, of these chains
    begin: int = field(init=False)

    def __post_init__(self) -> None:
        self.begin = self.read

    @property
    def cut_off(self) -> Reach:
        """The chains that may go on where reading has ended."""
        return self.reach.where((self.reach.until >= self.read - self.gap_ms) & (self.read < self.limit))

    @property
    def crossing(self) -> Reach:
        """The chains that cross the edge."""
        return self.reach.where(self.reach.until >= self.begin)

    def times(self, since: int, until: int) -> Window:
        """The interval of event time from one outward time, inclusive, to another, exclusive."""
        return Window(since, until) if self.side == AFTER else Window(1 - until, 1 - since)

    def read_on(self, until: int, key: Ints, ts: Ints) -> None:
        """Takes all events of the chains `cut_off` up to the outward time `until`, and moves on: chains end before the first silence longer than the gap."""
        time = self.side * ts
        later = ~self.reach.has(key, time)
        keys, times = np.append(self.reach.key, key[later]), np.append(self.reach.until, time[later])
        order = np.lexsort((times, keys))
        keys, times = keys[order], times[order]
        other_key = np.append(True, keys[1:] != keys[:-1])
        begins = np.flatnonzero(other_key | np.append(True, np.diff(times) > self.gap_ms))
        ends = np.append(begins[1:], len(keys)) - 1
        self.reach = Reach(self.reach.key, times[ends[other_key[begins]]])
        self.events += int(self.reach.has(key, time).sum())
        self.read = until


def key_numbers(rows: pa.RecordBatch, key: tuple[str, ...]) -> Ints:
    """A number of 64 bits for the key of each row, the same in every process."""
    # Only workers need it, and importing it takes half a second.
    from pandas.util import hash_array

    numbers = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in key:
        texts = rows[name].to_numpy(zero_copy_only=False)
        numbers = numbers * np.uint64(0x9E3779B97F4A7C15) + hash_array(texts, categorize=False)
    return numbers.view(np.int64)
