"""Workers of this machine: processes that are forked from a job at its start, and take the parts of its work in turn.

Where Spark would work on this machine, too, they do the work of its tasks for half the CPU: no row passes through a JVM, and none has to start.
A library that has started threads is of no use in a process forked afterwards, so they are forked before the job uses any.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from spark_jobs.faults.problems import JobProblem, NeedsOperator, warn

T = TypeVar("T")

# How many there are; 0: none.
WORKERS_VARIABLE = "PAIRING_WORKERS"
_AT_MOST = 8
# A worker takes half of that, and the job itself something, too.
_BYTES_A_WORKER = 1_000_000_000
_CGROUP = Path("/sys/fs/cgroup")
_PR_SET_PDEATHSIG = 1
_OBJECTS_BEFORE_GC = 100_000


class _Workers(NamedTuple):
    pool: ProcessPoolExecutor
    number: int


_started: list[_Workers] = []
# The job and all workers have the files from before the fork; a worker writes into that of its number.
scratch_files: list[BufferedRandom] = []
_number: list[int] = []


def start_workers(at_most: int = _AT_MOST) -> None:
    """Forks $PAIRING_WORKERS workers, by default one a core that the job may use, as many as its memory allows, and `at_most` so many.

    Call it before anything else in a process. Without the means there are none, which is logged. Raises NeedsOperator.
    """
    given = os.environ.get(WORKERS_VARIABLE)
    if given and not given.isdecimal():
        raise NeedsOperator(f"not a number of workers: {WORKERS_VARIABLE}={given}; with 0 Spark does the work")
    count = int(given) if given else min(_cores(), _memory() // _BYTES_A_WORKER, at_most)
    # Python allows no children of a daemonic process.
    if count < 1 or multiprocessing.current_process().daemon:
        return
    context = multiprocessing.get_context("fork")
    try:
        numbers = context.SimpleQueue()
        for number in range(count):
            numbers.put(number)
        # They stay open as long as the job.
        scratch_files[:] = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
        pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(os.getpid(), numbers))
        # Only now it forks them, all at once.
        pool.submit(int)
    except OSError as error:
        warn(f"there are no workers, so Spark does their work: {error}")
        return
    _started.append(_Workers(pool, count))


def stop_workers() -> None:
    """Ends them, if there are any."""
    while _started:
        _started.pop().pool.shutdown()


def has_workers() -> bool:
    """Whether this process has workers."""
    return bool(_started)


def own_scratch() -> tuple[int, BufferedRandom]:
    """In a worker: the number of its file in `scratch_files`, and the file. The job and all workers have it open; it has no name."""
    return _number[0], scratch_files[_number[0]]


def run_parts(parts: Iterable[T], work: Callable[[T], Iterable[pa.RecordBatch]]) -> Generator[pa.RecordBatch]:
    """What `work` makes of each part, in their order; a worker takes the next part when it has done one. At its end no part is worked on.

    Raises what `work` raises, or a RuntimeError with its text, and JobProblem if a worker is killed.
    """
    pool, count = _started[0]
    running: deque[Future[list[pa.RecordBatch] | Exception]] = deque()
    try:
        for part in parts:
            # A worker knows neither `work` nor the parts, which are made after it was forked.
            running.append(pool.submit(_run, cloudpickle.dumps((work, part))))
            if len(running) > 2 * count:
                yield from _result(running.popleft())
        while running:
            yield from _result(running.popleft())
    except BrokenProcessPool:
        raise JobProblem(
            f"a worker of this job was killed, perhaps for want of memory: run this again, with fewer of them in {WORKERS_VARIABLE}, or with 0, by "
            "Spark"
        ) from None
    finally:
        for each in running:
            each.cancel()
        # What cannot be cancelled any more may still write into its file.
        wait(running)


def _result(running: Future[list[pa.RecordBatch] | Exception]) -> list[pa.RecordBatch]:
    found = running.result()
    if isinstance(found, Exception):
        raise found
    return found


def _run(given: bytes) -> list[pa.RecordBatch] | Exception:
    """In a worker."""
    try:
        work, part = pickle.loads(given)
        return list(work(part))
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """The error, if it can come back as what it is; otherwise one with its text. Both have the stack trace."""
    trace = "".join(traceback.format_exception(error))
    # Some of librdkafka's errors cannot be pickled.
    with suppress(Exception):
        error.add_note(f"in a worker: {trace}")
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return RuntimeError(f"{type(error).__name__}: {error}\n{trace}")


def _begin(job: int, numbers: Any) -> None:
    """In a worker, first: it ends at once when its job is gone, however that ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job:
        os._exit(1)
    # A job that Airflow has forked ignores it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _number[:] = [numbers.get()]
    # Python looks for cycles after every 700 new objects, and each message is some of them: a tenth of the time of landing.
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_GC)


def _cores() -> int:
    """Those that this process may use, also by the limit of its container."""
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _memory() -> int:
    """The bytes of this machine, or those that its container may use."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        memory = min(memory, int((_CGROUP / "memory.max").read_text()))
    return memory
