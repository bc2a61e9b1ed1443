"""What a run did, in one line: the note that Airflow shows beside the run. plugins/event_pairing.py registers this module as a listener.

A task cannot write a note of its run. The scheduler can, and it calls the listeners when a run ends.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from airflow.listeners import hookimpl

from include.airflow.lineage import PARENT
from include.config.health import read_state
from include.config.pipeline import PIPELINES, REPLAY_SUFFIX, pipeline_of
from include.config.store import Store
from include.config.time_text import point_in_time

# Airflow accepts no longer notes.
_MAX_LENGTH, _ASKED_LENGTH, _REASON_LENGTH = 1000, 200, 350
# The key under which a task leaves an XCom when it fails.
FAILURE = "failure"
_WINDOW = ("window_start", "window_end")
_OWN_BATCH = ("land_events", "replay_interval")
# Counts of the first batch: `began_<topic>-<partition>`, the first offset of a partition that did not begin at 0.
_BEGAN = "began_"
_BEGAN_SHOWN = 4

_FROM_OUTSIDE = "it was ended from outside"

Counts = Mapping[str, Any]
_log = logging.getLogger(__name__)


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    """Airflow calls this when a run begins: that of a replay then says of which interval it is, which its id does not."""
    if (said := _interval(dag_run)) and said not in (dag_run.note or "") and _is_ours(dag_run):
        dag_run.note = "\n".join(filter(None, [dag_run.note, said]))[:_MAX_LENGTH]


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Airflow calls this when a run has succeeded, inside the scheduler's transaction."""
    _add_note(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """Airflow calls this when a run has failed, inside the scheduler's transaction."""
    _add_note(dag_run)


def in_words(counts: Mapping[str, Counts]) -> str:
    """What the tasks of a run did, empty if that is nothing. `counts`: task -> the counts of its job."""
    words = [text for task, describe in _DESCRIBE.items() if task in counts and (text := describe(counts[task]))]
    # publish_compounds may publish other batches, too.
    batch_id = next((counts[task]["batch_id"] for task in _OWN_BATCH if "batch_id" in counts.get(task, ())), None)
    return (f"batch {batch_id}: " if batch_id is not None and words else "") + "; ".join(words)


def leave_failure(task: Any, pages: Store, error: Exception) -> None:
    """Leaves for the note of the run why the task fails, and the pipeline's state as it is by now. Never raises: the task fails for its own reason.

    Called in the task's process: the scheduler must not wait for a store.
    """
    left = {"reason": str(error)}
    try:
        if state := read_state(pages):
            left["state"] = state.in_short
    except Exception as unreadable:
        _log.warning("the state of the pipeline cannot be read: %s", str(unreadable).partition("\n")[0])
    try:
        task.xcom_push(FAILURE, left)
    except Exception as refused:
        _log.warning("the note of this run will not say why it failed: %s", str(refused).partition("\n")[0])


def failures_in_words(failed: Mapping[str, Mapping[str, str]], is_reported: bool = False) -> list[str]:
    """Why a run is not complete. `failed`: task -> what it left, nothing if it was ended from outside; in the order in which they ended.
    `is_reported`: the run's report says the state already.

    >>> failures_in_words({"pair_events": {"reason": "no space left", "state": "healthy after batch 7"}, "report_quality": {}})
    ['pair_events failed: no space left', 'report_quality failed: it was ended from outside', 'last known state of the pipeline: healthy after batch 7']
    """
    words = [f"{task} failed: {_cut(left.get('reason') or _FROM_OUTSIDE, _REASON_LENGTH)}" for task, left in failed.items()]
    states = [left["state"] for left in failed.values() if left.get("state")]
    if is_reported or not states:
        return words
    return [*words, f"last known state of the pipeline: {_cut(states[-1], _REASON_LENGTH)}"]


def _cut(text: str, length: int) -> str:
    return text[:length] + "…" * (len(text) > length)


def asked_for(conf: Any) -> str:
    """The parameters that were given for the run, empty without any.

    >>> asked_for({"max_records": 100, "accept_lost_range": None, "report_only": False, "openlineage": {"parentRunId": "…"}})
    'asked for: max_records=100'
    """
    asked = conf.items() if isinstance(conf, dict) else ()
    # The interval of a replay is in its note already, and lineage is for programs.
    hidden = (*_WINDOW, PARENT)
    given = {name: value for name, value in asked if value not in (None, False, "") and name not in hidden}
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"asked for: {_cut(text, _ASKED_LENGTH)}" if text else ""


def _listed(counts: Counts, names: Mapping[str, str], form: str) -> list[str]:
    """The counts that are not 0, in the order of `names` (count -> its words)."""
    return [form.format(words=words, number=counts[name]) for name, words in names.items() if counts.get(name)]


def _landed(counts: Counts) -> str:
    words = [f"{counts['landed']:,} records landed" if counts.get("landed") else "no new records"]
    words += _listed(counts, {"lost": "given up as lost", "backlog": "more are waiting"}, "{number:,} {words}")
    if held := counts.get("held"):
        since = counts.get("held_since")
        opened = f" since {datetime.fromtimestamp(since / 1000, UTC):%Y-%m-%d %H:%M} UTC" if since is not None else ""
        words.append(f"{held:,} offsets are held by a transaction that is open{opened}")
    began = [f"{name.removeprefix(_BEGAN)} began at {at:,}" for name, at in counts.items() if name.startswith(_BEGAN)]
    hidden = len(began) - _BEGAN_SHOWN
    return ", ".join(words + began[:_BEGAN_SHOWN]) + (f" and {hidden:,} more" if hidden > 0 else "")


def _paired(counts: Counts) -> str:
    if not counts:
        return "paired before"
    kinds = {kind: kind for kind in ("pair", "left_only", "right_only", "superseded", "duplicate", "late")}
    words = _listed(counts, kinds, "{number:,} {words}") or ["nothing closed"]
    return ", ".join(words + _listed(counts, {"open_after": "events wait"}, "{number:,} {words}"))


def _published(counts: Counts) -> str:
    words = _listed(counts, {"sent": "published", "dead_letters": "dead letters"}, "{number:,} {words}")
    return ", ".join(words) or "nothing to publish"


def _replayed(counts: Counts) -> str:
    kinds = {kind: kind for kind in ("new", "changed", "retracted")}
    corrected = _listed(counts, kinds, "{number:,} {words}") or ["nothing to correct"]
    return ", ".join([*corrected, f"{counts.get('unchanged', 0):,} unchanged"])


def _reported(counts: Counts) -> str:
    return str(counts.get("says", ""))


def _late(counts: Counts) -> str:
    words = {"started": "replays started", "waiting": "waiting for open events"}
    return "; ".join(_listed({**counts, "started": len(counts.get("started", ()))}, words, "{words}: {number}"))


def _maintained(counts: Counts) -> str:
    words = {
        "files_put_together": "files put together",
        "removed_raw": "raw rows removed",
        "removed_rejected": "rejected events removed",
        "removed_compounds": "compounds removed",
        "removed_ledger": "ledger rows removed",
        "late_given_up": "late events given up, never replayed",
    }
    return "; ".join(_listed(counts, words, "{words}: {number:,}")) or "nothing to do"


def _reconciled(counts: Counts) -> str:
    return f"reconciled: {counts.get('records landed', 0):,} records of {counts.get('published batches', 0):,} batches are right"


_DESCRIBE = {
    "land_events": _landed,
    "pair_events": _paired,
    "replay_interval": _replayed,
    "publish_compounds": _published,
    "report_quality": _reported,
    "replay_late": _late,
    "maintain_tables": _maintained,
    "reconcile": _reconciled,
}


def interval_in_words(start: datetime, end: datetime) -> str:
    """Both ends of a replay's interval.

    >>> interval_in_words(datetime(2026, 1, 31, 13, tzinfo=UTC), datetime(2026, 2, 1, 0, 0, 30, tzinfo=UTC))
    '2026-01-31 13:00 to 2026-02-01 00:00:30 UTC'
    """
    ends = (f"{at.astimezone(UTC).replace(tzinfo=None)}" for at in (start, end))
    return " to ".join(text.removesuffix(":00") for text in ends) + " UTC"


def _interval(dag_run: Any) -> str:
    """The interval of a replay's run; empty of other runs, and where it is not known."""
    if not dag_run.dag_id.endswith(REPLAY_SUFFIX):
        return ""
    asked = [(dag_run.conf or {}).get(name) for name in _WINDOW]
    if all(asked):
        with suppress(ValueError, OverflowError):
            return interval_in_words(*(datetime.fromtimestamp(point_in_time(str(text)) / 1000, UTC) for text in asked))
    if dag_run.run_type != "backfill" or dag_run.data_interval_start is None:
        return ""
    return interval_in_words(dag_run.data_interval_start, dag_run.data_interval_end)


def _progress(dag_run: Any, session: Any) -> str:
    """How many runs of a backfill have ended, with this one; empty of other runs."""
    if dag_run.backfill_id is None:
        return ""
    from airflow.models.backfill import BackfillDagRun
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func, select

    mine = BackfillDagRun.backfill_id == dag_run.backfill_id
    runs = select(func.count()).select_from(BackfillDagRun).join(DagRun, DagRun.id == BackfillDagRun.dag_run_id).where(mine)
    before = session.scalar(runs.where(DagRun.state.in_(("success", "failed")), DagRun.id != dag_run.id))
    return f"{before + 1:,} of {session.scalar(runs):,} of the backfill"


def _is_ours(dag_run: Any) -> bool:
    return (PIPELINES / f"{pipeline_of(dag_run.dag_id)}.yaml").is_file()


def _add_note(dag_run: Any) -> None:
    if not _is_ours(dag_run):
        return
    # Imported here, because every task's process imports this module and has no database.
    from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
    from sqlalchemy.orm import object_session

    if (session := object_session(dag_run)) is None:
        return

    def left(key: str) -> dict[str, Any]:
        values: Any = session.scalars(XComModel.get_many(run_id=dag_run.run_id, dag_ids=dag_run.dag_id, key=key))
        return {value.task_id: XComModel.deserialize_value(value) or {} for value in values}

    counts, reasons = left(XCOM_RETURN_KEY), left(FAILURE)
    ended = sorted(dag_run.get_task_instances(state=["failed"], session=session), key=lambda task: str(task.end_date))
    failed = failures_in_words({task.task_id: reasons.get(task.task_id, {}) for task in ended}, "report_quality" in counts)
    # Every run that lands plans a batch, so without counts it was a run with report_only.
    only_reported = "land_events" in counts and not counts["land_events"]
    text, before = "report only: what is there was counted afresh" if only_reported else in_words(counts), dag_run.note or ""
    text = "; ".join(filter(None, [text, *failed, asked_for(dag_run.conf), _progress(dag_run, session)]))
    # The note may hold what a person wrote, or this text already: a run that was cleared ends twice.
    if text and text not in before:
        dag_run.note = f"{before}\n{text}".strip()[:_MAX_LENGTH]
