"""A line now and then while something takes its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from include.local.machine import say

EVERY_S = 10.0


@contextmanager
def heartbeat(what: str) -> Iterator[None]:
    """A line every ten seconds while the block lasts."""
    over, begin = threading.Event(), time.monotonic()

    def beat() -> None:
        while not over.wait(EVERY_S):
            say(f"{what}: {time.monotonic() - begin:.0f} s ...")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
