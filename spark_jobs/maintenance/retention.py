"""Removes rows for their age: whole batches, oldest first. The ledger records a removal before it begins.

A batch's rows may be removed when W of its plan is old enough and no job can need them: the batch and all before it are published and
reported, none of its events is open, and no late event of it waits for a replay that the live DAG will start. Raw rows are removed first,
then rejected rows and compounds, the rows of ledger and metrics last. A repetition removes what is left.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.kafka.routing import corrections_in
from spark_jobs.maintenance.archive import Archive
from spark_jobs.maintenance.removable import first_waiting, last_removable, sum_batches, unreplayed_events, valid_batches
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.commit import remove_batches
from spark_jobs.tables.data_files import oldest_batch
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    LANDED,
    PAIRED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_LEDGER,
    REMOVED_RAW,
    REMOVED_REJECTED,
    REPORTED,
    LedgerRow,
    removed_through,
)
from spark_jobs.tables.records import LIVE, RemovedBatches, RemovedCounts
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, METRICS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse


class Part(NamedTuple):
    """Tables whose rows are removed together."""

    step: str  # one of REMOVALS
    kept_ms: int | None  # the age from which on rows are removed; None: never
    tables: tuple[str, ...]


class LedgerState(NamedTuple):
    """The ledger as it is now."""

    rows: list[LedgerRow]  # all rows from its first batch on
    removals: dict[str, LedgerRow]
    until: int  # the last batch that is published and reported with all before it
    reported: int


def parts(pipeline: Pipeline) -> tuple[Part, ...]:
    """In the order of removal. The ledger is last in its part: metrics are removed while it still has their batches."""
    settings, raw = pipeline.maintenance, tuple(raw_table(side) for side in pipeline.sides)
    return (
        Part(REMOVED_RAW, settings.raw_retention_ms, raw),
        Part(REMOVED_REJECTED, settings.rejected_retention_ms, (REJECTED,)),
        Part(REMOVED_COMPOUNDS, settings.compound_retention_ms, (COMPOUNDS,)),
        Part(REMOVED_LEDGER, settings.ledger_retention_ms, (METRICS, LEDGER)),
    )


def remove_old_rows(warehouse: Warehouse, ledger: Ledger, now: int) -> dict[str, int]:
    """Removes rows that are too old at `now` (epoch ms); returns how many. Starts no new removal while a batch is unfinished."""
    archive, counts = Archive.of(warehouse), dict[str, int]()
    done = PAIRED in ledger.last_batch()
    state = _read_state(ledger)
    for part in parts(warehouse.pipeline):
        # First the rest of an earlier try: rows that are archived together are removed together.
        _remove(warehouse, part, state.removals.get(part.step), archive)
        if part.kept_ms is None:
            continue
        row = _next_removal(warehouse, state, part, now - part.kept_ms) if done else None
        counts[part.step] = row.removed.removed if row else 0
        if row is not None:
            ledger.append(row)
            state.removals[part.step] = row
            _remove(warehouse, part, row, archive)
            if row.removed.late_given_up:
                counts["late_given_up"] = row.removed.late_given_up
    return counts


def _read_state(ledger: Ledger) -> LedgerState:
    ids, removals = ledger.last_ids(), ledger.removals()
    rows = ledger.rows(removed_through(removals, REMOVED_LEDGER) + 1)
    return LedgerState(rows, removals, min(ids[step] for step in (PAIRED, PUBLISHED, REPORTED)), ids[REPORTED])


def _next_removal(warehouse: Warehouse, state: LedgerState, part: Part, before: int) -> LedgerRow | None:
    """The row for the next removal from a part: batches planned before epoch ms `before`; None if nothing can be removed."""
    started, last, done = datetime.now(UTC), state.removals.get(part.step), removed_through(state.removals, part.step)
    base = last_removable(state.rows, _bound(warehouse, state, part), before)
    newer = [row for row in state.rows if row.batch_id > done]
    left = unreplayed_events(warehouse, newer, base.batch_id) if part.step == REMOVED_RAW and base else []
    if left and (waits := first_waiting(warehouse, state.rows, left)) is not None:
        print(f"rows of batch {waits} and later ones stay: late events of it wait for their replay (late: replay)")
        base = last_removable(state.rows, waits - 1, before)
    if base is None or base.batch_id - (part.step == REMOVED_LEDGER) <= done:
        return None
    ever = last.removed.removed_ever if last else 0
    if part.step == REMOVED_LEDGER:
        sums, lost = sum_batches(last, state.rows, base.batch_id)
        rows = sum(row.batch_id < base.batch_id for row in state.rows)
        batches = RemovedBatches(**sums, removed=rows, removed_ever=ever + rows, first_batch=done + 1)
        return base.next_step(part.step, started, batches, offsets=lost)
    rows = _count_rows(warehouse, part, state, done, base.batch_id)
    counts = RemovedCounts(removed=rows, removed_ever=ever + rows, first_batch=done + 1)
    if part.step == REMOVED_RAW:
        until = _removed_until(warehouse, part, last, done, base.batch_id)
        given_up = sum(events.events for events in left if events.batch_id <= base.batch_id)
        counts = replace(counts, removed_until=until, late_given_up=given_up)
    return base.next_step(part.step, started, counts)


def _bound(warehouse: Warehouse, state: LedgerState, part: Part) -> int:
    """The last batch that may be removed as far as other tables are concerned."""
    others = [each.step for each in parts(warehouse.pipeline) if each.step != REMOVED_LEDGER]
    if part.step == REMOVED_RAW:
        oldest = oldest_batch(warehouse.newest(OPEN))
        if _dead_letters_wait(state):
            return 0
        # An open event may yet be rejected, with its bytes, which only raw rows have.
        return state.until if oldest is None else min(state.until, oldest - 1)
    if part.step == REMOVED_LEDGER:
        # Its rows explain the rows that are left, and a report compares with as many batches as the setting says.
        compared = state.reported + 1 - warehouse.pipeline.quality.history_batches
        return min(state.until, compared, *(removed_through(state.removals, step) for step in others))
    if part.step == REMOVED_COMPOUNDS and _corrects_several_topics(warehouse, state):
        return 0
    return min(state.until, removed_through(state.removals, REMOVED_RAW))


def _dead_letters_wait(state: LedgerState) -> bool:
    """Whether a batch is not published yet that rejected records for a topic: their headers are in raw rows, some in those of earlier batches."""
    waiting = [row for row in state.rows if row.step == PAIRED and row.batch_id > state.until]
    return any(row.paired.rejected and row.pipeline.output_rejected_topic for row in waiting)


def _corrects_several_topics(warehouse: Warehouse, state: LedgerState) -> bool:
    """Whether a correction is not published yet that may take back on one topic what it sends to another: only the earlier compounds say where they are."""
    waiting = [row for row in state.rows if row.step == PAIRED and row.batch_id > state.until]
    return corrections_in(waiting) > 0 and any(len(each.compound_topics) > 1 for each in Ledger(warehouse).settings())


def _count_rows(warehouse: Warehouse, part: Part, state: LedgerState, done: int, until: int) -> int:
    """The number of rows of the batches done + 1 … until; raises BrokenInvariant if the ledger has another: evidence is not removed."""
    if part.step == REMOVED_COMPOUNDS:
        # The outbox keeps rows of void batches.
        counts = [row.paired.compounds for row in state.rows if row.step == PAIRED and done < row.batch_id <= until]
    else:
        live = [row for row in valid_batches(state.rows) if row.kind == LIVE and done < row.batch_id <= until]
        counts = [row.paired.rejected for row in live]
        if part.step == REMOVED_RAW:
            mine = {row.batch_id for row in live}
            counts = [row.landed.landed for row in state.rows if row.step == LANDED and row.batch_id in mine]
    found, what = _rows(warehouse, part, ["batch_id"], done, until).count(), " and ".join(part.tables)
    if found != sum(counts):
        raise BrokenInvariant(
            f"rows of the batches {done + 1} to {until} are not removed from {what}: there are {found} of them, the ledger counts "
            f"{sum(counts)}"
        )
    return found


def _rows(warehouse: Warehouse, part: Part, columns: list[str], after: int, until: int) -> DataFrame:
    batches = range(after + 1, until + 1)
    return reduce(DataFrame.unionAll, (warehouse.read(table, columns, batches=batches) for table in part.tables))


def _removed_until(warehouse: Warehouse, part: Part, last: LedgerRow | None, done: int, until: int) -> int | None:
    """The largest timestamp of an accepted event that is or was ever removed, in epoch ms."""
    accepted = _rows(warehouse, part, ["ts", "problem"], done, until).where(F.col("problem").isNull())
    row = accepted.agg(F.max("ts").alias("until")).collect()[0]
    times = [ts for ts in (last.removed.removed_until if last else None, row["until"]) if ts is not None]
    return max(times, default=None)


def _remove(warehouse: Warehouse, part: Part, removal: LedgerRow | None, archive: Archive | None) -> None:
    """Completes the removal that the ledger's row describes."""
    if removal is None:
        return
    first, until = removal.removed.first_batch, removed_through({part.step: removal}, part.step)
    for table in part.tables:
        oldest = oldest_batch(warehouse.newest(table))
        if oldest is None or oldest > until:
            continue
        if archive is not None:
            archive.put(warehouse, table, first, until)
        remove_batches(warehouse, table, until)
