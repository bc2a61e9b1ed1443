"""The batches of a pipeline as far as a story needs them: clocks and settings of all, whole ledger rows of few."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from spark_jobs.story.fates import Batches, KeyBatch
from spark_jobs.story.record_files import Record
from spark_jobs.tables.ledger import (
    PAIRED,
    PLANNED,
    REMOVED_COMPOUNDS,
    REMOVED_RAW,
    REMOVED_REJECTED,
    Ledger,
    LedgerRow,
    rewinds_among,
)
from spark_jobs.tables.records import LIVE, REPLAY, REWIND
from spark_jobs.tables.warehouse import LEDGER, Warehouse


class History(NamedTuple):
    """`paired`: batch_id, wall_time, clock and config_hash of the paired live batches that no rewind gave up, ascending; `settings`: by
    config_hash; `corrections`: batch_id -> plan, of replays and rewinds. `removals`: what was given up for its age, as the ledger has it.
    """

    paired: list[dict[str, Any]]
    settings: dict[str, Pipeline]
    corrections: dict[int, LedgerRow]
    removals: dict[str, LedgerRow]

    def batches(self, records: dict[int, list[Record]]) -> Batches:
        """What each batch had of a key, from the one before the first that had anything. `records`: by batch_id."""
        first = next((place for place, row in enumerate(self.paired) if row["batch_id"] in records), 0)
        return [
            KeyBatch(
                batch_id=row["batch_id"],
                records=records.get(row["batch_id"], []),
                clock=row["clock"],
                wall_time=row["wall_time"],
                pipeline=self.settings[row["config_hash"]],
            )
            for row in self.paired[max(first - 1, 0) :]
        ]

    def aged(self) -> str | None:
        """What was given up for its age, for people; None if nothing was."""
        names = {REMOVED_RAW: "messages", REMOVED_REJECTED: "rejected events", REMOVED_COMPOUNDS: "compounds"}
        told = [
            f"{what} up to batch {self.removals[step].batch_id}" for step, what in names.items() if step in self.removals
        ]
        return f"removed for their age, and not told: {', '.join(told)}" if told else None

    def may_lack(self, ts: int | None, reach: int) -> bool:
        """Whether an event at `ts` (epoch ms) may have met events whose raw rows were given up. `reach`: how far apart such can lie."""
        until = self.removals[REMOVED_RAW].removed.removed_until if REMOVED_RAW in self.removals else None
        return ts is not None and until is not None and ts <= until + reach

    def kind(self, batch_id: int) -> str:
        """What a batch is, for people: `batch 7`, `batch 7, a replay of …`."""
        plan = self.corrections.get(batch_id)
        if plan is None:
            return f"batch {batch_id}"
        return f"batch {batch_id}, " + (
            f"a replay of {plan.replay.window}" if plan.kind == REPLAY else f"a rewind to batch {plan.rewind.to_batch}"
        )


def read_history(warehouse: Warehouse) -> History:
    """Raises MissingTable if there is no ledger, NeedsOperator if the pipeline is another one now."""
    ledger = Ledger(warehouse)
    newest = warehouse.newest_batch(LEDGER)
    if newest is None:
        return History([], {}, {}, {})
    # Says so if topics or key of the file are not those of the tables.
    ledger.rows(newest, newest)
    columns = ["batch_id", "kind", "wall_time", "clock", "config_hash"]
    paired = warehouse.found(LEDGER, columns, lambda column: column("step") == PAIRED)
    paired.sort(key=lambda row: int(row["batch_id"]))
    corrections = ledger.where(lambda column: (column("step") == PLANNED) & column("kind").isin([REPLAY, REWIND]))
    rewinds = rewinds_among(corrections)
    live = [row for row in paired if row["kind"] == LIVE and not any(rewind.voids(row["batch_id"]) for rewind in rewinds)]
    first = {row["config_hash"]: row["batch_id"] for row in reversed(live)}
    settings = {row.config_hash: row.pipeline for row in planned_rows(warehouse, first.values())}
    return History(live, settings, {row.batch_id: row for row in corrections}, ledger.removals())


def planned_rows(warehouse: Warehouse, batches: Collection[int]) -> list[LedgerRow]:
    """The plans of these batches."""
    wanted = list(batches)
    return Ledger(warehouse).where(lambda column: (column("step") == PLANNED) & column("batch_id").isin(wanted))
