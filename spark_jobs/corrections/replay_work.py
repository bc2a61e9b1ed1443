"""The work of a replay: pair the interval again, write the difference. Whoever repeats it from its plan changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.corrections.replay_difference import (
    CHANGED,
    FOUND,
    NEW,
    RETRACTED,
    UNCHANGED,
    check_decided,
    compared,
    known_compounds,
)
from spark_jobs.corrections.replay_events import events_around
from spark_jobs.job.run import Counts
from spark_jobs.rules.batch_rules import batch_rules
from spark_jobs.rules.conservation import BrokenInvariant, check_conservation
from spark_jobs.spark.session import expect_rows
from spark_jobs.stages.whole_keys import decide
from spark_jobs.tables.agreement import table_versions
from spark_jobs.tables.commit import commit_frame
from spark_jobs.tables.ledger import PAIRED, Ledger, LedgerRow
from spark_jobs.tables.outbox import RETRACT, corrections
from spark_jobs.tables.records import correction_counts
from spark_jobs.tables.warehouse import COMPOUNDS, Warehouse


class Difference(NamedTuple):
    """`rows`: what `compared` gives. `counts`: compounds of the interval, by FOUND."""

    rows: DataFrame
    counts: Counts

    @property
    def corrections(self) -> int:
        """Rows to be written."""
        return sum(number for found, number in self.counts.items() if found != UNCHANGED)


@contextmanager
def difference(warehouse: Warehouse, planned: LedgerRow) -> Iterator[Difference]:
    """What the replay has to correct, while the block runs. Raises NeedsOperator where it cannot be known, or not yet."""
    rules = batch_rules(planned.pipeline, planned.clock, previous_clock=None)
    with events_around(warehouse, planned) as events:
        read = events.count()
        expect_rows(warehouse.spark, read)
        outcomes = decide(events, rules, read).persist(StorageLevel.DISK_ONLY)
        rows = None
        try:
            found = {row["outcome"]: row["count"] for row in outcomes.groupBy("outcome").count().collect()}
            check_conservation(0, read, found)
            known = known_compounds(warehouse, planned)
            check_decided(warehouse, outcomes, known, planned)
            rows = compared(outcomes, known, planned).persist(StorageLevel.DISK_ONLY)
            counted = {row["found"]: row["count"] for row in rows.groupBy("found").count().collect()}
            yield Difference(rows, {name: counted.get(name, 0) for name in FOUND})
        finally:
            outcomes.unpersist()
            if rows is not None:
                rows.unpersist()


def finish_replay(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow) -> LedgerRow:
    """Does what the plan says, whatever of it was done before, and gives the `paired` row."""
    with difference(warehouse, planned) as found:
        return write(warehouse, ledger, planned, found)


def write(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, found: Difference) -> LedgerRow:
    """Appends the corrections and records them; gives the `paired` row, from which the next batch goes on as from the one before."""
    started, batch_id = datetime.now(UTC), planned.batch_id
    rows = corrections(found.rows.where(F.col("found") != UNCHANGED), batch_id)
    commit_frame(warehouse, COMPOUNDS, rows, COMPOUNDS, batch_id)
    mine = warehouse.read(COMPOUNDS, ["op", "revision"], batches=[batch_id])
    kind = F.when(F.col("op") == RETRACT, RETRACTED).when(F.col("revision") == 0, NEW).otherwise(CHANGED)
    written = {row["found"]: row["count"] for row in mine.groupBy(kind.alias("found")).count().collect()}
    if written != {name: number for name, number in found.counts.items() if number and name != UNCHANGED}:
        raise BrokenInvariant(f"replay {batch_id} was to write {found.counts}, but {COMPOUNDS} has {written} of it")
    counts = correction_counts(planned.plan, compounds=found.corrections, **found.counts)
    versions = planned.versions | table_versions(warehouse, [COMPOUNDS])
    paired = planned.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired
