"""Replays one interval: pairs its events again and corrects what was published otherwise."""

from __future__ import annotations

from spark_jobs.corrections.looked import note_look
from spark_jobs.corrections.replay import check_window, difference, plan_replay, write_corrections
from spark_jobs.corrections.unfinished import finish_batch
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import Counts
from spark_jobs.tables.integrity import check_ledger
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Warehouse


def replay_interval(warehouse: Warehouse, window: Window) -> Counts:
    """Replays the interval; returns how many of its compounds are new, changed, retracted, unchanged.

    Raises NeedsOperator if the interval is not closed yet, or its events are gone.
    """
    ledger = Ledger(warehouse)
    last = finish_batch(warehouse, ledger)
    if last is None:
        raise NeedsOperator(
            f"pipeline {warehouse.pipeline.name} has no batch yet, so there is nothing to replay: run land_events"
        )
    check_window(window, last, warehouse.pipeline)
    planned = plan_replay(warehouse, ledger, last, window)
    with difference(warehouse, planned) as found:
        if not found.corrections:
            note_look(warehouse, window)
            return found.counts
        check_ledger(warehouse, last)
        planned = ledger.plan(planned)
        # All four of the difference, as where there is none, also those that the ledger leaves out.
        return {
            "batch_id": planned.batch_id,
            **write_corrections(warehouse, ledger, planned, found).paired.flat(),
            **found.counts,
        }
