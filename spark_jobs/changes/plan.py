"""What a pipeline's file would change against what its last batch ran with."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from include.config.setting_changes import Change, changed_settings
from spark_jobs.changes.consequences import CONSEQUENCES, consequence_of
from spark_jobs.changes.open_events import Effect, effect, open_events
from spark_jobs.changes.topics import topic_changes
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.tables.integrity import newest_row
from spark_jobs.tables.ledger import Ledger, check_identity
from spark_jobs.tables.ledger_rows import ALL_PUBLICATIONS, PAIRED, PLANNED, PUBLISHED, LedgerRow
from spark_jobs.tables.schemas import LEDGER, OPEN
from spark_jobs.tables.tables import Tables

UNCHANGED, CHANGED, FORBIDDEN, NEW = "unchanged", "changed", "forbidden", "new"


class PlannedChange(NamedTuple):
    """A change, from when it counts, and what follows from it."""

    change: Change
    since: str
    consequence: str


@dataclass(frozen=True, kw_only=True)
class ChangePlan:
    """What would change. `batch_id`: the last batch, 0 before the first; `clock`: up to which it closed, epoch ms."""

    pipeline: str
    place: str  # of its tables
    batch_id: int = 0
    is_unfinished: bool = False
    clock: int | None = None
    changes: tuple[PlannedChange, ...] = ()
    forbidden: tuple[str, ...] = ()
    effect: Effect | None = None  # None where there is no batch, or the change is refused
    asked_kafka: bool

    @property
    def state(self) -> str:
        if self.forbidden:
            return FORBIDDEN
        return NEW if not self.batch_id else CHANGED if self.changes else UNCHANGED

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON has it; the numbers of `effect` under `open_events`."""
        changes = [{**each.change._asdict(), "since": each.since, "consequence": each.consequence} for each in self.changes]
        found = {**asdict(self), "state": self.state, "changes": changes}
        found["open_events"] = found.pop("effect")
        return found


def plan_changes(root: str, new: Pipeline) -> ChangePlan:
    """Compares the file with the tables below the warehouse `root`, and with the topics if PAIRING_KAFKA is set. Only reads.

    Raises JobProblem where tables or topics cannot be read.
    """
    asked = bool(os.environ.get(VARIABLE))
    ran_with = _last_settings(Tables(root, new))
    if ran_with is None:
        if asked:
            topic_changes(new, new, None, [])
        return ChangePlan(pipeline=new.name, place=f"{root}/{new.name}", asked_kafka=asked)
    tables = Tables(root, ran_with)
    ledger = Ledger(tables)
    steps, published = ledger.last_batch(), _last_published(ledger)
    last, planned = newest_row(steps), steps[PLANNED]
    refused, changes = list(_identity_problem(ran_with, new)), [_planned(each) for each in changed_settings(ran_with, new)]
    if asked:
        problems, grown = topic_changes(_at_clusters_of(new, ran_with), new, last, published)
        refused += problems
        changes += [PlannedChange(change, what.since, what.larger) for change, what in grown]
    # An unfinished batch has not changed the open events that it has read.
    state = steps.get(PAIRED, planned)
    made = None
    if not refused:
        waiting = open_events(tables, state.topics, state.versions[OPEN])
        made = effect(waiting, state.topics, ran_with, new, state.clock, time.time_ns() // 1_000_000)
    return ChangePlan(
        pipeline=new.name,
        place=f"{root}/{new.name}",
        batch_id=planned.batch_id,
        is_unfinished=PAIRED not in steps,
        clock=state.clock,
        changes=tuple(changes),
        forbidden=tuple(refused),
        effect=made,
        asked_kafka=asked,
    )


def _last_settings(tables: Tables) -> Pipeline | None:
    """Those of the last batch; None before the first one. Reads nothing that depends on the settings of the file."""
    if not tables.exists(LEDGER):
        return None
    rows = tables.newest_rows(LEDGER, 0, ["config"])
    return Pipeline.from_json(rows[-1]["config"]) if rows else None


def _at_clusters_of(new: Pipeline, ran_with: Pipeline) -> Pipeline:
    """The topics of the last batch, and those that the file adds, at the addresses that it has now."""
    named = new if new.goes_on_from(ran_with) else ran_with
    left, right = (
        replace(old, topic=mine.topic, topic_pattern=mine.topic_pattern, connection=side.connection)
        for old, mine, side in zip(ran_with.sides, named.sides, new.sides, strict=True)
    )
    return replace(ran_with, left=left, right=right, output_connection=new.output_connection)


def _last_published(ledger: Ledger) -> list[LedgerRow]:
    """The rows of the last published batch, one for each topic."""
    last = ledger.last_ids()[PUBLISHED]
    return [row for row in ledger.rows(last, last) if row.step in ALL_PUBLICATIONS]


def _identity_problem(ran_with: Pipeline, new: Pipeline) -> Iterator[str]:
    try:
        check_identity(ran_with, new)
    except NeedsOperator as refusal:
        yield str(refusal)


def _planned(change: Change) -> PlannedChange:
    return PlannedChange(change, CONSEQUENCES[change.setting].since, consequence_of(change))
