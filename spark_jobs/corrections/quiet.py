"""Intervals of which the tables' statistics show, without Spark, that a replay changes nothing: no event lies in them, and no compound.

A compound belongs to the interval of its `ts`, which is the time of one of its events. So a replay of such an interval finds none, has none to
take back, and asks for no session beyond its edges.
"""

from __future__ import annotations

from spark_jobs.corrections.erasure_list import listed
from spark_jobs.corrections.healed_events import batches_with_unknown
from spark_jobs.corrections.replay import DIFFERENCES, check_window, removed_until
from spark_jobs.job.run import Counts
from spark_jobs.stages.pairing_input import has_no_problem
from spark_jobs.tables.integrity import check_tables, newest_row
from spark_jobs.tables.ledger import PAIRED, PUBLISHED, REPORTED, Ledger
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, raw_table
from spark_jobs.tables.warehouse import Tables


def quiet_counts(tables: Tables, window: Window) -> Counts | None:
    """What a replay of the interval counts, if it is certain without one: all zero. None: only a replay can say, or a batch is unfinished.

    Raises NeedsOperator where the replay would: the interval is not closed yet, or raw rows of it were removed.
    """
    ledger = Ledger(tables)
    steps = ledger.last_batch()
    check_tables(tables, newest_row(steps))
    if PAIRED not in steps:
        return None
    check_window(window, steps[PAIRED], tables.pipeline)
    removed_until(ledger, window)
    # Their events have no time before they are read again.
    if batches_with_unknown(tables):
        return None
    if any(tables.has_rows(raw_table(side), window, has_no_problem) for side in tables.pipeline.sides):
        return None
    return None if tables.has_rows(COMPOUNDS, window) else dict.fromkeys(DIFFERENCES, 0)


def nothing_waits(tables: Tables) -> bool:
    """Whether publish_compounds and report_quality would do nothing, and succeed: every batch is published and reported, none of the last
    report failed, and no erasure is to be completed.
    """
    ledger = Ledger(tables)
    last = ledger.last_ids()
    if not last[PAIRED] == last[PUBLISHED] == last[REPORTED] > 0 or any(listed(tables)):
        return False
    (newest,) = (row for row in ledger.rows(last[REPORTED], last[REPORTED]) if row.step == REPORTED)
    of_report = ledger.rows(newest.reported.first_of_report, newest.batch_id)
    return not any(row.reported.failed_checks for row in of_report if row.step == REPORTED)
