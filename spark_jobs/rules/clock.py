"""The clock of a batch: the time up to which every event is known to have been read.

No event before the clock still waits unread in a partition, so a session that ended before it (gap and grace included) is
complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PartitionProgress(NamedTuple):
    """One partition after landing. `max_ts`: the largest accepted timestamp landed from it so far (epoch ms), None if none yet."""

    reached_end: bool
    max_ts: int | None


def batch_clock(partitions: Iterable[PartitionProgress], wall_time: int, previous: int | None, mode: str) -> int | None:
    """The minimum over the partitions, never below `previous`; epoch ms, None stands for minus infinity.

    `lag_aware`: of a partition read to its end everything up to `wall_time` (W) is known, so silence closes sessions; a backlog holds
    the clock back.

    >>> batch_clock([PartitionProgress(True, 50), PartitionProgress(False, 70)], 100, None, "lag_aware")
    70
    >>> batch_clock([PartitionProgress(True, None), PartitionProgress(False, None)], 100, 40, "lag_aware")
    40

    `stream_time`: always the largest timestamp; partitions that never had an event do not count, so silence closes nothing.

    >>> batch_clock([PartitionProgress(True, 50), PartitionProgress(True, None)], 100, None, "stream_time")
    50
    """
    if mode == "stream_time":
        clocks: list[int | None] = [p.max_ts for p in partitions if p.max_ts is not None]
    else:
        clocks = [wall_time if p.reached_end else p.max_ts for p in partitions]
    known = [clock for clock in clocks if clock is not None]
    now = min(known, default=None) if len(known) == len(clocks) else None
    return max((clock for clock in (now, previous) if clock is not None), default=None)
