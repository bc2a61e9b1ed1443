"""Publishing of dead letters: what is due for the rejected topic, and what the ledger gets when it was sent.

Of a void batch nothing is sent any more: later batches read its records again. What was sent before the rewind stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from spark_jobs.kafka.offsets import ends_written
from spark_jobs.kafka.positions import PublishRun
from spark_jobs.kafka.publisher import PartitionReport, output_state
from spark_jobs.kafka.settings import Settings
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.stages.send import dead_letters_of, send
from spark_jobs.stages.sent import SentToTopic
from spark_jobs.tables.ledger_rows import LedgerRow, Rewind
from spark_jobs.tables.records import DeadLetterCounts, OutputState
from spark_jobs.tables.schemas import REJECTED
from spark_jobs.tables.warehouse import Warehouse


class DueDeadLetters(NamedTuple):
    """The `paired` rows of batches that are not void, and the batch_ids of those among them that rejected something."""

    valid: frozenset[int]
    batches: Sequence[int]


def due_dead_letters(warehouse: Warehouse, paired: Iterable[LedgerRow], rewinds: Sequence[Rewind]) -> DueDeadLetters:
    """What of the batches has to be sent. Raises BrokenInvariant unless rejected_events has all of it: call before anything is sent."""
    valid = [row for row in paired if not any(rewind.voids(row.batch_id) for rewind in rewinds)]
    batches = [row.batch_id for row in valid if row.paired.rejected]
    found = warehouse.count_rows(REJECTED, batches) if batches else {}
    for row in valid:
        if row.paired.rejected and row.paired.rejected != found[row.batch_id]:
            raise BrokenInvariant(
                f"batch {row.batch_id}: {row.paired.rejected} records were rejected, but {found[row.batch_id]} are in rejected_events: nothing "
                "was sent; was the table changed by hand?"
            )
    return DueDeadLetters(frozenset(row.batch_id for row in valid), batches)


def publish_rejected(
    warehouse: Warehouse,
    settings: Settings,
    run: PublishRun,
    due: DueDeadLetters,
    paired: list[LedgerRow],
    started: datetime,
) -> SentToTopic:
    """Sends the dead letters that are due; the rows are not in the ledger yet."""
    reports = send(warehouse, settings, run, dead_letters_of(warehouse, run, due.batches))
    ends, rows = ends_written(settings, run.topic), []
    for row in paired:
        done, state = _record(row, run, due, reports, ends)
        rows.append(row.next_step(run.step, started, done, output=state))
    return SentToTopic(run.topic, run.step, reports, rows)


def _record(
    row: LedgerRow, run: PublishRun, due: DueDeadLetters, reports: list[PartitionReport], ends: dict[int, int]
) -> tuple[DeadLetterCounts, OutputState]:
    """What the ledger keeps of a batch. Raises BrokenInvariant unless every rejected record was acknowledged or refused for its size.

    `ends`: as for `published_record`.
    """
    state, refused = output_state(row.batch_id, run, reports, ends)
    acknowledged, rejected = sum(state.sent.values()), row.paired.rejected
    # A void batch may be sent in part.
    if acknowledged + refused > rejected or (row.batch_id in due.valid and acknowledged + refused < rejected):
        raise BrokenInvariant(
            f"batch {row.batch_id}: {rejected} records were rejected, but {run.topic} acknowledged {acknowledged}: reconcile names the "
            "batches with dead letters that are there twice"
        )
    return DeadLetterCounts(dead_letters=acknowledged, refused=refused), state
