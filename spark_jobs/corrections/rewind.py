"""Rewinds: puts the tables back to what they were after an earlier batch, and corrects what consumers have. A repetition changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from pyspark.sql import functions as F

from spark_jobs.corrections.rewind_preview import Preview, make_preview, preview_text, refuse_losses
from spark_jobs.corrections.rewind_target import (
    appended_tables,
    check_open_events,
    count_each,
    find_target,
    plan_rewind,
    rows_after,
    starting_ranges,
    unfinished_rewind,
)
from spark_jobs.job.run import Counts
from spark_jobs.kafka.input_topics import ask_inputs
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.commit import ALL_BATCHES, BatchRange, commit, commit_frame
from spark_jobs.tables.integrity import table_versions
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, LedgerRow
from spark_jobs.tables.outbox import RETRACT, changed_since, corrections
from spark_jobs.tables.records import PairedCounts, correction_counts
from spark_jobs.tables.schemas import COMPOUNDS, OPEN
from spark_jobs.tables.warehouse import Warehouse


def rewind(warehouse: Warehouse, to_batch: int, accepted_losses: Iterable[str] = ()) -> Counts:
    """Goes back to the state after batch `to_batch` (0: before the first); returns the counts, none if the pipeline is there already.

    Raises NeedsOperator before any change if that cannot be done.
    """
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    planned = unfinished_rewind(steps, to_batch)
    if planned is None:
        preview = _preview_of(warehouse, ledger, to_batch)
        print(preview_text(warehouse, preview))
        refuse_losses(preview, accepted_losses)
        planned = ledger.plan(plan_rewind(warehouse, preview.target))
    elif PAIRED in steps:
        return {}
    return {"batch_id": planned.batch_id, **finish_rewind(warehouse, ledger, planned).paired.flat()}


def _preview_of(warehouse: Warehouse, ledger: Ledger, to_batch: int) -> Preview:
    """What a rewind to the batch would do; only reads."""
    target = find_target(warehouse, ledger, to_batch)
    # Rows removed from the raw tables could never be read again from another topic.
    newest = target.given_up[-1]
    topics = ask_inputs(warehouse.pipeline, newest.topics, newest.topic_ids, starting_ranges(target))
    return make_preview(warehouse, target, topics)


def dry_run(warehouse: Warehouse, to_batch: int) -> str:
    """The preview in words."""
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    planned = unfinished_rewind(steps, to_batch)
    if planned is None:
        preview = _preview_of(warehouse, ledger, to_batch)
        lost = " ".join(preview.lost)
        refused = [f"--yes refuses this without --accept-lost-range '{lost}'"] if lost else []
        return "\n".join([preview_text(warehouse, preview), *refused, "nothing was changed; --yes does it"])
    if PAIRED in steps:
        return f"nothing to do: rewind {planned.batch_id} has put the pipeline back to batch {to_batch}"
    return f"rewind {planned.batch_id} to batch {to_batch} was begun and not finished; --yes, or land_events, finishes it"


def finish_rewind(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow) -> LedgerRow:
    """Completes the planned rewind and returns the `paired` row, from which the next batch continues as from that of `to_batch`.

    Every table gets one commit fenced by the rewind's batch_id, even if nothing changes, so that late writes of a dead batch are
    refused. Raises NeedsOperator if open_events cannot be read as it was.
    """
    started = datetime.now(UTC)
    batch_id, to_batch = planned.batch_id, planned.rewind.to_batch
    check_open_events(warehouse, to_batch, planned.versions[OPEN], planned.plan.open_before)
    later = ledger.rows(to_batch, batch_id - 1)
    last_paired = max((row.batch_id for row in later if row.step == PAIRED), default=0)
    taken_back = corrections(changed_since(warehouse, to_batch, last_paired), batch_id)
    # Rows of a batch that was never paired were not sent and never will be.
    commit_frame(warehouse, COMPOUNDS, taken_back, COMPOUNDS, batch_id, BatchRange(last_paired + 1, None))
    waiting, void = warehouse.read(OPEN, version=planned.versions[OPEN]), BatchRange(to_batch + 1, None)
    with ThreadPoolExecutor(max_workers=2) as pool:
        writes = [pool.submit(commit, warehouse, table, [], table, batch_id, void) for table in appended_tables(warehouse)]
        writes.append(pool.submit(commit_frame, warehouse, OPEN, waiting, OPEN, batch_id, ALL_BATCHES))
        for write in writes:
            write.result()
    counts = _count_rows(warehouse, planned)
    versions = planned.versions | table_versions(warehouse, [COMPOUNDS, OPEN, *appended_tables(warehouse)])
    paired = planned.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired


def _count_rows(warehouse: Warehouse, planned: LedgerRow) -> PairedCounts:
    """The counts of the `paired` row, read back from the tables; raises BrokenInvariant if a table is not as planned."""
    to_batch, batch_id = planned.rewind.to_batch, planned.batch_id
    frames = [rows_after(warehouse, table, to_batch, table) for table in appended_tables(warehouse)]
    written = warehouse.read(COMPOUNDS, ["op"], batches=[batch_id]).select(F.col("op").alias("what"))
    found = count_each([*frames, rows_after(warehouse, OPEN, -1, OPEN), written])
    for table in appended_tables(warehouse):
        if found[table]:
            raise BrokenInvariant(
                f"rewind {batch_id} to batch {to_batch} left {found[table]} rows of void batches in {table}: no batch can continue from there"
            )
    open_before, open_after = planned.plan.open_before, found.pop(OPEN, 0)
    if open_after != open_before:
        raise BrokenInvariant(
            f"rewind {batch_id} to batch {to_batch} left {open_after} rows in {OPEN}, but the batch had left {open_before} open"
        )
    return correction_counts(planned.plan, compounds=found.total(), retracted=found[RETRACT])
