"""The law of dead letters: of a valid batch every rejected record was acknowledged or too large, of a void one no more than it rejected."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_jobs.kafka.positions import PublishRun
from spark_jobs.kafka.publisher import PartitionReport
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.stages.publish_rejected import _record, due_dead_letters
from spark_jobs.tables.ledger_rows import PAIRED, PUBLISHED_REJECTED, Rewind
from spark_jobs.tables.records import DeadLetterCounts
from tests.helpers.ledger_rows import ledger_row

RUN = PublishRun(
    "calls", "dead", "id", False, "table", partitions=2, ledger_position=4, target=7, largest=99, step=PUBLISHED_REJECTED
)
PAIRED_ROWS = [ledger_row(number, PAIRED, rejected=rejected) for number, rejected in ((5, 3), (6, 2), (7, 0))]
REWIND = [Rewind(7, 5)]


def warehouse(**rows):
    counted = {int(name[1:]): number for name, number in rows.items()}
    return SimpleNamespace(
        count_rows=lambda table, batches: (
            {number: counted[number] for number in batches} if table == "rejected_events" else {}
        )
    )


def test_what_is_due_is_there_and_of_no_void_batch():
    assert due_dead_letters(warehouse(_5=3, _6=2), PAIRED_ROWS, []) == (frozenset({5, 6, 7}), [5, 6])
    assert due_dead_letters(warehouse(_5=3), PAIRED_ROWS, REWIND) == (frozenset({5, 7}), [5])
    with pytest.raises(
        BrokenInvariant, match="batch 6: 2 records were rejected, but 1 are in rejected_events: nothing was sent"
    ):
        due_dead_letters(warehouse(_5=3, _6=1), PAIRED_ROWS, [])


@pytest.mark.parametrize(
    ("number", "acknowledged", "refused", "fits"),
    [(5, 3, 0, True), (5, 2, 1, True), (5, 2, 0, False), (5, 4, 0, False), (5, 3, 1, False), (6, 0, 0, True), (6, 1, 0, True), (6, 2, 1, False),
     (7, 0, 0, True), (7, 1, 0, False)],
)  # fmt: skip
def test_every_rejected_record_is_acknowledged_or_refused(number, acknowledged, refused, fits):
    due = due_dead_letters(warehouse(_5=3), PAIRED_ROWS, REWIND)
    reports = [PartitionReport(0, 0, {number: acknowledged}, {}, []), PartitionReport(1, 0, {}, {number: refused}, [])]
    row = PAIRED_ROWS[number - 5]
    if not fits:
        with pytest.raises(BrokenInvariant, match=f"batch {number}: {row.paired.rejected} records were rejected, but dead"):
            _record(row, RUN, due, reports, {0: 9, 1: 9})
        return
    counts, state = _record(row, RUN, due, reports, {0: 9, 1: 9})
    assert counts == DeadLetterCounts(dead_letters=acknowledged, refused=refused)
    assert (state.topic_id, state.position, dict(state.sent)) == ("id", 7, {0: acknowledged} if acknowledged else {})
