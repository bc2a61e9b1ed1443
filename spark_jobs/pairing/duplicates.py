"""Rule 7: the same side, key, timestamp and payload again. The first by (topic, partition, offset) stays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_jobs.pairing.rules import Flags, Ints


def find_duplicates(key: Ints, ts: Ints, side: Ints, payload: pa.ChunkedArray | pa.Array) -> Flags:
    """True for every event that repeats an earlier one. The rows must be in the order (key, ts, side, partition, offset).

    Payloads are compared as the text that came; no payload equals no payload.

    >>> same = np.zeros(3, dtype=np.int64)
    >>> find_duplicates(same, same, same, pa.array(["1", "2", "1"])).tolist()
    [False, False, True]
    """
    count = len(key)
    duplicate = np.zeros(count, dtype=bool)
    if count < 2:
        return duplicate
    same_as_previous = (np.diff(key) == 0) & (np.diff(ts) == 0) & (np.diff(side) == 0)
    in_run = np.zeros(count, dtype=bool)
    in_run[1:] |= same_as_previous
    in_run[:-1] |= same_as_previous
    candidates = np.flatnonzero(in_run)
    if not len(candidates):
        return duplicate
    # Only events with a twin in everything but the payload have their payloads looked at: usually next to none.
    run = np.concatenate(([0], np.cumsum(~same_as_previous)))[candidates]
    texts = payload.take(pa.array(candidates))
    texts = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    codes = texts.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    order = np.lexsort((candidates, codes, run))
    repeats = (np.diff(run[order]) == 0) & (np.diff(codes[order]) == 0)
    duplicate[candidates[order[1:][repeats]]] = True
    return duplicate
