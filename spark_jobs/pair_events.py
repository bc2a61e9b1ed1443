"""Pair: give every event of the batch, and every event still open, exactly one outcome.

    pair_events --pipeline include/pipelines/calls.yaml [--warehouse URI]

Reads the events that the batch landed and `open_events` at the version its plan names, so a second try sees the same. The
conservation law is checked before the first commit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from spark_jobs.job.run import Counts, job_parser, run_job
from spark_jobs.rules.batch_rules import batch_rules
from spark_jobs.rules.conservation import check_conservation
from spark_jobs.rules.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.spark.session import expect_rows
from spark_jobs.stages.decided_batch import decided_batch
from spark_jobs.stages.pairing_input import batch_events
from spark_jobs.stages.rejected_rows import write_rejected
from spark_jobs.tables.agreement import check_tables, newest_row, table_versions
from spark_jobs.tables.commit import EVERYTHING, commit, is_committed
from spark_jobs.tables.ledger import LANDED, PAIRED, PLANNED, Ledger, LedgerRow
from spark_jobs.tables.outbox import carried
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, REJECTED, Warehouse

_WRITTEN = (OPEN, COMPOUNDS, REJECTED)


def main(warehouse: Warehouse) -> Counts:
    """Pairs the last batch if that has not been done; gives its counts."""
    ledger = Ledger(warehouse)
    steps = ledger.last_batch()
    if LANDED not in steps or PAIRED in steps:
        return {}
    check_tables(warehouse, newest_row(steps))
    paired = pair_batch(warehouse, ledger, steps[PLANNED], steps[LANDED])
    return {"batch_id": paired.batch_id, **paired.counts}


def pair_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, landed: LedgerRow) -> LedgerRow:
    """Pairs one landed batch and gives its `paired` row."""
    started = datetime.now(UTC)
    open_before, accepted = planned.counts["open_before"], landed.counts["accepted"]
    expect_rows(warehouse.spark, open_before + accepted)
    rules = batch_rules(planned.pipeline, landed.clock, previous_clock=planned.clock)
    decided = decided_batch(warehouse, planned, batch_events(warehouse, planned), rules, open_before + accepted)
    found = decided.outcomes
    check_conservation(open_before, accepted, found)
    compounds = sum(found.get(kind, 0) for kind in COMPOUND_KINDS)
    rejected = landed.counts["landed"] - accepted + sum(found.get(Outcome(reason), 0) for reason in AT_PAIRING)
    open_after = found.get(Outcome.OPEN, 0)
    batch_id = planned.batch_id

    def append_rejected() -> None:
        done = is_committed(warehouse, REJECTED, REJECTED, batch_id)
        commit(warehouse, REJECTED, [] if done else write_rejected(warehouse, planned, decided.refused), REJECTED, batch_id)

    writes: list[Callable[[], None]] = []
    if compounds:
        writes.append(partial(commit, warehouse, COMPOUNDS, decided.files[COMPOUNDS], COMPOUNDS, batch_id))
    if rejected:
        writes.append(append_rejected)
    if open_before or open_after:
        writes.append(partial(commit, warehouse, OPEN, decided.files[OPEN], OPEN, batch_id, EVERYTHING))
    # Their order does not matter: until `paired` is recorded, the next run writes what is missing.
    with ThreadPoolExecutor(max_workers=len(_WRITTEN)) as beside:
        # list() waits for all and raises what any of them raised.
        list(beside.map(lambda write: write(), writes))
    counts = {"open_before": open_before, "accepted": accepted, "compounds": compounds, "rejected": rejected}
    counts |= {str(outcome): found.get(outcome, 0) for outcome in Outcome if outcome is not Outcome.OPEN}
    counts |= {"open_after": open_after, **carried(planned.counts)}
    versions = landed.versions | table_versions(warehouse, _WRITTEN)
    paired = landed.next_step(PAIRED, started, counts=counts, versions=versions)
    ledger.append(paired)
    return paired


if __name__ == "__main__":
    run_job("pair_events", job_parser("pair_events", __doc__).parse_args(), main)
