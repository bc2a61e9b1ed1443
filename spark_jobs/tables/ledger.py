"""The ledger: one row for each step of every batch. It is the record of what happened; every job reads it first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.rules.side_topics import SideTopics, topics_of
from spark_jobs.tables.batch_settings import BatchSettings
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.ledger_rows import (
    COLUMNS,
    PLANNED,
    REMOVALS,
    STEPS,
    LedgerRow,
    Rewind,
    find_rewinds,
    in_order,
    row_of_struct,
    row_struct,
)
from spark_jobs.tables.records import ERASURE, REWIND, LivePlan
from spark_jobs.tables.schemas import LEDGER
from spark_jobs.tables.tables import Condition, Tables

# What this process has recorded, in that order.
_recorded: list[LedgerRow] = []
# A step seldom lags behind by more batches than the first number, hardly ever by more than the second, and never by the last.
_RECENT = (1, 20, 2**40)


class Ledger:
    """Reads and appends ledger rows of one pipeline."""

    def __init__(self, warehouse: Tables) -> None:
        self.warehouse = warehouse

    def last_batch(self) -> dict[str, LedgerRow]:
        """Step -> row of the batch with the largest id; empty before the first plan."""
        return {row.step: row for row in self._checked(self.warehouse.newest_rows(LEDGER, 0))}

    def last_ids(self) -> dict[str, int]:
        """Step -> the largest batch_id with this step; 0 if there is none."""
        found = dict.fromkeys(STEPS, 0)
        for before in _RECENT:
            recent = self.warehouse.newest_rows(LEDGER, before, ["batch_id", "step"])
            for row in recent:
                if row["step"] in found:
                    found[row["step"]] = max(found[row["step"]], row["batch_id"])
            if all(found.values()) or min((row["batch_id"] for row in recent), default=1) == 1:
                break
        return found

    def rows(self, first: int, last: int | None = None) -> list[LedgerRow]:
        """All rows of the batches first..last, both inclusive, by batch and step; `last` None: up to the newest."""
        return self._checked(self.warehouse.small_rows(LEDGER, first, last))

    def where(self, condition: Condition) -> list[LedgerRow]:
        """The rows that fit, by batch and step."""
        return in_order(map(row_of_struct, self.warehouse.select_rows(LEDGER, ["kind", *COLUMNS], condition)))

    def rewinds(self) -> list[Rewind]:
        """Every rewind that was ever planned, by batch_id."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "kind", "step"])
        ids = [row["batch_id"] for row in known if (row["kind"], row["step"]) == (REWIND, PLANNED)]
        return find_rewinds(row for batch_id in ids for row in self.rows(batch_id, batch_id))

    def last_erasure(self) -> int:
        """The last erasure that was ever planned; 0 if there is none."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "kind"])
        return max((row["batch_id"] for row in known if row["kind"] == ERASURE), default=0)

    def settings(self) -> list[Pipeline]:
        """The different settings that batches were planned with."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["config"])
        return [Pipeline.from_json(text) for text in sorted({row["config"] for row in known})]

    def batch_settings(self) -> BatchSettings:
        """The settings of every batch. Call only when there is one."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "config"])
        return BatchSettings.of((row["batch_id"], row["config"]) for row in known)

    def topics(self) -> SideTopics:
        """The topics of both sides that the settings name or that a batch has read; none is ever taken away."""
        pipeline = self.warehouse.pipeline
        if all(side.topic_pattern is None for side in pipeline.sides):
            return topics_of(pipeline)
        return topics_of(pipeline, {at.topic for row in self.last_batch().values() for at in row.offsets})

    def wall_times(self) -> dict[int, int]:
        """Batch -> its wall time, in epoch ms."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step", "wall_time"])
        return {row["batch_id"]: row["wall_time"] for row in known if row["step"] == PLANNED}

    def removals(self) -> dict[str, LedgerRow]:
        """Step -> its last row, for each of REMOVALS: which rows are removed for their age, and up to which batch."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step"])
        removed = sorted((row["batch_id"], row["step"]) for row in known if row["step"] in REMOVALS)
        last = {step: batch_id for batch_id, step in removed}
        return {step: row for step, batch_id in last.items() for row in self.rows(batch_id, batch_id) if row.step == step}

    def _checked(self, found: list[dict[str, Any]]) -> list[LedgerRow]:
        rows = [row_of_struct(row) for row in found]
        if rows:
            check_identity(rows[0].pipeline, self.warehouse.pipeline)
        return in_order(rows)

    def plan(self, plan: LedgerRow) -> LedgerRow:
        """Writes the plan of a batch before any work on it, and returns the row that is in the table, which counts.

        Raises JobProblem if another job has planned this batch otherwise.
        """
        self.append(plan)
        written = next(row for row in self.rows(plan.batch_id, plan.batch_id) if row.step == PLANNED)
        # Two live plans may differ in what they read; either will do. Plans of other kinds say what the operator wants; an erasure's is in the list
        # that its wall time names.
        is_other = written.plan != plan.plan and not isinstance(plan.plan, LivePlan)
        if written.kind != plan.kind or is_other or (plan.kind == ERASURE and written.wall_time != plan.wall_time):
            raise JobProblem(
                f"batch {plan.batch_id} was planned by another job meanwhile, nothing was changed: run this again"
            )
        return written

    def append(self, *rows: LedgerRow, among: str = "") -> None:
        """Records one step of one or more batches in one commit, fenced by the largest batch_id. Repetitions do nothing.

        `among`: the same step with another text is not a repetition. Of two planners with one batch_id only one writes, so a plan is read
        again before it is used. Later steps follow from the plan and the tables, so a repetition would write the same.
        """
        now = datetime.now(UTC)
        found = [row_struct(replace(row, finished_at=now)) for row in rows]
        commit_rows(self.warehouse, LEDGER, found, rows[-1].step, max(row.batch_id for row in rows), among)
        _recorded.extend(rows)


def recorded_steps() -> list[LedgerRow]:
    """The steps that this process has recorded, in that order; a job is a process of its own."""
    return list(_recorded)


def check_identity(ran_with: Pipeline, now: Pipeline) -> None:
    """Raises NeedsOperator if a pipeline that ran with the first settings cannot go on with the others."""
    if not now.goes_on_from(ran_with):
        raise NeedsOperator(
            f"pipeline {now.name}: its tables were made with topics, payloads and key {ran_with.identity}, the file "
            f"now says {now.identity}: put it back, or give the changed pipeline a file name of its own, and so its own tables"
        )
