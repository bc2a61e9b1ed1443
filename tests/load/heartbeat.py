"""A line now and then while something takes its time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from include.config.repeating import repeating
from include.local.machine import say

EVERY_S = 10.0


@contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """A line every ten seconds while the block lasts."""
    begin = time.monotonic()
    with repeating(lambda: say(f"{what}: {time.monotonic() - begin:.0f} s ..."), EVERY_S):
        yield
