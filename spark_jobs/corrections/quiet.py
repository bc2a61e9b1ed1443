"""Intervals that a replay provably leaves as they are, found without Spark: few events, whose sessions give what is published, or none at all.

The events around the interval are paired by the same functions as in a replay, of all keys together: other keys change no outcome. Whatever is
not certain is left to a replay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.corrections.chains import key_numbers
from spark_jobs.corrections.erasure_list import listed
from spark_jobs.corrections.healed_events import batches_with_unknown
from spark_jobs.corrections.replay import DIFFERENCES, HISTORY, UNCHANGED, check_window, plan_replay
from spark_jobs.job.run import Counts
from spark_jobs.rules.outcomes import Outcome, outcome_batches
from spark_jobs.rules.rules import Rules
from spark_jobs.stages.outcome_rows import make_compounds
from spark_jobs.stages.pairing_input import accepted_up_to, has_no_problem
from spark_jobs.tables.integrity import check_tables, newest_row
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, PUBLISHED, REPORTED, LedgerRow
from spark_jobs.tables.outbox import UPSERT
from spark_jobs.tables.records import Window
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, raw_table
from spark_jobs.tables.tables import Tables

# Of a side, and compounds. Comparing so many takes less than the first query of a replay.
_FEW = 20_000
_PLACE = ("topic", "partition", "offset")
Compounds = dict[str, dict[str, Any]]


def quiet_counts(tables: Tables, window: Window) -> Counts | None:
    """What a replay of the interval counts, if it is certain without one that it changes nothing; None if only a replay can say, or a batch
    is unfinished.

    Raises NeedsOperator where the replay would: the interval is not closed yet, or raw rows of it were removed.
    """
    ledger = Ledger(tables)
    steps = ledger.last_batch()
    check_tables(tables, newest_row(steps))
    if PAIRED not in steps:
        return None
    last = steps[PAIRED]
    check_window(window, last, tables.pipeline)
    planned = plan_replay(tables, ledger, last, window)
    # Such events have no time before they are read again.
    if batches_with_unknown(tables):
        return None
    if _is_empty(tables, window):
        return dict.fromkeys(DIFFERENCES, 0)
    # A later revision of an event may lie anywhere; the order of fields is what workers find out.
    if tables.pipeline.has_compounds or tables.pipeline.is_unordered:
        return None
    reach = planned.replay.reach_ms
    # A session that begins in the interval ends within the reach of it, and the same again is where a compound may have had its events.
    around = Window(window.start - 2 * reach, window.end + 2 * reach)
    should_be = _should_be(tables, planned, around)
    if should_be is None or _may_change(tables, planned, should_be):
        return None
    published = _published(tables, window, around)
    return dict.fromkeys(DIFFERENCES, 0) | {UNCHANGED: len(should_be)} if should_be == published else None


def _is_empty(tables: Tables, window: Window) -> bool:
    """Whether no event and no compound lies in the interval. A compound has the time of one of its events, so a replay makes none in it."""
    sides = [tables.rows_up_to(raw_table(side), 0, ["ts"], window, has_no_problem) for side in tables.pipeline.sides]
    return None not in sides and tables.rows_up_to(COMPOUNDS, 0, ["ts"], window) is not None


def _should_be(tables: Tables, planned: LedgerRow, around: Window) -> Compounds | None:
    """The compounds of the interval, by pair_id; None if they may depend on events that are not read, or still to come."""
    pipeline, window = planned.pipeline, planned.replay.window
    events = accepted_up_to(tables, pipeline, planned.topics, around, _FEW)
    if events is None or _comes_from_before(events, planned, around):
        return None
    # As the table has its columns: the declared ones are read by Spark.
    schema = pa.schema(tables.newest(COMPOUNDS).schema().to_arrow())
    rules, found = Rules(pipeline, planned.clock, None, planned.topics), Compounds()
    for outcomes in outcome_batches(events, rules):
        still_open = outcomes.filter(pc.equal(outcomes["outcome"], str(Outcome.OPEN)))
        if pc.any(_inside(pc.coalesce(still_open["left_ts"], still_open["right_ts"]), window)).as_py():
            return None
        rows = make_compounds(outcomes, None, rules, planned.batch_id, schema)
        found |= _contents(rows, window)
    return found


def _comes_from_before(events: pa.Table, planned: LedgerRow, around: Window) -> bool:
    """Whether a chain that reaches the interval may begin before what was read, or in what was removed for its age."""
    gap, removed = planned.pipeline.gap_ms, planned.replay.removed_until
    begin = around.start if removed is None else max(around.start, removed + 1)
    key = np.concatenate(
        [key_numbers(piece, planned.pipeline.key) for piece in events.to_batches()] or [np.empty(0, np.int64)]
    )
    ts = events["ts"].to_numpy()
    order = np.lexsort((ts, key))
    key, ts = key[order], ts[order]
    begins = np.ones(len(ts), dtype=bool)
    begins[1:] = (key[1:] != key[:-1]) | (ts[1:] - ts[:-1] > gap)
    first = ts[begins]
    last = ts[np.append(np.flatnonzero(begins)[1:] - 1, len(ts) - 1)] if len(ts) else first
    return bool(((first - begin < gap) & (last >= planned.replay.window.start)).any())


def _may_change(tables: Tables, planned: LedgerRow, should_be: Compounds) -> bool:
    """Whether an event of the interval is open, as the live pairing has it, or one of its compounds; or whether many are that may be so."""
    window = planned.replay.window
    near = Window(window.start, window.end + planned.replay.reach_ms)
    waiting = tables.rows_up_to(OPEN, _FEW, ["ts", *_PLACE], near, version=planned.versions[OPEN])
    if waiting is None or pc.any(_inside(waiting["ts"], window)).as_py():
        return True
    used = {tuple(row[f"{side}_{name}"] for name in _PLACE) for row in should_be.values() for side in ("left", "right")}
    return any(tuple(row[name] for name in _PLACE) in used for row in waiting.to_pylist())


def _published(tables: Tables, window: Window, around: Window) -> Compounds | None:
    """The compounds of the interval as they are published, by pair_id; None if there are many."""
    rows = tables.rows_up_to(COMPOUNDS, 2 * _FEW, None, around)
    if rows is None:
        return None
    last = rows.group_by("pair_id").aggregate([("revision", "max")]).rename_columns(["pair_id", "revision"])
    newest = rows.join(last, ["pair_id", "revision"], join_type="inner")
    return _contents(newest.filter(pc.equal(newest["op"], UPSERT)), window)


def _contents(rows: pa.Table | pa.RecordBatch, window: Window) -> Compounds:
    mine = rows.filter(_inside(rows["ts"], window)).to_pylist()
    return {row["pair_id"]: {name: row[name] for name in row if name not in HISTORY} for row in mine}


def _inside(ts: pa.Array | pa.ChunkedArray, window: Window) -> Any:
    return pc.and_(pc.greater_equal(ts, window.start), pc.less(ts, window.end))


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
