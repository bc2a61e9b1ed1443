"""Replays: whether an interval can be replayed, the plan, the difference to what was published, and writing the corrections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial, reduce
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from include.config.time_text import moment
from spark_jobs.corrections.chains import AFTER
from spark_jobs.corrections.replay_events import Surroundings, look_around, rows_of_chains
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import Counts
from spark_jobs.rules.conservation import BrokenInvariant, check_conservation
from spark_jobs.rules.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.rules import Rules
from spark_jobs.spark.session import MANY_ROWS
from spark_jobs.stages.outcome_rows import decide
from spark_jobs.tables.commit import commit_frame
from spark_jobs.tables.integrity import table_versions
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, REMOVED_RAW, LedgerRow
from spark_jobs.tables.outbox import RETRACT, UPSERT, corrections
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.records import ReplayPlan, Window, correction_counts
from spark_jobs.tables.schemas import COMPOUNDS, OPEN
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

NEW, CHANGED, RETRACTED, UNCHANGED = DIFFERENCES = ("new", "changed", "retracted", "unchanged")
_PLACE = ["topic", "partition", "offset"]
# Columns that say how a row came about, not what the compound is.
HISTORY = ("revision", "op", "batch_id")


def check_window(window: Window, last: LedgerRow, pipeline: Pipeline) -> None:
    """Raises NeedsOperator if events of the interval may still wait for others. `last`: the `paired` row of the last batch."""
    if window.start >= window.end:
        raise NeedsOperator(f"the interval {window} is empty: its start is inclusive and must lie before its end")
    after = pipeline.gap_ms + pipeline.grace_ms
    if last.clock is None:
        raise NeedsOperator(
            f"the interval {window} is not closed yet: batch {last.batch_id} has no clock, so no time is closed"
        )
    # An event at end - 1 is over if end - 1 + gap + grace < clock.
    if window.end + after > last.clock:
        raise NeedsOperator(
            f"the interval {window} is not closed yet: after batch {last.batch_id} everything before {moment(last.clock - after)} is; "
            f"replay it when a batch has a clock of at least {moment(window.end + after)}"
        )


def plan_replay(warehouse: Tables, ledger: Ledger, last: LedgerRow, window: Window) -> LedgerRow:
    """The plan of a replay, the batch after `last` (as `finish_batch` returns it). It reads nothing from the topics.

    Raises NeedsOperator if raw rows of the interval were removed for their age.
    """
    pipeline = warehouse.pipeline
    plan = ReplayPlan(
        open_before=last.paired.open_after,
        topic_ids=last.plan.topic_ids,
        corrected=last.plan.corrected,
        window=window,
        # How long before its own event a compound can have begun, with any settings that this pipeline ever had.
        reach_ms=max(max(each.max_session_ms, each.tolerance_ms) for each in (pipeline, *ledger.settings())),
        removed_until=_removed_until(ledger, window),
    )
    return last.planned_next(plan, pipeline)


def _removed_until(ledger: Ledger, window: Window) -> int | None:
    """The event time, inclusive, up to which raw rows may be removed; None if none are. Raises NeedsOperator if some of the interval are."""
    removal = ledger.removals().get(REMOVED_RAW)
    until = removal.removed.removed_until if removal else None
    if until is not None and window.start <= until:
        raise NeedsOperator(
            f"the interval {window} cannot be replayed: raw rows with events up to {moment(until)} were removed for their age; begin at "
            f"{moment(until + 1)} or later"
        )
    return until


class Difference(NamedTuple):
    """The difference between the compounds of an interval and what was published of it."""

    # As `compare` returns them.
    rows: DataFrame
    # Compounds of the interval, by DIFFERENCES.
    counts: Counts

    @property
    def corrections(self) -> int:
        """Number of rows to write."""
        return sum(number for name, number in self.counts.items() if name != UNCHANGED)


@contextmanager
def difference(warehouse: Warehouse, planned: LedgerRow) -> Iterator[Difference]:
    """The corrections of the replay, valid during the block. Raises NeedsOperator if they cannot be known, or not yet."""
    rules = Rules(planned.pipeline, planned.clock, None, planned.topics)
    around = look_around(warehouse, planned)
    with ExitStack() as cleanup:

        def keep(rows: DataFrame, kinds: str) -> tuple[DataFrame, dict[str, int]]:
            """The rows, on disk during the block, and how many there are of each kind."""
            kept = rows.persist(StorageLevel.DISK_ONLY)
            cleanup.callback(kept.unpersist)
            return kept, {row[kinds]: row["count"] for row in kept.groupBy(kinds).count().collect()}

        decided, outcomes = keep(decide(around.events(), rules, around.expected, planned.batch_id), "kind")
        check_conservation(0, around.expected, outcomes)
        rows, counted = keep(compare(decided, known_compounds(around), planned), "difference")
        changes = Difference(rows, {name: counted.get(name, 0) for name in DIFFERENCES})
        if changes.corrections:
            check_gone(decided, changes, planned)
        check_closed(around, decided, rows)
        yield changes


def finish_replay(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow) -> LedgerRow:
    """Completes the planned replay, which may have been begun before, and returns the `paired` row."""
    with difference(warehouse, planned) as changes:
        return write_corrections(warehouse, ledger, planned, changes)


def write_corrections(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, changes: Difference) -> LedgerRow:
    """Appends the corrections and records them; returns the `paired` row, from which the next batch continues."""
    started, batch_id = datetime.now(UTC), planned.batch_id
    rows = corrections(changes.rows.where(F.col("difference") != UNCHANGED), batch_id)
    commit_frame(warehouse, COMPOUNDS, rows, COMPOUNDS, batch_id)
    mine = warehouse.read(COMPOUNDS, ["op", "revision"], batches=[batch_id])
    kind = F.when(F.col("op") == RETRACT, RETRACTED).when(F.col("revision") == 0, NEW).otherwise(CHANGED)
    written = {row["difference"]: row["count"] for row in mine.groupBy(kind.alias("difference")).count().collect()}
    if written != {name: number for name, number in changes.counts.items() if number and name != UNCHANGED}:
        raise BrokenInvariant(f"replay {batch_id} was to write {changes.counts}, but {COMPOUNDS} has {written} of it")
    counts = correction_counts(planned.plan, compounds=changes.corrections, **changes.counts)
    versions = planned.versions | table_versions(warehouse, [COMPOUNDS])
    paired = planned.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired


def known_compounds(around: Surroundings) -> DataFrame:
    """`pair_id` and `now`, its last row, of all compounds that are or ever were in the interval, and of those that may move into it."""
    window, span, crossing = around.planned.replay.window, around.span_ms, around.after.crossing
    read = partial(around.warehouse.read, COMPOUNDS, batches=around.batches(window.start - span))
    # A compound has the id of its left event, and moves if its right one changes: it was in the interval, or will be, only if the left
    # one is not before it, and after it only if their chain reaches so far.
    before = read(times=Window(window.start - span, window.start), where=lambda column: column("left_ts") >= window.start)
    mine = InWorker(rows_of_chains(around.planned.pipeline.key, AFTER, crossing))
    rows = read(times=window).unionAll(before).unionAll(read(times=Window(window.end, window.end + span), made=mine))
    return rows.groupBy("pair_id").agg(F.max_by(F.struct(*rows.columns), "revision").alias("now"))


def _published(planned: LedgerRow) -> Column:
    return (F.col("now.op") == UPSERT) & planned.replay.window.has(F.col("now.ts"))


def compare(decided: DataFrame, known: DataFrame, planned: LedgerRow) -> DataFrame:
    """One row for each compound that is in the interval as published or by these outcomes (of `decide`).

    Columns: `pair_id`, `now` (its last row, null if it has none), `then` (the row it should have, null if none) and `difference`,
    one of DIFFERENCES.
    """
    rows = decided.where(F.col("kind").isin(*map(str, COMPOUND_KINDS)))
    should_be = rows.select("pair_id", F.struct(*rows.columns).alias("then"))
    contents = [name for name in rows.columns if name not in HISTORY]

    def content(version: str) -> Column:
        return F.struct(*(F.col(f"{version}.{name}") for name in contents))

    is_out = F.coalesce(F.col("now.op") == UPSERT, F.lit(False))
    difference = (
        F.when(F.col("then").isNull() & is_out, RETRACTED)
        .when(F.col("then").isNotNull() & F.col("now").isNull(), NEW)
        .when(F.col("then").isNotNull() & is_out & content("now").eqNullSafe(content("then")), UNCHANGED)
        .when(F.col("then").isNotNull(), CHANGED)
    )
    both = should_be.join(known, "pair_id", "full").withColumn("difference", difference)
    return both.where(F.col("difference").isNotNull() & (planned.replay.window.has(F.col("then.ts")) | _published(planned)))


def check_gone(decided: DataFrame, changes: Difference, planned: LedgerRow) -> None:
    """Raises NeedsOperator if events of published compounds are removed: only of such that change, others were made again of theirs."""
    # A place alone may be another event's: a log may have been cut.
    event = [*planned.pipeline.key, *_PLACE]
    changed = changes.rows.where((F.col("difference") != UNCHANGED) & _published(planned)).select("now.*")
    published = _events(changed, planned.pipeline)
    wanted = F.broadcast(published) if changes.corrections < MANY_ROWS else published
    gone = published.count() - _events(decided, planned.pipeline).join(wanted, event, "left_semi").count()
    if gone:
        raise NeedsOperator(
            f"the interval {planned.replay.window} cannot be replayed: {gone} events of its published compounds are no longer in the raw "
            "tables, which without them would all be taken back; nothing was changed. If records of unknown schemas were healed, run heal_schemas"
        )


def check_closed(around: Surroundings, decided: DataFrame, rows: DataFrame) -> None:
    """Raises NeedsOperator if events of the interval's compounds may still get another outcome. `rows`: of `compare`."""
    planned, pipeline, window = around.planned, around.planned.pipeline, around.planned.replay.window
    event = [*pipeline.key, *_PLACE]
    # Open by the live pairing, or by this one.
    waiting = partial(around.warehouse.read, OPEN, [*event, "ts"], version=planned.versions[OPEN])
    open_here = _events(decided.where(F.col("kind") == str(Outcome.OPEN)), pipeline)
    near = waiting(times=Window(window.start, window.end + around.span_ms)).unionAll(open_here)
    if not near.count():
        return
    mine = (rows.where(_published(planned)).select("now.*"), rows.where(window.has(F.col("then.ts"))).select("then.*"))
    of_compounds = reduce(DataFrame.unionAll, (_events(each, pipeline) for each in mine))
    still = near.where(window.has(F.col("ts"))).unionAll(near.join(of_compounds, event, "left_semi"))
    keys = still.select(*pipeline.key).distinct()
    until = waiting().unionAll(open_here).join(keys, list(pipeline.key), "left_semi").agg(F.max("ts")).collect()[0][0]
    if until is not None:
        over = until + pipeline.gap_ms + pipeline.grace_ms + 1
        raise NeedsOperator(
            f"the interval {window} is not closed yet: sessions that begin in it are still open, with events up to {moment(until)}; replay "
            f"it when a batch has a clock of at least {moment(over)}"
        )


def _events(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Key fields, place and `ts` of the events of such rows, one row each."""
    sides = []
    for side in ("left", "right"):
        place = (F.col(f"{side}_{name}").alias(name) for name in (*_PLACE, "ts"))
        sides.append(rows.where(F.col(f"{side}_offset").isNotNull()).select(*pipeline.key, *place))
    return reduce(DataFrame.unionAll, sides)
