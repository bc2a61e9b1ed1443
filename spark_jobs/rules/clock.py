"""The clock of a batch: up to when every event is known to have been read.

Nothing before the clock can still be waiting unread in a partition, so a session that ended before it (gap and grace
included) is complete. A partition that was read up to its end knows all that existed at wall time W; one with a backlog
knows only what it has landed so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PartitionProgress(NamedTuple):
    """One partition after a batch was landed. `max_ts`: largest accepted timestamp landed from it so far, None if none yet."""

    reached_end: bool
    max_ts: int | None


def batch_clock(partitions: Iterable[PartitionProgress], wall_time: int, previous: int | None, mode: str) -> int | None:
    """Minimum over the partitions, never below `previous`; None stands for minus infinity.

    `lag_aware`: a drained partition counts as `wall_time` (W), so silence closes sessions; a backlog holds the clock back.

    >>> batch_clock([PartitionProgress(True, 50), PartitionProgress(False, 70)], 100, None, "lag_aware")
    70
    >>> batch_clock([PartitionProgress(True, None), PartitionProgress(False, None)], 100, 40, "lag_aware")
    40

    `stream_time`: always the largest timestamp; partitions that never had an event are left out, so silence closes nothing.

    >>> batch_clock([PartitionProgress(True, 50), PartitionProgress(True, None)], 100, None, "stream_time")
    50
    """
    if mode == "stream_time":
        clocks: list[int | None] = [p.max_ts for p in partitions if p.max_ts is not None]
    else:
        clocks = [wall_time if p.reached_end else p.max_ts for p in partitions]
    known = [clock for clock in clocks if clock is not None]
    now = min(known) if known and len(known) == len(clocks) else None
    if now is None or previous is None:
        return previous if now is None else now
    return max(now, previous)
