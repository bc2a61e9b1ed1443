"""What a run has done, in a line: the note that Airflow shows beside the run. Registered by plugins/event_pairing.py.

A task cannot write a note of its run; the scheduler, in which a run's end is told, can.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from airflow.listeners import hookimpl

from include.config.pipeline import PIPELINES, pipeline_of

# Airflow takes no longer ones.
_LONGEST = 1000
_CORRECTED = ("new", "changed", "retracted")
_OWN_BATCH = ("land_events", "replay_interval")
# Of the first batch: `began_<topic>-<partition>`, the first offset of a partition that was not 0.
_BEGAN = "began_"
_BEGUN_SHOWN = 4

Counts = Mapping[str, Any]


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Called when a run has ended well, in the midst of the scheduler's transaction."""
    _add_note(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    """Called when a run has failed."""
    _add_note(dag_run)


def in_words(counts: Mapping[str, Counts]) -> str:
    """What the tasks of a run say that they did, empty if that is nothing. `counts`: task -> the counts of its job."""
    said = [words for task, tell in _TELL.items() if (of_task := counts.get(task)) is not None and (words := tell(of_task))]
    # What is published may be other batches, too.
    batch_id = next((counts[task]["batch_id"] for task in _OWN_BATCH if "batch_id" in counts.get(task, ())), None)
    return (f"batch {batch_id}: " if batch_id is not None and said else "") + "; ".join(said)


def _landed(counts: Counts) -> str:
    landed, backlog = counts.get("landed", 0), counts.get("backlog", 0)
    more = f", {backlog:,} more are waiting" if backlog else ""
    if held := counts.get("held"):
        since = (
            f" since {datetime.fromtimestamp(counts['held_since'] / 1000, UTC):%Y-%m-%d %H:%M} UTC"
            if "held_since" in counts
            else ""
        )
        more += f", {held:,} offsets are held by a transaction that is open{since}"
    lost = f", {counts['lost']:,} given up as lost" if counts.get("lost") else ""
    begun = [f"{name.removeprefix(_BEGAN)} began at {at:,}" for name, at in counts.items() if name.startswith(_BEGAN)]
    said = [f"{landed:,} records landed{lost}{more}" if landed else f"no new records{lost}{more}", *begun[:_BEGUN_SHOWN]]
    return ", ".join(said) + (f" and {len(begun) - _BEGUN_SHOWN:,} more" if len(begun) > _BEGUN_SHOWN else "")


def _paired(counts: Counts) -> str:
    if not counts:
        return "paired before"
    kinds = [
        f"{counts[kind]:,} {kind}" for kind in ("pair", "left_only", "right_only", "duplicate", "late") if counts.get(kind)
    ]
    waiting = f", {counts['open_after']:,} events wait" if counts.get("open_after") else ""
    return (", ".join(kinds) or "nothing closed") + waiting


def _published(counts: Counts) -> str:
    return f"{counts['sent']:,} published" if counts.get("sent") else "nothing to publish"


def _replayed(counts: Counts) -> str:
    corrected = [f"{counts[found]:,} {found}" for found in _CORRECTED if counts.get(found)]
    return f"{', '.join(corrected) or 'nothing to correct'}, {counts.get('unchanged', 0):,} unchanged"


def _reported(counts: Counts) -> str:
    return str(counts.get("says", ""))


def _late(counts: Counts) -> str:
    told = {"replays started": len(counts.get("started", ())), "waiting for open events": counts.get("waiting", 0)}
    return "; ".join(f"{what}: {number}" for what, number in told.items() if number)


_REMOVED = {"raw": "raw rows", "rejected": "rejected events", "compounds": "compounds", "ledger": "ledger rows"}


def _maintained(counts: Counts) -> str:
    told = {"files put together": counts.get("files_put_together")}
    told |= {f"{what} removed": counts.get(f"removed_{name}") for name, what in _REMOVED.items()}
    told["late events given up, never replayed"] = counts.get("late_given_up")
    return "; ".join(f"{what}: {number:,}" for what, number in told.items() if number) or "nothing to do"


_TELL = {
    "land_events": _landed,
    "pair_events": _paired,
    "replay_interval": _replayed,
    "publish_compounds": _published,
    "report_quality": _reported,
    "replay_late": _late,
    "maintain_tables": _maintained,
}


def _add_note(dag_run: Any) -> None:
    name = pipeline_of(dag_run.dag_id)
    if not (PIPELINES / f"{name}.yaml").is_file():
        return
    # Only where there is a database are listeners of runs called.
    from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
    from sqlalchemy.orm import object_session

    if (session := object_session(dag_run)) is None:
        return
    values: Any = session.scalars(XComModel.get_many(run_id=dag_run.run_id, dag_ids=dag_run.dag_id, key=XCOM_RETURN_KEY))
    counts = {found.task_id: XComModel.deserialize_value(found) or {} for found in values}
    # A batch is planned by every run that lands.
    only_reported = "land_events" in counts and not counts["land_events"]
    told, before = "report only: what is there was counted afresh" if only_reported else in_words(counts), dag_run.note or ""
    # What a person or the starter of the run has written stays; a run that was cleared ends again.
    if told and told not in before:
        dag_run.note = f"{before}\n{told}".strip()[:_LONGEST]
