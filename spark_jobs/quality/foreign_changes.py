"""What other programs changed in the tables of a pipeline since the batch before: its rows may be gone, or there twice, without a sign elsewhere."""

from __future__ import annotations

from include.config.pipeline import Pipeline
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import Breakdown, rows_of
from spark_jobs.quality.silence import WARNING, Notice, checked_sentences, notices
from spark_jobs.tables.foreign_commits import foreign_commits
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Tables

FOREIGN_CHANGES = "foreign_changes"
_FAMILY = "foreign_change"
_SHOWN = 3


def foreign_changes(warehouse: Tables, batch: Batch, previous: Batch | None) -> list[Breakdown]:
    """The commits of other programs between the end of the previous batch and that of this one, as rows: `value` is the operation, `field`
    the table, `number` the version.

    The ledger names the version of each table after each batch. Where it is one commit further and the batch has written to the table, no log is read.
    """
    if previous is None and batch.batch_id > 1:
        # The rows of the batches before were removed for their age, and with them the versions.
        return []
    before, after = previous.paired.versions if previous else {}, batch.paired.versions
    pipeline, own = batch.paired.pipeline.name, _own_commits(batch)
    return [
        Breakdown(_FAMILY, found.version, field=table, value=found.operation)
        for table, version in sorted(after.items())
        if version - before.get(table, 0) > own.get(table, 0)
        for found in foreign_commits(warehouse.store(table), pipeline, before.get(table, 0), version)
    ]


def _own_commits(batch: Batch) -> dict[str, int]:
    """To which tables a live batch has made its one commit."""
    if not batch.is_live:
        return {}
    counts = batch.pairing
    wrote = {COMPOUNDS: counts.compounds, REJECTED: counts.rejected, OPEN: counts.open_before or counts.open_after}
    for side in batch.paired.pipeline.sides:
        wrote[raw_table(side)] = any(at.planned for at in batch.landed.offsets if side.has(at.topic))
    return {table: 1 for table, rows in wrote.items() if rows}


def check_sentences(pipeline: Pipeline, batch: Batch) -> dict[str, str]:
    """By metric, the sentence that a failed check of the batch shows instead of its rule."""
    found = checked_sentences(notices(pipeline, batch.metrics))
    if rows := rows_of(batch.breakdowns, _FAMILY):
        named = [f"{row.field} ({row.value}, version {row.number})" for row in rows[1:_SHOWN]]
        hidden = [f"{len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
        others, first = "".join(f", {each}" for each in (*named, *hidden)), rows[0]
        notice = Notice(
            f"{first.field} was changed by another program ({first.value}, version {first.number}){others}: "
            "reconcile says what is missing",
            WARNING,
        )
        found[FOREIGN_CHANGES] = notice.text
    return found
