"""A rewind from its target to its end, or in words only."""

from __future__ import annotations

from collections.abc import Iterable

from spark_jobs.corrections.rewind_preview import Preview, look, refuse_losses, told
from spark_jobs.corrections.rewind_target import find_target, plan_of, starting_ranges, unfinished
from spark_jobs.corrections.rewind_work import finish_rewind
from spark_jobs.job.run import Counts
from spark_jobs.kafka.input_topics import ask_inputs
from spark_jobs.tables.ledger import PAIRED, Ledger
from spark_jobs.tables.warehouse import Warehouse


def rewind(warehouse: Warehouse, to_batch: int, accepted_losses: Iterable[str] = ()) -> Counts:
    """Goes back to the state after batch `to_batch` (0: before the first); gives the counts, none if the pipeline is there already.

    Raises NeedsOperator where that cannot be done, before anything is changed.
    """
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    planned = unfinished(steps, to_batch)
    if planned is None:
        preview = preview_of(warehouse, ledger, to_batch)
        print(told(preview))
        refuse_losses(preview, accepted_losses)
        planned = ledger.plan(plan_of(warehouse, preview.target))
    elif PAIRED in steps:
        return {}
    return {"batch_id": planned.batch_id, **finish_rewind(warehouse, ledger, planned).paired.flat()}


def preview_of(warehouse: Warehouse, ledger: Ledger, to_batch: int) -> Preview:
    """What a rewind to the batch would do; only reads."""
    target = find_target(warehouse, ledger, to_batch)
    # What goes out of the raw tables could never be read again from another topic.
    topics = ask_inputs(warehouse.pipeline, target.topic_ids, starting_ranges(target))
    return look(warehouse, target, topics)


def dry_run(warehouse: Warehouse, to_batch: int) -> str:
    """The preview in words."""
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    planned = unfinished(steps, to_batch)
    if planned is None:
        preview = preview_of(warehouse, ledger, to_batch)
        lost = " ".join(preview.lost)
        refused = [f"--yes refuses this without --accept-lost-range '{lost}'"] if lost else []
        return "\n".join([told(preview), *refused, "nothing was changed; --yes does it"])
    if PAIRED in steps:
        return f"nothing to do: rewind {planned.batch_id} has put the pipeline back to batch {to_batch}"
    return f"rewind {planned.batch_id} to batch {to_batch} was begun and not finished; --yes, or land_events, finishes it"
