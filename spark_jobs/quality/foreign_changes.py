"""What other programs changed in the tables of a pipeline since the batch before: its rows may be gone, or there twice, without a sign elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from include.config.pipeline import Pipeline
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import Breakdown, rows_of
from spark_jobs.quality.silence import WARNING, Notice, checked_sentences, notices
from spark_jobs.tables.foreign_commits import foreign_commits
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, METRICS, OPEN, REJECTED, raw_table
from spark_jobs.tables.tables import Tables

FOREIGN_CHANGES = "foreign_changes"
_FAMILY, _WATCHED = "foreign_change", "watched"
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


def watched_changes(warehouse: Tables, rows: Iterable[LedgerRow], before: Sequence[Breakdown]) -> list[Breakdown]:
    """The commits of other programs to the ledger and to quality_metrics since the report before, as by `foreign_changes`; and of each of both tables
    a row of the family `watched`: `number` is its version now, `bucket` the time (epoch ms), by which the next report goes on.

    `rows`: the newest ledger rows; `before`: the breakdowns of the report before. A log is read only if there are more or fewer commits than this
    pipeline has made: one for each step of the ledger, and one report.
    """
    known, found = {row.field: row for row in rows_of(before, _WATCHED)}, list[Breakdown]()
    rows, name = list(rows), warehouse.pipeline.name
    for table in (LEDGER, METRICS):
        # First the version: a commit that comes between is then counted as one too many.
        version = warehouse.version(table)
        found.append(Breakdown(_WATCHED, version, time.time_ns() // 1_000_000, table))
        if (then := known.get(table)) is None:
            continue
        since = (then.bucket or 0) / 1000
        steps = {(row.step, row.finished_at) for row in rows if row.finished_at and row.finished_at.timestamp() > since}
        if version - then.number != (len(steps) if table == LEDGER else 1):
            commits = foreign_commits(warehouse.store(table), name, then.number, version)
            found += [Breakdown(_FAMILY, each.version, field=table, value=each.operation) for each in commits]
    return found


def count_changes(breakdowns: Iterable[Breakdown]) -> int:
    """How many commits of other programs are among them."""
    return len(rows_of(breakdowns, _FAMILY))


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
