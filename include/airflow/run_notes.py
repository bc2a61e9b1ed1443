"""What a run did, in one line: the note that Airflow shows beside the run. plugins/event_pairing.py registers this module as a listener.

A task cannot write a note of its run. The scheduler can, and it calls the listeners when a run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow.listeners import hookimpl

from include.config.pipeline import PIPELINES, pipeline_of

# Airflow accepts no longer notes.
_MAX_LENGTH, _ASKED_LENGTH = 1000, 200
_OWN_BATCH = ("land_events", "replay_interval")
# Counts of the first batch: `began_<topic>-<partition>`, the first offset of a partition that did not begin at 0.
_BEGAN = "began_"
_BEGAN_SHOWN = 4

Counts = Mapping[str, Any]


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


def asked_for(conf: Any) -> str:
    """The parameters that were given for the run, empty without any.

    >>> asked_for({"max_records": 100, "accept_lost_range": None, "report_only": False})
    'asked for: max_records=100'
    """
    given = {name: value for name, value in conf.items() if value not in (None, False, "")} if isinstance(conf, dict) else {}
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"asked for: {text[:_ASKED_LENGTH]}{'…' * (len(text) > _ASKED_LENGTH)}" if text else ""


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


def _add_note(dag_run: Any) -> None:
    name = pipeline_of(dag_run.dag_id)
    if not (PIPELINES / f"{name}.yaml").is_file():
        return
    # Imported here, because every task's process imports this module and has no database.
    from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
    from sqlalchemy.orm import object_session

    if (session := object_session(dag_run)) is None:
        return
    values: Any = session.scalars(XComModel.get_many(run_id=dag_run.run_id, dag_ids=dag_run.dag_id, key=XCOM_RETURN_KEY))
    counts = {value.task_id: XComModel.deserialize_value(value) or {} for value in values}
    # Every run that lands plans a batch, so without counts it was a run with report_only.
    only_reported = "land_events" in counts and not counts["land_events"]
    text, before = "report only: what is there was counted afresh" if only_reported else in_words(counts), dag_run.note or ""
    text = "; ".join(filter(None, [text, asked_for(dag_run.conf)]))
    # The note may hold what a person wrote, or this text already: a run that was cleared ends twice.
    if text and text not in before:
        dag_run.note = f"{before}\n{text}".strip()[:_MAX_LENGTH]
