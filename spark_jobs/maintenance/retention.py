"""Rows that are older than they are kept: whole batches, oldest first, told to the ledger before they go.

A batch's rows go when W of its plan is that old and nobody can need them any more: it is published and reported, and so is everything
before it, none of its events is still open, and no late event of it waits for a replay that the live DAG will ask for. Raw rows go first,
what became of them not before, the ledger's own and the metrics last. Whoever repeats it removes what is left.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.maintenance.age import last_to_go, standing
from spark_jobs.maintenance.archive import Archive
from spark_jobs.maintenance.summary import summed
from spark_jobs.maintenance.unreplayed import Left, first_to_wait_for, left_behind
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.commit import remove_batches
from spark_jobs.tables.ledger import (
    LANDED,
    PAIRED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_LEDGER,
    REMOVED_RAW,
    REMOVED_REJECTED,
    REPORTED,
    Ledger,
    LedgerRow,
    removed_through,
)
from spark_jobs.tables.records import LIVE, RemovedBatches, RemovedCounts
from spark_jobs.tables.warehouse import COMPOUNDS, LEDGER, METRICS, OPEN, REJECTED, Warehouse, raw_table


class Part(NamedTuple):
    """Tables whose rows go together. `step`: one of REMOVALS; `kept_ms`: from which age, None: never."""

    step: str
    kept_ms: int | None
    tables: tuple[str, ...]


class Seen(NamedTuple):
    """The ledger as it is now. `rows`: all from its first batch on. `until`: the last batch up to which everybody is done with all."""

    rows: list[LedgerRow]
    removals: dict[str, LedgerRow]
    until: int
    reported: int


def parts(pipeline: Pipeline) -> tuple[Part, ...]:
    """In the order in which they go. The ledger is the last of its part: its metrics go while it still has their batches."""
    care, raw = pipeline.maintenance, tuple(raw_table(side) for side in pipeline.sides)
    return (
        Part(REMOVED_RAW, care.raw_retention_ms, raw),
        Part(REMOVED_REJECTED, care.rejected_retention_ms, (REJECTED,)),
        Part(REMOVED_COMPOUNDS, care.compound_retention_ms, (COMPOUNDS,)),
        Part(REMOVED_LEDGER, care.ledger_retention_ms, (METRICS, LEDGER)),
    )


def remove_old(warehouse: Warehouse, ledger: Ledger, now: int) -> dict[str, int]:
    """Removes what is too old at `now` (epoch ms); gives how many rows that were. Decides on nothing while a batch is unfinished."""
    archive, counts = Archive.of(warehouse), dict[str, int]()
    done = PAIRED in ledger.last_batch()
    seen = _look(ledger)
    for part in parts(warehouse.pipeline):
        # First what an earlier try has not come to: what is archived together is what goes together.
        _remove(warehouse, part, seen.removals.get(part.step), archive)
        if part.kept_ms is None:
            continue
        row = _next(warehouse, seen, part, now - part.kept_ms) if done else None
        counts[part.step] = row.removed.removed if row else 0
        if row is not None:
            ledger.append(row)
            seen.removals[part.step] = row
            _remove(warehouse, part, row, archive)
            if row.removed.late_given_up:
                counts["late_given_up"] = row.removed.late_given_up
    return counts


def _look(ledger: Ledger) -> Seen:
    ids, removals = ledger.last_ids(), ledger.removals()
    rows = ledger.rows(removed_through(removals, REMOVED_LEDGER) + 1)
    return Seen(rows, removals, min(ids[step] for step in (PAIRED, PUBLISHED, REPORTED)), ids[REPORTED])


def _next(warehouse: Warehouse, seen: Seen, part: Part, before: int) -> LedgerRow | None:
    """The row that says what goes next of a part: what was planned before epoch ms `before`; None if nothing can go."""
    started, last, done = datetime.now(UTC), seen.removals.get(part.step), removed_through(seen.removals, part.step)
    base, left = last_to_go(seen.rows, _bound(warehouse, seen, part), before), list[Left]()
    if part.step == REMOVED_RAW and base and base.batch_id > done:
        left = left_behind(warehouse, [row for row in seen.rows if row.batch_id > done], base.batch_id)
        if (waits := first_to_wait_for(warehouse, seen.rows, left)) is not None:
            print(f"rows of batch {waits} and later ones stay: late events of it wait for their replay (late: replay)")
            base = last_to_go(seen.rows, waits - 1, before)
    if base is None or base.batch_id - (part.step == REMOVED_LEDGER) <= done:
        return None
    if part.step == REMOVED_LEDGER:
        sums = summed(last, seen.rows, base.batch_id)
        rows = sum(row.batch_id < base.batch_id for row in seen.rows)
        batches = RemovedBatches(**sums.counts, removed=rows, removed_ever=_ever(last, rows), first_batch=done + 1)
        return base.next_step(part.step, started, batches, offsets=sums.lost)
    rows = _counted(warehouse, part, seen, done, base.batch_id)
    is_raw = part.step == REMOVED_RAW
    counts = RemovedCounts(
        removed=rows,
        removed_ever=_ever(last, rows),
        first_batch=done + 1,
        removed_until=_removed_until(warehouse, part, last, done, base.batch_id) if is_raw else None,
        late_given_up=sum(one.events for one in left if one.batch_id <= base.batch_id) if is_raw else 0,
    )
    return base.next_step(part.step, started, counts)


def _bound(warehouse: Warehouse, seen: Seen, part: Part) -> int:
    """The last batch that may go as far as other tables are concerned."""
    others = [each.step for each in parts(warehouse.pipeline) if each.step != REMOVED_LEDGER]
    if part.step == REMOVED_RAW:
        oldest = warehouse.oldest_batch(OPEN)
        # An event that is open may yet be rejected, with its bytes, which are nowhere else.
        return seen.until if oldest is None else min(seen.until, oldest - 1)
    if part.step == REMOVED_LEDGER:
        # Its rows explain those that are left, and a report compares with as many batches as the setting says.
        compared = seen.reported + 1 - warehouse.pipeline.quality.history_batches
        return min(seen.until, compared, *(removed_through(seen.removals, step) for step in others))
    return min(seen.until, removed_through(seen.removals, REMOVED_RAW))


def _counted(warehouse: Warehouse, part: Part, seen: Seen, done: int, until: int) -> int:
    """The rows of the batches done + 1 … until; raises BrokenInvariant if the ledger counts others: evidence is not removed."""
    if part.step == REMOVED_COMPOUNDS:
        # The outbox keeps what void batches wrote.
        counts = [row.paired.compounds for row in seen.rows if row.step == PAIRED and done < row.batch_id <= until]
    elif part.step == REMOVED_REJECTED:
        counts = [row.paired.rejected for row in standing(seen.rows) if row.kind == LIVE and done < row.batch_id <= until]
    else:
        mine = {row.batch_id for row in standing(seen.rows) if row.kind == LIVE and done < row.batch_id <= until}
        counts = [row.landed.landed for row in seen.rows if row.step == LANDED and row.batch_id in mine]
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
    """Up to which event time, inclusive, accepted events ever went."""
    accepted = _rows(warehouse, part, ["ts", "problem"], done, until).where(F.col("problem").isNull())
    row = accepted.agg(F.max("ts").alias("until")).collect()[0]
    known = [at for at in (last.removed.removed_until if last else None, row["until"]) if at is not None]
    return max(known, default=None)


def _ever(last: LedgerRow | None, rows: int) -> int:
    return (last.removed.removed_ever if last else 0) + rows


def _remove(warehouse: Warehouse, part: Part, removal: LedgerRow | None, archive: Archive | None) -> None:
    """Does what the row of the ledger says, as far as it is not done."""
    if removal is None:
        return
    first, until = removal.removed.first_batch, removed_through({part.step: removal}, part.step)
    for table in part.tables:
        oldest = warehouse.oldest_batch(table)
        if oldest is None or oldest > until:
            continue
        if archive is not None:
            archive.put(warehouse, table, first, until)
        remove_batches(warehouse, table, until)
