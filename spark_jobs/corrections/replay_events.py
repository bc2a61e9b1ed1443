"""What decides an interval's compounds: all events in it, and those beyond its edges as far as the chains of its keys reach.

Chains are followed by key and time alone, in steps, each twice as long as the one before. Payloads are read only of the events that count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from include.config.time_text import moment
from spark_jobs.corrections.chains import AFTER, BEFORE, Edge, Reach, key_numbers
from spark_jobs.corrections.healed_events import HealedEvents, healed
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.stages.pairing_input import accepted_events, accepted_rows
from spark_jobs.stages.revisions import mark_events, newest_revisions, revised_batches
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.warehouse import Warehouse

# A row with a key has its first and last timestamp in a piece of rows; one without has the number of events of the piece.
_SEEN = pa.schema(dict.fromkeys(("key", "first", "last", "events"), pa.int64()))
_KEY_AND_TS = pa.schema({"key": pa.int64(), "ts": pa.int64()})


@dataclass
class Surroundings:
    """The interval of a replay, and which chains cross its edges."""

    warehouse: Warehouse
    planned: LedgerRow
    # Batch -> the largest timestamp that an accepted event of it can have.
    latest: dict[int, int]
    # The longest time (ms) between the events of one compound, with any settings that this pipeline ever had.
    span_ms: int
    healed: HealedEvents
    inside: int  # events in the interval
    before: Edge
    after: Edge

    @property
    def expected(self) -> int:
        """The number of events that `events` returns."""
        return self.inside + self.before.events + self.after.events

    def batches(self, since: int) -> range:
        """The batches before the replay that can have events from `since` (epoch ms) on."""
        first = min((batch_id for batch_id, ts in self.latest.items() if ts >= since), default=self.planned.batch_id)
        return range(first, self.planned.batch_id)

    def events(self) -> DataFrame:
        """The events (`event_schema`) of the keys that have one in the interval:

        - from the begin of the chain (events no further apart than the gap) that reaches into the interval, however long ago
          that is, because it decides where max_session cuts;
        - to where every session with an event of a compound of the interval has ended.
        """
        pipeline, window = self.planned.pipeline, self.planned.replay.window
        parts = self._events(window)
        for edge in (self.before, self.after):
            if len((crossing := edge.crossing).key):
                times = edge.times(edge.begin, int(crossing.until.max()) + 1)
                mine = InWorker(rows_of_chains(pipeline.key, edge.side, crossing))
                parts += self._events(times, mine)
        events = reduce(DataFrame.unionAll, parts)
        if not pipeline.has_compounds:
            return events
        # A later revision may lie anywhere, and a retraction has no time.
        revised = revised_batches(self.warehouse, self.planned.batch_id - 1)
        return mark_events(events, newest_revisions(self.warehouse, revised))

    def _events(self, times: Window, mine: InWorker | None = None) -> list[DataFrame]:
        topics, batches = self.planned.topics, self.batches(times.start)
        accepted = accepted_events(self.warehouse, self.planned.pipeline, topics, batches, times, mine)
        return [accepted, *self.healed.events(topics, times, mine)]

    def rows(self, columns: list[str], times: Window, made: InWorker) -> list[DataFrame]:
        """What workers make of columns of the events with these times, of each raw table."""
        accepted = accepted_rows(self.warehouse, self.planned.pipeline, columns, self.batches(times.start), times, made)
        return [*accepted, *self.healed.rows(columns, times, made)]


def look_around(warehouse: Warehouse, planned: LedgerRow) -> Surroundings:
    """Follows the chains that cross an edge. Raises NeedsOperator if one comes from where raw rows were removed."""
    (start, end), gap, key = planned.replay.window, planned.pipeline.gap_ms, planned.pipeline.key
    before = Edge(BEFORE, gap, Reach.none(), read=1 - start, limit=1)
    after = Edge(AFTER, gap, Reach.none(), read=end, limit=end + 2 * planned.replay.reach_ms)
    ledger = Ledger(warehouse)
    settings = (planned.pipeline, *ledger.settings())
    span = max(each.tolerance_ms if each.matching == "one_to_one" else each.max_session_ms for each in settings)
    ahead = max(each.max_future_ms for each in settings)
    latest = {batch_id: wall_time + ahead for batch_id, wall_time in ledger.wall_times().items()}
    found = Surroundings(warehouse, planned, latest, span, healed(warehouse), 0, before, after)
    near = Window(start + gap, end - gap)
    seen = reduce(
        DataFrame.unionAll, found.rows([*key, "ts"], planned.replay.window, InWorker(_seen(key, near), _SEEN, True))
    ).toArrow()
    found.inside = pc.sum(seen["events"]).as_py() or 0
    numbers, first, last = (seen.filter(pc.is_valid(seen["key"]))[name].to_numpy() for name in ("key", "first", "last"))
    early, late = first < near.start, last >= near.end
    before.reach = Reach.of(numbers[early], -first[early])
    # Published compounds may have events further on, if other settings made them.
    published = _published_beyond(found).toArrow()
    both = zip((numbers[late], last[late]), (published[name].to_numpy() for name in ("key", "ts")), strict=True)
    after.reach = Reach.of(*map(np.concatenate, both))
    step = gap
    while True:
        _check_removed(planned, before)
        if not (len(before.cut_off.key) or len(after.cut_off.key)):
            return found
        _read_on(found, step)
        step *= 2


def _read_on(found: Surroundings, step: int) -> None:
    """Reads the next `step` ms beyond each edge that chains may cross further."""
    edges = [(edge, min(edge.read + step, edge.limit)) for edge in (found.before, found.after) if len(edge.cut_off.key)]
    parts = []
    for edge, until in edges:
        mine = InWorker(_of_keys(found.planned.pipeline.key, edge.cut_off), _KEY_AND_TS, is_summary=True)
        parts += found.rows([*found.planned.pipeline.key, "ts"], edge.times(edge.read, until), mine)
    rows = reduce(DataFrame.unionAll, parts).toArrow()
    numbers, ts = rows["key"].to_numpy(), rows["ts"].to_numpy()
    for edge, until in edges:
        beyond = ts >= found.planned.replay.window.end if edge.side == AFTER else ts < found.planned.replay.window.start
        edge.read_on(until, numbers[beyond], ts[beyond])


def _published_beyond(found: Surroundings) -> DataFrame:
    """Key and last timestamp of compounds of the interval with an event behind it."""
    key, window = found.planned.pipeline.key, found.planned.replay.window

    def make(rows: pa.RecordBatch) -> pa.RecordBatch:
        last = pc.max_element_wise(rows["left_ts"], rows["right_ts"])
        return pa.record_batch([pa.array(key_numbers(rows, key)), last], ["key", "ts"])

    return found.warehouse.read(
        COMPOUNDS,
        [*key, "left_ts", "right_ts"],
        batches=found.batches(window.start),
        times=window,
        where=lambda column: (column("left_ts") >= window.end) | (column("right_ts") >= window.end),
        made=InWorker(make, _KEY_AND_TS, is_summary=True),
    )


def _check_removed(planned: LedgerRow, before: Edge) -> None:
    removed = planned.replay.removed_until
    if removed is not None and -before.reach.until.max(initial=-(2**63 - 1)) - removed <= before.gap_ms:
        raise NeedsOperator(
            f"the interval {planned.replay.window} cannot be replayed: sessions reach into it from before {moment(removed + 1)}, where raw rows "
            "were removed for their age; begin later"
        )


def _seen(key: tuple[str, ...], near: Window) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from accepted rows to rows of `_SEEN`: of keys with an event before `near.start`, or from `near.end` on."""

    def make(rows: pa.RecordBatch) -> pa.RecordBatch:
        numbers, ts = key_numbers(rows, key), rows["ts"].to_numpy()
        last, first = Reach.of(numbers, ts), -Reach.of(numbers, -ts).until
        mine = (first < near.start) | (last.until >= near.end)
        none = pa.nulls(1, pa.int64())
        columns = [pa.concat_arrays([pa.array(each[mine]), none]) for each in (last.key, first, last.until)]
        events = pa.concat_arrays([pa.nulls(int(mine.sum()), pa.int64()), pa.array([rows.num_rows])])
        return pa.record_batch([*columns, events], ["key", "first", "last", "events"])

    return make


def _of_keys(key: tuple[str, ...], reach: Reach) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function from accepted rows to rows of `_KEY_AND_TS`: of these keys."""

    def make(rows: pa.RecordBatch) -> pa.RecordBatch:
        numbers = key_numbers(rows, key)
        mine = reach.has(numbers)
        return pa.record_batch([pa.array(numbers[mine]), pa.array(rows["ts"].to_numpy()[mine])], ["key", "ts"])

    return make


def rows_of_chains(key: tuple[str, ...], side: int, reach: Reach) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that chooses the rows that these chains have beyond an edge."""
    return lambda rows: rows.filter(pa.array(reach.has(key_numbers(rows, key), side * rows["ts"].to_numpy())))
