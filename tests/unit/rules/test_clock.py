"""The clock of a batch."""

import pytest

from spark_jobs.rules.clock import PartitionProgress as At
from spark_jobs.rules.clock import batch_clock

W = 1_000
CLOCKS = {
    "all drained: wall time": ([At(True, 5), At(True, None)], None, "lag_aware", W),
    "a backlog holds back": ([At(True, 900), At(False, 300)], None, "lag_aware", 300),
    "a backlog without an accepted event: none": ([At(True, 900), At(False, None)], None, "lag_aware", None),
    "none keeps the previous": ([At(False, None)], 77, "lag_aware", 77),
    "never below the previous": ([At(False, 300)], 400, "lag_aware", 400),
    "no partitions": ([], None, "lag_aware", None),
    "stream time: smallest of the largest": ([At(True, 5), At(False, 9)], None, "stream_time", 5),
    "stream time leaves silent partitions out": ([At(True, None), At(True, 9)], None, "stream_time", 9),
    "stream time without any event": ([At(True, None)], None, "stream_time", None),
    "stream time never below the previous": ([At(True, 5)], 8, "stream_time", 8),
}


@pytest.mark.parametrize(("partitions", "previous", "mode", "clock"), CLOCKS.values(), ids=CLOCKS)
def test_clock(partitions, previous, mode, clock):
    assert batch_clock(partitions, W, previous, mode) == clock
