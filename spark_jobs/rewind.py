"""Rewind: put the tables and the position back to what they were after an earlier batch, and go on from there.

    rewind --pipeline include/pipelines/calls.yaml --to-batch N [--yes] [--warehouse URI] [--accept-lost-range RANGES]

Without --yes it only says what it would do. A rewind is a batch itself: it has the next batch_id, is planned in the ledger before
any work, and a killed one is finished by land_events or by the same command. What the later batches published is not forgotten
but corrected: compounds are retracted, and come back with a higher revision if the batches after the rewind find them again.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_jobs.corrections.rewind_preview import Preview, look, refuse_losses, told
from spark_jobs.corrections.rewind_target import find_target, plan_of, starting_ranges, unfinished
from spark_jobs.corrections.rewind_work import finish_rewind
from spark_jobs.job.arguments import tell_outcome
from spark_jobs.job.run import Counts, ending_at_once, job_parser, run_job, told_in_one_line, warehouse_folder
from spark_jobs.kafka.log_ends import ask_inputs
from spark_jobs.spark.session import reading_session
from spark_jobs.tables.ledger import PAIRED, Ledger
from spark_jobs.tables.warehouse import Warehouse

_LOCK_WAIT_S = 20.0


def main(warehouse: Warehouse, to_batch: int, accepted_losses: Iterable[str] = ()) -> Counts:
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
    return {"batch_id": planned.batch_id, **finish_rewind(warehouse, ledger, planned).counts}


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


if __name__ == "__main__":
    parser = job_parser("rewind", __doc__)
    parser.add_argument(
        "--to-batch", type=int, required=True, metavar="N", help="the batch to go on from; 0: from the very beginning"
    )
    parser.add_argument("--yes", action="store_true", help="do it; without this nothing is changed")
    parser.add_argument(
        "--accept-lost-range",
        action="append",
        default=[],
        metavar="TOPIC-PARTITION:FIRST-UNTIL",
        help="give up these landed records, which the broker no longer has; several with spaces between, or repeat",
    )
    given = parser.parse_args()
    losses = " ".join(given.accept_lost_range).split()
    if given.yes:
        run_job("rewind", given, lambda warehouse: main(warehouse, given.to_batch, losses), _LOCK_WAIT_S)
    else:
        with ending_at_once(), told_in_one_line():
            spark = reading_session("rewind", given.pipeline.name)
            try:
                print(dry_run(Warehouse(spark, warehouse_folder(given.warehouse), given.pipeline), given.to_batch))
            finally:
                spark.stop()
            tell_outcome({"ok": True, "counts": {}})
