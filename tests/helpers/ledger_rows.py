"""Rows of the ledger made by hand: a count that a test does not name is 0, all else that it does not name is nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, fields
from datetime import UTC, datetime
from typing import Any

from include.config.pipeline import Pipeline
from spark_jobs.tables.ledger_rows import _COUNTS, ALL_PUBLICATIONS, PUBLISHING, LedgerRow
from spark_jobs.tables.records import _PLANS, LIVE, AnyPlan, OutputState, StepCounts, TopicIds, Window

AT = datetime(2026, 1, 1, tzinfo=UTC)
IDS = TopicIds("left", "right")


def plan(kind: str = LIVE, **named: Any) -> AnyPlan:
    """The plan of a batch of this kind. Raises TypeError on a field that it does not have."""
    made = _PLANS[kind]
    return _filled(made, named, topic_ids=IDS, **({"window": Window(0, 0)} if "window" in _names(made) else {}))


def counts(step: str, **named: int | None) -> StepCounts:
    """The counts of this step. Raises TypeError on one that it does not have."""
    return _filled(_COUNTS.get(step, StepCounts), named)


def output_state(**named: Any) -> OutputState:
    """The output topic, `topic` with one partition."""
    return _filled(OutputState, named, topic_id="topic", partitions=1)


def ledger_rows(
    batch_id: int, steps: Iterable[str], kind: str = LIVE, pipeline: Pipeline | None = None, **named: Any
) -> list[LedgerRow]:
    """The rows of one batch. `named`: fields of the rows, of the plan, of the counts and of the output topic, each where there is one
    of its name. Raises TypeError on one that has no place in any of the rows.
    """
    said: dict[str, Any] = {"config": pipeline.to_json(), "config_hash": pipeline.config_hash} if pipeline else {}
    said |= named
    used: set[str] = set()

    def of(made: type) -> dict[str, Any]:
        mine = {name: value for name, value in said.items() if name in _names(made)}
        used.update(mine)
        return mine

    planned = said.get("plan") or plan(kind, **of(_PLANS[kind]))
    rows = []
    for step in steps:
        given: dict[str, Any] = {
            "offsets": (),
            "wall_time": 0,
            "clock": None,
            "config": "{}",
            "config_hash": "",
            "started_at": AT,
        }
        given["counts"] = counts(step, **of(_COUNTS.get(step, StepCounts)))
        if step in (PUBLISHING, *ALL_PUBLICATIONS):
            given["output"] = output_state(**of(OutputState))
        rows.append(LedgerRow(batch_id, step, **given | of(LedgerRow) | {"plan": planned}))
    if unused := said.keys() - used:
        raise TypeError(f"no row of batch {batch_id} has {sorted(unused)}")
    return rows


def ledger_row(batch_id: int, step: str, kind: str = LIVE, pipeline: Pipeline | None = None, **named: Any) -> LedgerRow:
    """One row, made as those of `ledger_rows`."""
    return ledger_rows(batch_id, (step,), kind, pipeline, **named)[0]


def _names(made: type) -> set[str]:
    return {each.name for each in fields(made)}


def _filled(made: type, named: dict[str, Any], **otherwise: Any) -> Any:
    needed = [each.name for each in fields(made) if each.default is MISSING and each.default_factory is MISSING]
    return made(**dict.fromkeys(needed, 0) | otherwise | named)
