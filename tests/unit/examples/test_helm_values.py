"""The values for Airflow's official chart: names that the chart knows, settings that Airflow and its providers know, no secret.

The chart itself is in no package registry. What it knows is written down here, of version 1.22.0, for the names that are used.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from airflow.configuration import conf

from include.config.project import ROOT
from tests.helpers.example_files import EXAMPLES, helm_values
from tests.helpers.tools import python_with

CHART = "1.22.0"
FILES = ("values", "values-celery")
# Below these the chart takes what Kubernetes takes, or any name.
FREE = (
    "*.resources", "*.serviceAccount.annotations", "securityContexts.pod", "securityContexts.containers", "env", "secret", "volumes",
    "volumeMounts", "*.livenessProbe.command", "*.startupProbe.command", "config",
    "apiServer.networkPolicy.ingress.from",
)  # fmt: skip
KNOWN = """
airflowVersion airflowHome executor uid gid extraEnv fernetKeySecretName apiSecretKeySecretName jwtSecretName
defaultAirflowRepository defaultAirflowTag
data.metadataSecretName data.brokerUrlSecretName data.resultBackendSecretName
migrateDatabaseJob.enabled createUserJob.enabled networkPolicies.enabled statsd.enabled redis.enabled postgresql.enabled
apiServer.replicas apiServer.startupProbe.failureThreshold
scheduler.replicas scheduler.logGroomerSidecar.enabled scheduler.startupProbe.failureThreshold
dagProcessor.enabled dagProcessor.logGroomerSidecar.enabled dagProcessor.livenessProbe.periodSeconds
dagProcessor.livenessProbe.timeoutSeconds
triggerer.persistence.enabled triggerer.logGroomerSidecar.enabled triggerer.livenessProbe.periodSeconds
triggerer.livenessProbe.timeoutSeconds
workers.kubernetes.serviceAccount.create workers.kubernetes.serviceAccount.name workers.kubernetes.terminationGracePeriodSeconds
workers.celery.replicas workers.celery.serviceAccount.create workers.celery.serviceAccount.name
workers.celery.terminationGracePeriodSeconds workers.celery.persistence.enabled workers.celery.logGroomerSidecar.enabled
workers.celery.livenessProbe.periodSeconds workers.celery.livenessProbe.timeoutSeconds
logs.persistence.enabled logs.persistence.size logs.persistence.storageClassName
""".split()
PROVIDERS = {"kubernetes_executor": "cncf-kubernetes", "keycloak_auth_manager": "keycloak", "celery": "celery"}


def names(value: Any, path: str = "") -> Iterator[str]:
    """The dotted name of every value that is set, to the depth at which everything is free."""
    free = any(re.fullmatch(re.escape(each).replace(r"\*", ".+"), path) for each in FREE)
    if free or not isinstance(value, dict):
        yield path
    else:
        for key, below in value.items():
            yield from names(below, f"{path}.{key}".removeprefix("."))


@pytest.mark.parametrize("file", FILES)
def test_the_chart_knows_each_name(file) -> None:
    used = {
        name
        for name in names(helm_values(file))
        if not any(re.fullmatch(re.escape(each).replace(r"\*", ".+"), name) for each in FREE)
    }
    assert used - set(KNOWN) == set()
    head = (EXAMPLES / "helm" / f"{file}.yaml").read_text().partition("\nairflowVersion")[0]
    assert head.startswith("# Not run here") and (file != "values" or CHART in head)


def test_what_is_known_is_used() -> None:
    assert set(KNOWN) <= {name for file in FILES for name in names(helm_values(file))}


def airflow_settings() -> dict[tuple[str, str], str]:
    """Section and option of all that the values set in Airflow: in its file and in variables."""
    found = {}
    for file in FILES:
        values = helm_values(file)
        found |= {(section, name): value for section, options in values["config"].items() for name, value in options.items()}
        for given in [
            *(each["name"] for each in values.get("env", [])),
            *(each["envName"] for each in values.get("secret", [])),
        ]:
            if match := re.fullmatch(r"AIRFLOW__([A-Z_]+?)__(\w+)", given):
                found[match[1].lower(), match[2].lower()] = ""
    return found


def test_airflow_and_its_providers_know_each_setting() -> None:
    pinned = dict(
        re.findall(
            r"^apache-airflow-providers-([\w-]+?)(?:\[\w+\])?==(\S+)$",
            (EXAMPLES / "image/requirements.txt").read_text(),
            re.M,
        )
    )
    assert set(pinned) == set(PROVIDERS.values())
    python = python_with(*(f"apache-airflow-providers-{name}=={version}" for name, version in pinned.items()), alone=True)
    ask = (
        "import json, runpy, sys, sysconfig; from pathlib import Path; root = Path(sysconfig.get_path('purelib')) / 'airflow' / 'providers';"
        "print(json.dumps([runpy.run_path(str(root / name / 'get_provider_info.py'))['get_provider_info']() for name in sys.argv[1:]]))"
    )
    places = [name.replace("-", "/") for name in pinned]
    done = subprocess.run([python, "-c", ask, *places], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    described = {section: set(each["options"]) for section, each in conf.configuration_description.items()}
    for provider in json.loads(done.stdout):
        for section, each in provider.get("config", {}).items():
            described.setdefault(section, set()).update(each["options"])
    used = airflow_settings()
    assert len(used) >= 15 and {section for section, _ in used} >= {"core", *PROVIDERS}
    assert [(section, name) for section, name in used if name not in described.get(section, ())] == []
    manager = helm_values()["config"]["core"]["auth_manager"]
    assert manager in {path for provider in json.loads(done.stdout) for path in provider.get("auth-managers", [])}


def test_the_image_has_what_the_values_name() -> None:
    values = helm_values()
    dockerfile = (ROOT / "include/image/Dockerfile").read_text()
    assert values["config"]["core"]["dags_folder"] == "/opt/event-pairing/dags"
    assert f"AIRFLOW_HOME={values['airflowHome']}" in dockerfile and f"useradd --uid {values['uid']} " in dockerfile
    from airflow.version import version

    assert values["airflowVersion"] == version
    writable = {each["mountPath"] for each in values["volumeMounts"]}
    assert writable == {"/tmp", values["airflowHome"]} and values["securityContexts"]["containers"]["readOnlyRootFilesystem"]
    assert [each["name"] for each in yaml.safe_load(values["extraEnv"])] == ["SPARK_LOCAL_HOSTNAME"]
    commands = [values["scheduler"]["livenessProbe"]["command"], values["scheduler"]["startupProbe"]["command"]]
    assert {" ".join(command[:3]) for command in commands} == {"python -m include.image.healthy"}


def test_tasks_reach_the_api_server() -> None:
    """With the chart's own network policies and no name, none does."""
    values = helm_values()
    assert values["networkPolicies"]["enabled"]
    assert {"podSelector": {"matchLabels": {"tier": "airflow"}}} in values["apiServer"]["networkPolicy"]["ingress"]["from"]


@pytest.mark.parametrize("file", FILES)
def test_no_secret_is_in_the_values(file) -> None:
    values = helm_values(file)
    assert {key for each in values.get("secret", []) for key in each} <= {"envName", "secretName", "secretKey"}
    assert not [
        each["name"] for each in values.get("env", []) if re.search("SECRET|PASSWORD|TOKEN|FERNET|KAFKA", each["name"])
    ]
    assert not re.findall(r"(?i)password|://[^/\s]+:[^/\s]+@", (EXAMPLES / "helm" / f"{file}.yaml").read_text())
