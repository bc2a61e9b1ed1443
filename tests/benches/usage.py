"""What a program takes besides time: processor seconds, memory and bytes on disk, of it and of all that it starts."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

import psutil

_EVERY_S = 0.1


class Cost(NamedTuple):
    """Of all processes of a tree together."""

    cpu_s: float = 0.0
    memory_mb: float = 0.0  # resident, at most at any one moment; pages that processes share count for each
    written_mb: float = 0.0  # files; what goes to sockets and pipes is not among it

    @classmethod
    def median(cls, costs: Sequence[Cost]) -> Cost:
        """Each figure's own."""
        return cls(*(statistics.median(figures) for figures in zip(*costs, strict=True)))


class Usage:
    """Watches trees of processes while it is entered. What a process does in its last tenth of a second may be missed."""

    def __init__(self, *roots: int) -> None:
        self._begin = {pid: _now(pid) for pid in roots}
        self._now: dict[int, Cost] = {}
        self._peak_mb = 0.0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_again, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        self.look()

    def follow(self, pid: int) -> None:
        """Watches a process that has just been started, too."""
        self._begin = self._begin | {pid: Cost()}

    @property
    def cost(self) -> Cost:
        """Since it was entered; the memory is that of all trees together."""
        since = [
            (now.cpu_s - self._begin[root].cpu_s, now.written_mb - self._begin[root].written_mb)
            for root, now in self._now.items()
        ]
        return Cost(sum(cpu for cpu, _ in since), self._peak_mb, sum(written for _, written in since))

    def look(self) -> None:
        """Looks at all processes now."""
        memory = 0.0
        for root in self._begin:
            now, last = _now(root), self._now.get(root, Cost())
            memory += now.memory_mb
            # A process that has ended is counted by its parent, until that one ends.
            self._now[root] = Cost(max(now.cpu_s, last.cpu_s), 0.0, max(now.written_mb, last.written_mb))
        self._peak_mb = max(self._peak_mb, memory)

    def _look_again(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.look()


def _now(root: int) -> Cost:
    """Of the root and all below it, since each began, with what they have counted of those that have ended."""
    cpu = memory = written = 0.0
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(root)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                cpu += sum(process.cpu_times()[:4])
                memory += process.memory_info().rss / 1e6
            # A process that nobody has waited for yet has no files to ask about.
            with suppress(psutil.Error):
                written += process.io_counters().write_bytes / 1e6
    return Cost(cpu, memory, written)
