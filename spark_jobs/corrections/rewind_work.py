"""The work of a rewind that is planned: correct the outbox, put the tables back. Whoever repeats it changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.agreement import table_versions
from spark_jobs.tables.commit import EVERYTHING, Going, commit, commit_frame
from spark_jobs.tables.ledger import PAIRED, Ledger, LedgerRow
from spark_jobs.tables.outbox import RETRACT, changed_since, corrections
from spark_jobs.tables.records import PairedCounts, correction_counts
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, REJECTED, TableProblem, Warehouse, raw_table


def finish_rewind(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow) -> LedgerRow:
    """Does what the plan says and gives the `paired` row, from which the next batch goes on as from that of `to_batch`.

    Every table is changed by one commit that is fenced by the rewind's batch_id, also where nothing changes: so what a dead batch
    may still be writing comes too late. Raises NeedsOperator if open_events cannot be read as it was.
    """
    started = datetime.now(UTC)
    batch_id, to_batch = planned.batch_id, planned.rewind.to_batch
    check_open_events(warehouse, to_batch, planned.versions[OPEN], planned.plan.open_before)
    later = ledger.rows(to_batch, batch_id - 1)
    last_paired = max((row.batch_id for row in later if row.step == PAIRED), default=0)
    taken_back = corrections(changed_since(warehouse, to_batch, last_paired), batch_id)
    # What a batch has written that was never paired has not been sent and never will be.
    commit_frame(warehouse, COMPOUNDS, taken_back, COMPOUNDS, batch_id, Going(last_paired + 1, None))
    _put_back(warehouse, planned)
    counts = _counted(warehouse, planned)
    versions = planned.versions | table_versions(warehouse, [COMPOUNDS, OPEN, *appended_tables(warehouse)])
    paired = planned.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired


def _put_back(warehouse: Warehouse, planned: LedgerRow) -> None:
    """Takes the void batches' rows out of the tables that are only appended to, and brings the open events of then back."""
    to_batch, batch_id = planned.rewind.to_batch, planned.batch_id

    waiting = warehouse.read(OPEN, version=planned.versions[OPEN])
    void = Going(to_batch + 1, None)
    with ThreadPoolExecutor(max_workers=2) as both:
        writes = [both.submit(commit, warehouse, table, [], table, batch_id, void) for table in appended_tables(warehouse)]
        writes.append(both.submit(commit_frame, warehouse, OPEN, waiting, OPEN, batch_id, EVERYTHING))
        for write in writes:
            write.result()


def appended_tables(warehouse: Warehouse) -> list[str]:
    """The tables whose rows of later batches go."""
    return [*(raw_table(side) for side in warehouse.pipeline.sides), REJECTED]


def check_open_events(warehouse: Warehouse, to_batch: int, version: int, expected: int) -> None:
    """Raises NeedsOperator if open_events cannot be read as batch `to_batch` left it."""
    try:
        with warehouse.at_work_on(OPEN):
            # All columns: the files have to be there and whole, which their names in the log do not tell.
            rows = warehouse.read(OPEN, version=version)
            row = rows.agg(F.count("*").alias("events"), F.max(F.xxhash64(*rows.columns)).alias("read")).first()
        found = row["events"] if row else 0
    except TableProblem as problem:
        raise _gone(to_batch, version, problem) from None
    except NeedsOperator as problem:
        if "is missing" not in str(problem):
            raise
        raise _gone(to_batch, version, problem) from None
    if found != expected:
        raise NeedsOperator(
            f"open_events as it was after batch {to_batch} (version {version}) holds {found} events, but the batch left {expected}: "
            "was the table changed by hand? go back to another batch"
        )


def _gone(to_batch: int, version: int, problem: JobProblem) -> NeedsOperator:
    return NeedsOperator(
        f"open_events as it was after batch {to_batch} (version {version}) cannot be read any more ({problem}): was it vacuumed? "
        "go back to a later batch"
    )


def _counted(warehouse: Warehouse, planned: LedgerRow) -> PairedCounts:
    """The counts of the `paired` row, read back from the tables; raises BrokenInvariant if a table is not as it has to be."""
    to_batch, batch_id = planned.rewind.to_batch, planned.batch_id
    tables = [
        warehouse.read(table, ["batch_id"], where=lambda column: column("batch_id") > to_batch).select(
            F.lit(table).alias("what")
        )
        for table in appended_tables(warehouse)
    ]
    tables += [
        warehouse.read(OPEN, ["batch_id"]).select(F.lit(OPEN).alias("what")),
        warehouse.read(COMPOUNDS, ["op"], batches=[batch_id]).select(F.col("op").alias("what")),
    ]
    counted = reduce(DataFrame.unionAll, tables).groupBy("what").agg(F.count("*").alias("rows")).collect()
    found = {row["what"]: row["rows"] for row in counted}
    for table in appended_tables(warehouse):
        if found.get(table, 0):
            raise BrokenInvariant(
                f"rewind {batch_id} to batch {to_batch} left {found[table]} rows of void batches in {table}: nothing goes on from there"
            )
    open_before, open_after = planned.plan.open_before, found.pop(OPEN, 0)
    if open_after != open_before:
        raise BrokenInvariant(
            f"rewind {batch_id} to batch {to_batch} left {open_after} rows in {OPEN}, but the batch had left {open_before} open"
        )
    return correction_counts(planned.plan, compounds=sum(found.values()), retracted=found.get(RETRACT, 0))
