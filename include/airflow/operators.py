"""The operators of the pipeline's tasks: one runs a job, with the broker's settings and a readable error, the other starts replays, too."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Asset, BaseHook, BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowException, AirflowFailException, DownstreamTasksSkipped

from include.airflow.alerts import alert
from include.airflow.cluster_mode import Submission, find_application, lease, submission, take_outcome
from include.airflow.connections import all_kafka_settings, schema_registry_settings, warehouse_options
from include.airflow.forked_jobs import ForkedJob
from include.airflow.lineage import operator_lineage, with_parent
from include.airflow.pages import note_batch, runbook
from include.airflow.report_metrics import send_metrics
from include.airflow.run_notes import in_words, leave_failure
from include.config.pipeline_file import load_pipeline
from include.config.project import IMPORTABLE, REMOTE_VARIABLE, ROOT
from include.config.store import OPTIONS_VARIABLE, Store, hide_cloud_variables, pages_store

REPORT = "report_quality"
UI_VARIABLE = "PAIRING_SPARK_UI"
# In the task's own folder.
_OUTCOME, _LOCK = "outcome.json", "task.lock"
# The key of the asset's state in Airflow: the batch up to which all replays have been started.
_SETTLED = "late_events_settled_up_to"


class QualityPage(BaseOperatorLink):
    """A button on each task that leads to the quality page of the batch it worked on, or to the newest one."""

    name = "Quality page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Airflow calls this in the task's process when the task has ended, with success or not."""
        page = "index" if operator.batch_id is None else f"batch-{operator.batch_id}"
        # Airflow may be served below a path.
        below = urlsplit(_base_url()).path.rstrip("/")
        return f"{below}/quality/{operator.pipeline_file.stem}/{page}.html"


class SparkPage(BaseOperatorLink):
    """A button that leads to the job in Spark's own pages, if PAIRING_SPARK_UI names them."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Airflow calls this in the task's process when the task has ended, with success or not. Empty: no button."""
        page, application = os.environ.get(UI_VARIABLE, ""), operator.spark_application
        return "" if "{app}" in page and not application else page.replace("{app}", application or "")


class PairingJobOperator(SparkSubmitOperator):
    """Runs one job of a pipeline on the Spark of `spark_default`: forked from the task as a client of a Spark Connect server, or by spark-submit.

    The job gets the settings of its Kafka clusters, those of `schema_registry_default` if there is one, and the options of `warehouse_default` in
    its environment, never on a command line. Its counts become the task's XCom. When it fails, its own one-line reason is the task's error,
    with the runbook; an error that only an operator can mend is not tried again. `idle_with`: a boolean parameter of the DAG; if it is set, the
    task does nothing and succeeds. `last_with`: a count of the job; if it is there and not 0, the tasks behind this one are skipped.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "job_arguments")
    operator_extra_links = (QualityPage(), SparkPage())

    def __init__(
        self,
        *,
        job: str,
        pipeline_file: Path,
        job_arguments: list[str] | None = None,
        idle_with: str | None = None,
        last_with: str | None = None,
        **kwargs: Any,
    ) -> None:
        application = str(ROOT / "spark_jobs" / f"{job}.py")
        super().__init__(task_id=job, application=application, name=f"{pipeline_file.stem}.{job}", **kwargs)
        self.pipeline_file = pipeline_file
        self.job_arguments = job_arguments or []
        # A skipped task would not do: the report runs if a task before it succeeded.
        self.idle_with = idle_with
        self.last_with = last_with
        # Of a job whose driver runs on the cluster.
        self.submission: Submission | None = None
        # Of a job that is a client of a Spark server.
        self.forked: ForkedJob | None = None
        # Both are set when the job has ended.
        self.batch_id: int | None = None
        self.spark_application: str | None = None
        # What the job left of itself.
        self.outcome: dict[str, Any] = {}

    def execute(self, context: Any) -> dict[str, Any]:  # type: ignore[override]
        """Airflow calls this in the task's process; returns the job's counts. Raises AirflowException with the job's reason."""
        if self.idle_with and context["params"][self.idle_with]:
            self.log.info("%s: nothing is done, %s was asked for", self.task_id, self.idle_with)
            return {}
        # An argument whose template is empty was not asked for.
        arguments = [argument for argument in self.job_arguments if argument]
        with tempfile.TemporaryDirectory(prefix="pairing-") as folder, (Path(folder) / _LOCK).open("w") as alive:
            # This process holds the lock while it lives: the job of a task that was killed ends without it.
            fcntl.flock(alive, fcntl.LOCK_EX)
            try:
                outcome = self._outcome_of(context, Path(folder), alive, arguments)
            except Exception as error:
                leave_failure(context["ti"], pages_store(self.pipeline_file.stem), error)
                raise
        counts = dict(outcome.get("counts", {}))
        self.log.info("%s: %s", self.task_id, in_words({self.task_id: counts}) or "done")
        if self.batch_id is not None:
            task, pipeline = context["ti"], self.pipeline_file.stem
            note_batch(pages_store(pipeline), task.dag_id, task.run_id, task.task_id, self.batch_id)
        for asset in self.outlets:
            context["outlet_events"][asset].extra = counts
        if self.last_with and counts.get(self.last_with):
            # Airflow takes the returned counts only of a task that returns.
            context["ti"].xcom_push(BaseXCom.XCOM_RETURN_KEY, counts)
            raise DownstreamTasksSkipped(tasks=sorted(self.get_flat_relative_ids(upstream=False)))
        return counts

    def _outcome_of(self, context: Any, folder: Path, alive: IO[str], arguments: list[str]) -> dict[str, Any]:
        """What the job left of itself; raises AirflowException if it failed. `folder`: the task's own, for as long as it runs."""
        # The job inherits the environment of this process. For YARN and Kubernetes the provider's env_vars are on a command line.
        os.environ |= {
            **IMPORTABLE,
            "PAIRING_KAFKA": json.dumps(all_kafka_settings(load_pipeline(self.pipeline_file))),
            OPTIONS_VARIABLE: json.dumps(warehouse_options()),
            "PAIRING_OUTCOME": str(folder / _OUTCOME),
            "PAIRING_TASK_LOCK": str(folder / _LOCK),
        }
        # Without the connection there is no registry, whatever Airflow's own environment says.
        os.environ.pop("PAIRING_SCHEMA_REGISTRY", None)
        if registry := schema_registry_settings():
            os.environ["PAIRING_SCHEMA_REGISTRY"] = json.dumps(registry)
        before = os.environ.copy()
        hide_cloud_variables(os.environ)
        outcome: dict[str, Any] = {}
        failure = None
        try:
            if server := _spark_server(self._conn_id):
                os.environ[REMOTE_VARIABLE] = server
                self._fork(alive, arguments)
            else:
                self._prepare(folder, arguments)
                self._submit(context)
        except AirflowException as error:
            failure = error
        finally:
            # Airflow itself may need them, for example to write its logs.
            os.environ |= {name: value for name, value in before.items() if name not in os.environ}
            given = self.submission
            try:
                outcome = take_outcome(given.outcomes, given.name) if given else take_outcome(Store(str(folder)), _OUTCOME)
            except AirflowException as error:
                failure = failure or error
            self.outcome = outcome
            self.spark_application = outcome.get("application")
            self.batch_id = outcome.get("counts", {}).get("batch_id")
            if self.task_id == REPORT and self.batch_id is not None:
                page = f"{_base_url()}/quality/{self.pipeline_file.stem}/batch-{self.batch_id}.html"
                self.log.info("quality page of batch %d: %s", self.batch_id, page)
            if self.task_id == REPORT:
                send_metrics(self.pipeline_file.stem)
            _alert_news(context["ti"], outcome.get("news", []), outcome.get("over", []), self.batch_id)
        if failure:
            raise _readable(failure, outcome, bool(given)) from None
        return outcome

    def _prepare(self, folder: Path, arguments: list[str]) -> None:
        self.submission = given = submission(self, self.task_id, self.pipeline_file, folder)
        for field, value in (given.fields if given else {}).items():
            setattr(self, field, value)
        self.application_args = ["--pipeline", given.pipeline if given else str(self.pipeline_file), *arguments]

    def _fork(self, alive: IO[str], arguments: list[str]) -> None:
        self.forked = ForkedJob(self.task_id, ["--pipeline", str(self.pipeline_file), *arguments], alive)
        status = self.forked.wait(self.log.info)
        if status < 0:
            name = signal.Signals(-status).name
            raise AirflowException(f"{self.task_id} was ended by {name}: for want of memory, by a person, or by a crash")
        if status:
            raise AirflowException(f"{self.task_id} ended with status {status}: its log above says why")

    def _submit(self, context: Any) -> None:
        if not self.submission:
            super().execute(context)
            return
        self._hook = self._get_hook()
        # The signals that end this task do not reach it: it waits for the end of the application, and deletes what was staged.
        with lease(self.submission):
            self._hook.submit(self.application, start_new_session=True)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Airflow's OpenLineage provider calls this when the task has ended, with success or not, if lineage is configured."""
        return operator_lineage(self.outcome)

    def on_kill(self) -> None:
        """Airflow calls this when it ends the task, because a person or a time limit says so: it also ends what runs on a server or cluster."""
        if self.forked:
            self.forked.end()
            return
        if self._hook and self.submission and self.submission.tag:
            find_application(self._hook, self.submission)
        super().on_kill()


class LateReplayOperator(PairingJobOperator):
    """Asks the job `replay_late` which replays late events need (`late: replay`), and starts these runs of the replay DAG, each once.

    The id of a run names its late events, so Airflow refuses a second start: this task may be killed anywhere and tried again. The task of
    the next run starts what this one did not. Airflow stores with `asset` up to which batch all replays are started; without that state the
    job looks further back, with the same result.
    """

    def __init__(self, *, pipeline_file: Path, replay_dag_id: str, asset: Asset, **kwargs: Any) -> None:
        super().__init__(job="replay_late", pipeline_file=pipeline_file, inlets=[asset], **kwargs)
        self.replay_dag_id = replay_dag_id
        self.asset = asset

    def execute(self, context: Any) -> dict[str, Any]:  # type: ignore[override]
        """Airflow calls this in the task's process; returns the job's answer, with the ids of the runs that this try has `started`."""
        state = context["asset_state_store"][self.asset]
        self.job_arguments = [f"--after-batch={state.get(_SETTLED, 0)}"]
        answer = super().execute(context)
        if answer:
            answer["started"] = [replay["run_id"] for replay in answer["replays"] if self._start(replay, context["ti"])]
            state.set(_SETTLED, answer["settled"])
        return answer

    def _start(self, replay: dict[str, Any], task: Any) -> bool:
        """Starts the run for this task instance; False if it exists already."""
        # TriggerDagRunOperator ends its task with this very message, so it could start only one.
        from airflow.sdk.exceptions import ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        answer = SUPERVISOR_COMMS.send(
            TriggerDagRun(
                dag_id=self.replay_dag_id,
                run_id=replay["run_id"],
                conf=with_parent({name: replay[name] for name in ("window_start", "window_end")}, task),
                note=f"late events of batch {replay['batch_id']}",
            )
        )
        exists = isinstance(answer, ErrorResponse) and answer.error == ErrorType.DAGRUN_ALREADY_EXISTS
        state = "was started before" if exists else "is started"
        self.log.info("run %s of %s %s", replay["run_id"], self.replay_dag_id, state)
        return not exists


def _base_url() -> str:
    return conf.get("api", "base_url", fallback="").rstrip("/")


def _alert_news(task: Any, news: list[str], over: list[str], batch_id: int | None) -> None:
    """Alerts about warnings that began or ended with this batch, although the task succeeds. `over`: those of the news that ended."""
    for line in news:
        parts = {"dag": task.dag_id, "run": task.run_id, "task": task.task_id, "severity": "warning", "reason": line}
        alert(f"{task.dag_id}: {line}", line in over, **parts, batch=batch_id, runbook=runbook(line))


def _spark_server(conn_id: str) -> str | None:
    """The address of the Spark Connect server that the connection names, `sc://host:port`; None if it is of another type."""
    kind = BaseHook.get_connection(conn_id).conn_type
    return SparkConnectHook(conn_id).get_connection_url() if kind == SparkConnectHook.conn_type else None


def _readable(error: AirflowException, outcome: dict[str, Any], on_a_cluster: bool) -> AirflowException:
    """The job's own reason with its runbook, if it left one."""
    reason = outcome.get("error")
    if not reason:
        application = outcome.get("application")
        line = f"{application} ended without an outcome: the log of its driver on the cluster says why"
        return AirflowException(line) if on_a_cluster and application else error
    page = runbook(reason)
    text = f"{reason} (what to do: {page})" if page else reason
    return (AirflowException if outcome["retry"] else AirflowFailException)(text)
