"""What keeps two writers of one pipeline apart: a lock on the warehouse's folder, put-if-absent on an object store.

On a folder, a writer holds an exclusive flock for as long as it lives; the kernel frees it when the process dies, however it dies.
Object stores have no flock. There every commit is a put of a key that must not exist yet. A store that accepts this condition and ignores
it, or ignores it only when two requests race, lets two writers make the same version of a log, and rows of one of them are lost without a
sign. So the first job of a pipeline tests the store with a race before it writes.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from include.config.store import Store, local_folder, read_bytes
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables.diagnose import translate_file_errors

# Beside the tables of the pipeline.
PROBE_RESULT = "store-probe.json"
_FOLDER = "store-probe"
_RACES, _RACERS = 5, 8


class LockedOut(JobProblem):
    """Another writer holds the lock; the text names it."""


@contextmanager
def writer_lock(root: str, pipeline: str, job: str, wait_seconds: float) -> Iterator[None]:
    """Holds the pipeline's lock during the block; waits up to `wait_seconds` for the holder, then raises LockedOut."""
    folder = local_folder(root)
    if folder is None:
        yield
        return
    path = folder / pipeline / "writer.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        _acquire(file.fileno(), path, wait_seconds)
        # The file stays after the end: only the flock counts, the text tells others which job they wait for.
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


def check_store(store: Store) -> None:
    """Call before a job writes below the place; tests the store unless an earlier job has.

    Raises NeedsOperator if two puts of one key succeeded, or none.
    """
    endpoint = next((value for name, value in store.options.items() if "endpoint" in name), "")
    address = {"uri": store.uri, "endpoint": endpoint}
    with translate_file_errors(store.uri):
        try:
            if json.loads(read_bytes(store.made(), PROBE_RESULT)).get("store") == address:
                return
        except (FileNotFoundError, ValueError, AttributeError):
            pass
        _probe(store)
        result = {"store": address, "put_if_absent": "refused", "probed_at": datetime.now(UTC).isoformat(timespec="seconds")}
        obstore.put(store.client, PROBE_RESULT, json.dumps(result).encode())


def _probe(store: Store) -> None:
    keys = [f"{_FOLDER}/{uuid.uuid4()}" for _ in range(_RACES)]
    try:
        with ThreadPoolExecutor(max_workers=_RACERS) as racers:
            for key in keys:
                won = sum(racers.map(partial(_put, store, key), range(_RACERS)))
                # Once more, without a race.
                won += _put(store, key, _RACERS)
                if won != 1:
                    raise NeedsOperator(
                        f"the store of {store.uri} let {won} of {_RACERS + 1} writers create the same object: it does not honour put-if-absent "
                        "(If-None-Match: *), so two jobs could overwrite each other's commits; use a store that does. Nothing was written"
                    )
    finally:
        # An error of the store has been raised already.
        with suppress(OSError, BaseError):
            obstore.delete(store.client, keys)


def _put(store: Store, key: str, number: int) -> bool:
    try:
        obstore.put(store.client, key, str(number).encode(), mode="create")
    except (AlreadyExistsError, PreconditionError):
        return False
    return True
