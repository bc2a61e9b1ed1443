"""Rules 3 and 7: events in the order (ts, topic, partition, offset) within each key, and which of them repeat another one.

Keys become numbers, which sort faster than texts.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.rules.large_columns import gather_texts, text_bytes
from spark_jobs.rules.rules import Flags, Ints, Rules

# Longer payloads are compared by SHA-256, which needs no copies of them.
_LONG_BYTES = 1_000


class OrderedEvents(NamedTuple):
    """Events in the order of rule 3, one entry each. `row`: the event's row in the input table.

    `key`: a number, equal for equal keys; the order of the numbers has no meaning.
    """

    row: Ints
    key: Ints
    ts: Ints
    side: Ints
    is_open: Flags

    def where(self, wanted: Flags) -> OrderedEvents:
        """The events for which `wanted` is True, still in order."""
        if wanted.all():
            return self
        return OrderedEvents(self.row[wanted], self.key[wanted], self.ts[wanted], self.side[wanted], self.is_open[wanted])


def order_events(events: pa.Table, rules: Rules) -> OrderedEvents:
    """Sorts a table of `event_schema` with at least one row."""
    key, ts, side = key_numbers(events, rules.pipeline.key), _column(events, "ts"), _column(events, "side")
    order, tied = _by_key_and_ts(key, ts)
    if len(tied):
        # Only events of one key and one millisecond are ordered by where they came from.
        among = order[tied]
        partition = _column(events, "partition")[among]
        topic = rules.topics.ranks(side[among], partition)
        place = (_column(events, "offset")[among], partition, topic, ts[among], key[among])
        order[tied] = among[np.lexsort(place)]
    return OrderedEvents(order, key[order], ts[order], side[order], _column(events, "is_open")[order])


def _column(events: pa.Table, name: str) -> npt.NDArray:
    return events.column(name).to_numpy()


def _by_key_and_ts(key: Ints, ts: Ints) -> tuple[Ints, Ints]:
    """Row numbers in the order (key, ts), and the places in that order whose events share both with a neighbour."""
    first = int(ts.min())
    bits = (int(ts.max()) - first).bit_length()
    if int(key.max()).bit_length() + bits < 63:
        # Both in one number: a single sort is several times faster than one of two columns.
        both = (key << bits) | (ts - first)
        order = np.argsort(both)
        same = np.diff(both[order]) == 0
    else:
        order = np.lexsort((ts, key))
        same = (np.diff(key[order]) == 0) & (np.diff(ts[order]) == 0)
    return order, np.flatnonzero(np.append(same, False) | np.append(False, same))


def key_numbers(events: pa.Table, key: tuple[str, ...]) -> Ints:
    """A number for each row, from 0: equal where all key fields are equal.

    >>> table = pa.table({"from": ["x", "x-1", "x-1", "x"], "to": ["1-y", "y", "y", "1-y"]})
    >>> key_numbers(table, ("from", "to")).tolist()
    [0, 1, 1, 0]
    """
    fields = [_runs(events.column(name)) for name in key]
    # Rows usually come sorted by key, so only the first row of each run of equal keys is looked up.
    starts = np.unique(np.concatenate([start for start, _ in fields]))
    number = np.zeros(len(starts), dtype=np.int64)
    for start, text in fields:
        code = text.dictionary_encode().indices.to_numpy()
        number = number * (int(code.max()) + 1) + code[np.searchsorted(start, starts, side="right") - 1]
        number = np.unique(number, return_inverse=True)[1]
    return np.repeat(number, np.diff(np.append(starts, events.num_rows)))


def _runs(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """The rows where runs of equal texts start, and their texts; chunk by chunk, because joined chunks may not exceed 2 GB."""
    starts, texts, offset = [], [], 0
    for chunk in column.chunks:
        if len(chunk):
            runs = pc.run_end_encode(chunk, run_end_type=pa.int64())
            starts.append(np.append(0, runs.run_ends.to_numpy()[:-1]) + offset)
            texts.append(runs.values)
            offset += len(chunk)
    return np.concatenate(starts), pa.concat_arrays(texts)


def find_duplicates(events: OrderedEvents, payload: pa.ChunkedArray, direction: pa.ChunkedArray | None = None) -> Flags:
    """True for every event that repeats an earlier one: same side, key, timestamp and payload, and the same direction, if there is one.

    `payload`, `direction`: of the rows of the input table. Payloads are compared as text, character by character; two missing payloads are equal.

    >>> same = np.zeros(3, dtype=np.int64)
    >>> events = OrderedEvents(np.array([1, 0, 2]), same, same, same, same)
    >>> find_duplicates(events, pa.chunked_array([["2", "1", "1"]])).tolist()
    [False, False, True]
    """
    duplicate = np.zeros(len(events.row), dtype=bool)
    same_as_previous = (np.diff(events.ts) == 0) & (np.diff(events.key) == 0) & (np.diff(events.side) == 0)
    if not same_as_previous.any():
        return duplicate
    # Only events equal in all but the payload have it compared: usually next to none.
    candidates = np.flatnonzero(np.append(same_as_previous, False) | np.append(False, same_as_previous))
    run = np.append(0, np.cumsum(~same_as_previous))[candidates]
    text = _text_numbers(payload, events.row[candidates])
    if direction is not None:
        text = 2 * text + direction.to_numpy()[events.row[candidates]]
    order = np.lexsort((text, run))
    repeats = (np.diff(run[order]) == 0) & (np.diff(text[order]) == 0)
    duplicate[candidates[order[1:][repeats]]] = True
    return duplicate


def _text_numbers(payload: pa.ChunkedArray, row: Ints) -> Ints:
    """A number for each of these rows: equal for equal texts, -1 for a missing one."""
    length = text_bytes(payload)[row]
    number = np.empty(len(row), dtype=np.int64)
    long = length > _LONG_BYTES
    number[~long] = gather_texts(payload, row[~long]).dictionary_encode().indices.fill_null(-1).to_numpy()
    seen: dict[bytes, int] = {}
    for place in np.flatnonzero(long):
        digest = sha256(payload[int(row[place])].as_buffer()).digest()
        number[place] = len(row) + seen.setdefault(digest, len(seen))
    return number
