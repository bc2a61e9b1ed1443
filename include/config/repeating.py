"""Work that is done again and again, in a thread, while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(work: Callable[[], object], every_s: float) -> Iterator[None]:
    """Calls `work` every so many seconds while the block runs, first after that time; at its end no call is under way. It must not raise."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
