"""The operator of the pipeline's tasks: SparkSubmitOperator, with the broker's settings and a readable end."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.log import mask_secret

from include.airflow.alerts import tell
from include.airflow.quality_runs import note_batch
from include.airflow.run_notes import in_words
from include.airflow.runbooks import runbook
from include.airflow.warehouse_connection import warehouse_options
from include.config.project import ROOT
from include.config.secret_values import secret_settings
from include.config.store import OPTIONS_VARIABLE, hide_cloud_variables, pages_store

KAFKA_CONNECTION = "kafka_default"
UI_VARIABLE = "PAIRING_SPARK_UI"


class QualityPage(BaseOperatorLink):
    """A button on each task that leads to the quality page of the batch it worked on, or to the newest one."""

    name = "Quality page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Called by Airflow in the task's process, once the task has ended, well or not."""
        page = "index" if operator.batch_id is None else f"batch-{operator.batch_id}"
        # Airflow may be served below a path.
        below = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        return f"{below}/quality/{operator.pipeline_file.stem}/{page}.html"


class SparkPage(BaseOperatorLink):
    """A button that leads to the job in Spark's own pages, where PAIRING_SPARK_UI says that there are any."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Called by Airflow in the task's process, once the task has ended, well or not. Of an empty one there is no button."""
        page, application = os.environ.get(UI_VARIABLE, ""), operator.spark_application
        return "" if "{app}" in page and not application else page.replace("{app}", application or "")


class PairingJobOperator(SparkSubmitOperator):
    """Submits one job of a pipeline through `spark_default`.

    The job gets the settings of `kafka_default` and the options of `warehouse_default` in its environment, never on a command
    line. Its counts become the task's XCom; when it fails, its own one-line reason is the task's error, with the runbook's page,
    and a reason that only an operator can mend is not tried again. `idle_with`: a boolean parameter of the DAG with which there is nothing to do.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            task_id=job,
            application=str(ROOT / "spark_jobs" / f"{job}.py"),
            name=f"{pipeline_file.stem}.{job}",
            **kwargs,
        )
        self.pipeline_file = pipeline_file
        self.job_arguments = job_arguments or []
        # The parameter of the DAG with which there is nothing to do. No skipped task: the report runs if something succeeded.
        self.idle_with = idle_with
        # Of the batch that the job worked on, once it is known.
        self.batch_id: int | None = None
        self.spark_application: str | None = None

    def execute(self, context: Any) -> dict[str, Any]:  # type: ignore[override]
        """Called by Airflow in the task's process; gives the job's counts."""
        if self.idle_with and context["params"][self.idle_with]:
            self.log.info("%s: nothing is done, %s was asked for", self.task_id, self.idle_with)
            return {}
        # An argument whose template came out empty was not wanted.
        arguments = [argument for argument in self.job_arguments if argument]
        self.application_args = ["--pipeline", str(self.pipeline_file), *arguments]
        with tempfile.TemporaryDirectory(prefix="pairing-") as folder, (Path(folder) / "task.lock").open("w") as alive:
            outcome = Path(folder) / "outcome.json"
            # Held for as long as this process lives: without it the job would outlive a task that is killed.
            fcntl.flock(alive, fcntl.LOCK_EX)
            # In the environment of this process, which spark-submit inherits: the provider's env_vars end on its command line
            # for YARN and Kubernetes.
            os.environ |= {
                "PYTHONPATH": str(ROOT),
                "PAIRING_KAFKA": json.dumps(kafka_settings()),
                OPTIONS_VARIABLE: json.dumps(warehouse_options()),
                "PAIRING_OUTCOME": str(outcome),
                "PAIRING_TASK_LOCK": alive.name,
            }
            before = os.environ.copy()
            hide_cloud_variables(os.environ)
            try:
                super().execute(context)
            except AirflowException as error:
                raise _readable(error, _read(outcome)) from None
            finally:
                # Airflow may want them itself, for its logs say.
                os.environ |= {name: value for name, value in before.items() if name not in os.environ}
                self.spark_application = _read(outcome).get("application")
                self.batch_id = _read(outcome).get("counts", {}).get("batch_id")
                _tell_news(context["ti"], _read(outcome).get("news", []), self.batch_id)
            counts = dict(_read(outcome).get("counts", {}))
            self.log.info("%s: %s", self.task_id, in_words({self.task_id: counts}) or "done")
            if self.batch_id is not None:
                task, pipeline = context["ti"], self.pipeline_file.stem
                note_batch(pages_store(pipeline), task.dag_id, task.run_id, task.task_id, self.batch_id)
            for asset in self.outlets:
                context["outlet_events"][asset].extra = counts
            return counts


def kafka_settings() -> dict[str, Any]:
    """The extra of `kafka_default`. Airflow hides what it takes for a secret in a task's log; of a key as text it does not know."""
    settings = dict(KafkaBaseHook(kafka_config_id=KAFKA_CONNECTION).get_connection(KAFKA_CONNECTION).extra_dejson)
    for secret in secret_settings(settings):
        mask_secret(secret)
    return settings


def _read(outcome: Path) -> dict[str, Any]:
    # In cluster mode the job runs on another machine and cannot leave a word here.
    return dict(json.loads(outcome.read_text(encoding="utf-8"))) if outcome.exists() else {}


def _tell_news(task: Any, news: list[str], batch_id: int | None) -> None:
    """Warnings that began or ended: whoever is told of failures is told of them, though the task succeeds."""
    for line in news:
        told = {"dag": task.dag_id, "run": task.run_id, "task": task.task_id, "severity": "warning", "reason": line}
        tell(f"{task.dag_id}: {line}", **told, batch=batch_id, runbook=runbook(line))


def _readable(error: AirflowException, outcome: dict[str, Any]) -> AirflowException:
    if not outcome.get("error"):
        return error
    page = runbook(outcome["error"])
    told = outcome["error"] + (f" (what to do: {page})" if page else "")
    return (AirflowException if outcome["retry"] else AirflowFailException)(told)
