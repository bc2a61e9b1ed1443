"""The operator that starts the replays which late events ask for (`late: replay`), each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import Asset

from include.airflow.operator import PairingJobOperator

# Of the asset's state in Airflow: the batch up to which all replays have been started.
_SETTLED = "late_events_settled_up_to"


class LateReplayOperator(PairingJobOperator):
    """Asks the job `replay_late` which replays late events need, and starts these runs of the replay DAG.

    A run's id says which late events it is for, so Airflow refuses it the second time: this task may be killed and tried again
    anywhere. What it has not started, the task of the next run does. How far everything is started it keeps with `asset`; if that
    is lost, the job looks further back, and nothing else changes.
    """

    def __init__(self, *, pipeline_file: Path, replay_dag_id: str, asset: Asset, **kwargs: Any) -> None:
        super().__init__(job="replay_late", pipeline_file=pipeline_file, inlets=[asset], **kwargs)
        self.replay_dag_id = replay_dag_id
        self.asset = asset

    def execute(self, context: Any) -> dict[str, Any]:  # type: ignore[override]
        """Called by Airflow in the task's process; gives what the job says, and which runs this try has `started`."""
        state = context["asset_state_store"][self.asset]
        self.job_arguments = [f"--after-batch={state.get(_SETTLED, 0)}"]
        found = super().execute(context)
        if not found:
            return found
        found["started"] = [replay["run_id"] for replay in found["replays"] if self._start(replay)]
        state.set(_SETTLED, found["settled"])
        return found

    def _start(self, replay: dict[str, Any]) -> bool:
        """False if there is such a run already."""
        # TriggerDagRunOperator ends its task with this very message, so it could start only one.
        from airflow.sdk.exceptions import ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        answer = SUPERVISOR_COMMS.send(
            TriggerDagRun(
                dag_id=self.replay_dag_id,
                run_id=replay["run_id"],
                conf={name: replay[name] for name in ("window_start", "window_end")},
                note=f"late events of batch {replay['batch_id']}",
            )
        )
        known = isinstance(answer, ErrorResponse) and answer.error == ErrorType.DAGRUN_ALREADY_EXISTS
        self.log.info(
            "run %s of %s %s", replay["run_id"], self.replay_dag_id, "was started before" if known else "is started"
        )
        return not known
