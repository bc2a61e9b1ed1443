"""Whether a store refuses the second of two puts of one key that must not exist yet: what every commit stands on.

A store that accepts the condition and ignores it, or ignores it only when two requests race, lets two writers make the same version of a log,
and one of them loses its rows in silence. So it is tried, by a race, before a pipeline first writes to a store.
"""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from include.config.store import Store
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.diagnose import files_named

# Beside the tables of the pipeline.
RESULT = "store-probe.json"
_FOLDER = "store-probe"
_RACES, _RACERS = 5, 8


def check_store(store: Store) -> None:
    """Called by a job before it writes below the place; asks the store itself only where no earlier job has.

    Raises NeedsOperator where two puts of one key have succeeded, or none.
    """
    address = {
        "uri": store.uri,
        "endpoint": next((value for name, value in store.options.items() if "endpoint" in name), ""),
    }
    with files_named(store.uri):
        try:
            if json.loads(bytes(obstore.get(store.made().client, RESULT).bytes())).get("store") == address:
                return
        except (FileNotFoundError, ValueError, AttributeError):
            pass
        _probe(store)
        result = {"store": address, "put_if_absent": "refused", "probed_at": datetime.now(UTC).isoformat(timespec="seconds")}
        obstore.put(store.client, RESULT, json.dumps(result).encode())


def _probe(store: Store) -> None:
    keys = [f"{_FOLDER}/{uuid.uuid4()}" for _ in range(_RACES)]
    try:
        with ThreadPoolExecutor(max_workers=_RACERS) as racers:
            for key in keys:
                won = sum(racers.map(partial(_put, store, key), range(_RACERS)))
                # And once more, when nobody else is about.
                won += _put(store, key, _RACERS)
                if won != 1:
                    raise NeedsOperator(
                        f"the store of {store.uri} let {won} of {_RACERS + 1} writers create the same object: it does not honour put-if-absent "
                        "(If-None-Match: *), so two jobs could overwrite each other's commits; use a store that does. Nothing was written"
                    )
    finally:
        # What is wrong with the store has been raised.
        with suppress(OSError, BaseError):
            obstore.delete(store.client, keys)


def _put(store: Store, key: str, number: int) -> bool:
    try:
        obstore.put(store.client, key, str(number).encode(), mode="create")
    except (AlreadyExistsError, PreconditionError):
        return False
    return True
