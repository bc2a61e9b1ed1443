"""A job ends with the Airflow task that started it, however the task ended.

Airflow ends the job of a task that it ends itself. But a task's process may just die, killed by a person or for want of
memory; its job would live on beside the next try, hold the writer's lock, and, if it hangs, keep every try from working.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading

TASK_VARIABLE = "PAIRING_TASK_LOCK"


def end_with_the_task() -> None:
    """Ends this process at once when nobody holds the lock of the file in PAIRING_TASK_LOCK any more; does not wait for that."""
    path = os.environ.get(TASK_VARIABLE)
    if path:
        threading.Thread(target=_end_when_free, args=(path,), daemon=True).start()


def _end_when_free(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        # The kernel frees the task's lock when its process ends.
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
    try:
        # Read by the task, if this is no log of its own, so there may be nobody to hear it.
        print("error: the Airflow task that started this job is gone, so the job ends, too", file=sys.stderr, flush=True)
    finally:
        # As hard as a kill -9, which every step survives: an orderly end would wait for the work in hand.
        os._exit(1)
