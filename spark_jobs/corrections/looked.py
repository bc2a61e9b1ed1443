"""What a replay has looked at that corrected nothing: it makes no batch, so it says itself that the late events in its interval no longer wait."""

from __future__ import annotations

from include.config.problem_marks import LookMark, add_look
from include.config.store import pages_store
from spark_jobs.quality.current_pages import write_current
from spark_jobs.quality.late_intervals import Look, late_history, late_intervals
from spark_jobs.quality.pages import rewrite_late
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED
from spark_jobs.tables.records import Window
from spark_jobs.tables.tables import Tables


def note_look(tables: Tables, window: Window) -> None:
    """Called by a replay of the interval that corrects nothing. Notes it beside the pages if late events have waited for it there, and rewrites the
    pages of their batches. The state knows it with the next report.
    """
    last = Ledger(tables).last_batch()[PAIRED]
    history, mine = late_history(tables, last.batch_id), Look(last.batch_id, window)
    waited = [
        batch
        for batch in history.batches
        if any(each.after(mine).healed > each.healed for each in late_intervals(batch, history.looks))
    ]
    if not waited:
        return
    pages = pages_store(tables.pipeline.name, tables.root)
    add_look(pages, LookMark(start=window.start, end=window.end, batch=last.batch_id))
    for batch in waited:
        rewrite_late(pages, tables.pipeline, batch, last.clock, [*history.looks, mine])
    write_current(pages)
