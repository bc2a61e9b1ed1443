"""Cluster mode: the driver of a job runs on the cluster, and has nothing of the machine that submits it.

On YARN the code and the pipeline's file travel as an archive, and what is secret in the driver's own script. On Kubernetes the image has the
code, and the driver's environment the secrets. The outcome comes back through the store of the warehouse.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import requests
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from include.config.driver_files import PIPELINES_THERE, driver_script, project_archive
from include.config.project import IMPORTABLE, ROOT
from include.config.store import OPTIONS_VARIABLE, WAREHOUSE_VARIABLE, Store, StoreRefused, read_text, warehouse_store
from include.config.task_lease import held

# The folder of the project where the driver runs.
_PROJECT = "project"
# Longer than any task may run.
_KEPT = timedelta(days=1)


class Submission(NamedTuple):
    """A driver on the cluster: fields of SparkSubmitOperator, and the pipeline's file as the driver finds it.

    The job leaves its outcome at `outcomes` under `name`, and ends when the task no longer holds the `lease` beside it. On YARN its
    application has the `tag`, and `manager` is the ResourceManager's address.
    """

    fields: dict[str, Any]
    pipeline: str
    outcomes: Store
    name: str
    lease: str
    tag: str = ""
    manager: str = ""


def submission(operator: SparkSubmitOperator, job: str, pipeline: Path, folder: Path) -> Submission | None:
    """None in client mode. The secrets are those of this process's environment; `folder`, private to its user, gets the files that travel.

    Raises AirflowFailException where the connection or the warehouse cannot be used so.
    """
    hook = _hook_of(operator)
    if hook._connection["deploy_mode"] != "cluster":
        return None
    manager, warehouse = _manager(hook), _warehouse()
    outcomes, task = warehouse.at(pipeline.stem, "outcomes"), uuid.uuid4()
    name, lease = f"{task}.json", f"{task}.task"
    variables = {WAREHOUSE_VARIABLE: warehouse.uri, "PAIRING_OUTCOME": f"{outcomes.uri}/{name}"}
    variables["PAIRING_TASK_LOCK"] = f"{outcomes.uri}/{lease}"
    if hook._is_kubernetes:
        image = {
            "application": f"local://{ROOT}/spark_jobs/{job}.py",
            "env_vars": variables | IMPORTABLE,
            "conf": {"spark.kubernetes.submission.waitAppCompletion": "true"},
        }
        return Submission(image, str(pipeline), outcomes, name, lease)
    # There may be no schema registry.
    variables_with_secrets = ("PAIRING_KAFKA", OPTIONS_VARIABLE, "PAIRING_SCHEMA_REGISTRY")
    secrets = {variable: os.environ[variable] for variable in variables_with_secrets if variable in os.environ}
    tag = f"pairing-{task}"
    files = {
        "application": str(driver_script(folder, job, variables | secrets)),
        "_archives": f"{project_archive(folder, pipeline)}#{_PROJECT}",
        "env_vars": {"PYTHONPATH": f"{{{{PWD}}}}/{_PROJECT}"},
        "conf": {
            "spark.yarn.submit.waitAppCompletion": "true",
            # Airflow alone decides about another try.
            "spark.yarn.maxAppAttempts": "1",
            "spark.yarn.tags": tag,
            # A driver that is killed leaves nothing on its machine.
            "spark.yarn.appMasterEnv.TMPDIR": "{{PWD}}/tmp",
        },
    }
    return Submission(files, f"{_PROJECT}/{PIPELINES_THERE}/{pipeline.name}", outcomes, name, lease, tag, manager)


def _hook_of(operator: SparkSubmitOperator) -> SparkSubmitHook:
    try:
        return operator._get_hook()
    except (NameError, RuntimeError):
        package = "apache-airflow-providers-cncf-kubernetes"
        raise AirflowFailException(f"spark_default: a master k8s:// needs the package {package} beside Airflow") from None


def _manager(hook: SparkSubmitHook) -> str:
    """The address of YARN's ResourceManager; empty on Kubernetes."""
    if hook._is_kubernetes:
        return ""
    if not hook._is_yarn:
        master = hook._connection["master"]
        raise _refused(
            f"works on YARN and Kubernetes, not on {master}, where Spark runs no Python drivers: set it to client"
        )
    try:
        return hook._get_yarn_rm_base_url()
    except ValueError:
        raise _refused("on YARN needs yarn_resourcemanager_webapp_address, to end what a killed task started") from None


def _warehouse() -> Store:
    try:
        warehouse = warehouse_store()
    except StoreRefused as error:
        raise AirflowFailException(str(error)) from None
    if folder := warehouse.folder:
        remedy = f"set {WAREHOUSE_VARIABLE} to s3://, az:// or gs://"
        raise _refused(f"needs the tables in an object store, but {folder} is a folder: {remedy}")
    return warehouse


def _refused(reason: str) -> AirflowFailException:
    return AirflowFailException(f"spark_default: deploy-mode cluster {reason}")


@contextmanager
def lease(given: Submission) -> Iterator[None]:
    """Holds the task's lease during the block: the driver ends without it, however the task ends. Raises AirflowException."""
    with ExitStack() as until_then:
        with _in_one_line(f"the lease of the task in {given.outcomes.uri} cannot be written"):
            until_then.enter_context(held(given.outcomes, given.lease))
        yield


def take_outcome(outcomes: Store, name: str) -> dict[str, Any]:
    """What the job left of itself, empty if nothing; it is deleted, with all that jobs left whose tasks were gone. Raises AirflowException."""
    import obstore

    with _in_one_line(f"the outcome of the job in {outcomes.uri} cannot be read"):
        found = json.loads(read_text(outcomes, name) or "{}")
        old = datetime.now(UTC) - _KEPT
        there = obstore.list(outcomes.client).collect()
        taken = [each["path"] for each in there if each["path"] == name or each["last_modified"] < old]
        obstore.delete(outcomes.client, taken)
    return dict(found)


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """Raises AirflowException with `what` and the store's reason if the block fails."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        line = str(error).strip().partition("\n")[0][:300]
        raise AirflowException(f"{what} ({line})") from None


def find_application(hook: SparkSubmitHook, given: Submission) -> None:
    """Tells the hook which application on YARN it has to kill: spark-submit says so at the log level INFO only."""
    hook._yarn_rm_base_url = given.manager
    if hook._yarn_application_id is None:
        address, tags = f"{given.manager}/ws/v1/cluster/apps", {"applicationTags": given.tag}
        try:
            answer = requests.get(address, tags, auth=hook._resolved_yarn_rm_auth, timeout=3)
            found = (answer.json()["apps"] or {}).get("app", [])
            hook._yarn_application_id = found[0]["id"] if found else None
        except (requests.RequestException, ValueError, KeyError) as error:
            hook.log.warning("%s does not say which application to kill: %s", given.manager, error)
