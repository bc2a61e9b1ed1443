"""One writer at a time on warehouses whose Delta log cannot tell processes apart.

Delta's log on `file://` is safe within one JVM only, so a writer holds an exclusive flock for as long as it lives. The kernel
frees it when the process dies, however it dies. Object stores have no flock; there Delta's own
transactions keep the order.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.config.store import local_folder
from spark_jobs.faults.problems import JobProblem


class LockedOut(JobProblem):
    """Another writer is at work; the text names it."""


@contextmanager
def writer_lock(root: str, pipeline: str, job: str, wait_seconds: float) -> Iterator[None]:
    """Holds the pipeline's lock; waits up to `wait_seconds` for the holder, then raises LockedOut."""
    folder = local_folder(root)
    if folder is None:
        yield
        return
    path = folder / pipeline / "writer.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file.fileno(), path, wait_seconds)
        # Kept after the end, too: only the flock counts, the text is for whoever has to wait.
        file.truncate(0)
        file.write(f"{job} (process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')})")
        file.flush()
        yield


def _acquire(descriptor: int, path: Path, wait_seconds: float) -> None:
    give_up = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                holder = path.read_text(encoding="utf-8") or "a process that has just started"
                raise LockedOut(
                    f"{path} is held by {holder}; it writes to the same tables. Wait for it or stop it, then run this again"
                ) from None
            time.sleep(0.2)
        else:
            return
