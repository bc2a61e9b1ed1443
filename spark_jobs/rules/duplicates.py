"""Rule 7: of events with the same side, key, timestamp and payload the first by (topic, partition, offset) stays."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.rules.large_columns import gather_texts
from spark_jobs.rules.rules import Flags, Ints

# Longer payloads are compared by SHA-256, which needs no copies of them.
_LONG_BYTES = 1_000


def find_duplicates(key: Ints, ts: Ints, side: Ints, payload: pa.ChunkedArray, row: Ints) -> Flags:
    """True for every event that repeats an earlier one.

    Events are in the order (key, ts, side, partition, offset); the payload of the n-th is `payload[row[n]]`. Payloads are
    compared as text, character by character; two missing payloads are equal.

    >>> same = np.zeros(3, dtype=np.int64)
    >>> find_duplicates(same, same, same, pa.chunked_array([["2", "1", "1"]]), np.array([1, 0, 2])).tolist()
    [False, False, True]
    """
    duplicate = np.zeros(len(key), dtype=bool)
    same_as_previous = (np.diff(ts) == 0) & (np.diff(key) == 0) & (np.diff(side) == 0)
    if not same_as_previous.any():
        return duplicate
    # Only events equal in all but the payload have it compared: usually next to none.
    candidates = np.flatnonzero(np.append(same_as_previous, False) | np.append(False, same_as_previous))
    run = np.append(0, np.cumsum(~same_as_previous))[candidates]
    text = _text_numbers(payload, row[candidates])
    order = np.lexsort((text, run))
    repeats = (np.diff(run[order]) == 0) & (np.diff(text[order]) == 0)
    duplicate[candidates[order[1:][repeats]]] = True
    return duplicate


def _text_numbers(payload: pa.ChunkedArray, row: Ints) -> Ints:
    """A number for each of these rows: equal for equal texts, -1 for a missing one."""
    length = np.concatenate([pc.binary_length(chunk).fill_null(0).to_numpy() for chunk in payload.chunks])[row]
    number = np.empty(len(row), dtype=np.int64)
    long = length > _LONG_BYTES
    number[~long] = gather_texts(payload, row[~long]).dictionary_encode().indices.fill_null(-1).to_numpy()
    seen: dict[bytes, int] = {}
    for place in np.flatnonzero(long):
        digest = sha256(payload[int(row[place])].as_buffer()).digest()
        number[place] = len(row) + seen.setdefault(digest, len(seen))
    return number
