"""The manifests against the schemas of Kubernetes, against each other, and against what a pod may not have."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from include.config.project import ROOT
from tests.helpers.example_files import MANIFESTS, helm_values, objects, settings, spark_settings, the
from tests.helpers.tools import python_with

VALIDATOR = "kubernetes-validate==1.37.0"
# The oldest version of Kubernetes that still gets fixes, and the newest that the validator knows.
VERSIONS = ("1.34", "1.37")
USER = 10001


def template() -> dict[str, Any]:
    """The pod template of the executors."""
    return dict(yaml.safe_load(the("ConfigMap", "spark-conf")["data"]["executor.yaml"]))


def pods() -> dict[str, dict[str, Any]]:
    """Name -> spec of every pod in the manifests."""
    found = {
        each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in objects() if each["kind"] == "Deployment"
    }
    return found | {"executor": template()["spec"]}


def test_each_object_is_valid_and_a_wrong_one_is_not(tmp_path) -> None:
    python = python_with(VALIDATOR)
    # Spark fills in the template's name and image.
    pod = template() | {"metadata": {"name": "executor"}}
    pod["spec"]["containers"][0]["image"] = "x"
    (tmp_path / "executor.yaml").write_text(yaml.safe_dump(pod))
    wrong = json.loads(json.dumps(the("Deployment", "spark-connect")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readOnly"] = True
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(wrong))

    def validate(version: str, *files: Any) -> subprocess.CompletedProcess[str]:
        command = [python, "-m", "kubernetes_validate", "--strict", "-k", version, *files]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for version in VERSIONS:
        done = validate(version, *MANIFESTS, tmp_path / "executor.yaml")
        assert done.returncode == 0 and done.stdout.count("passed") == len(objects()) + 1, done.stdout + done.stderr
    done = validate(VERSIONS[0], tmp_path / "wrong.yaml")
    assert done.returncode != 0 and "readOnly" in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["spark-connect", "executor"])
def test_no_pod_has_privileges_or_writes_to_its_image(name) -> None:
    """What the namespace's level `restricted` demands, and a read-only root."""
    spec = pods()[name]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == USER
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert places["tmp"] == "/tmp" and places["work"] == container["workingDir"], (
        "Spark writes to the folder in which it runs"
    )
    assert set(places) == {volume["name"] for volume in spec["volumes"]}
    assert f"useradd --uid {USER} " in (ROOT / "include/image/Dockerfile").read_text()


def test_names_and_ports_lead_to_each_other() -> None:
    spec = pods()["spark-connect"]
    (container,) = spec["containers"]
    connect, conf = spark_settings()["connect"], spark_settings()["kubernetes"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    named = ("spark.connect.grpc.binding.port", "spark.driver.port", "spark.driver.blockManager.port")
    assert list(ports.items()) == list(
        zip(("connect", "driver", "blocks"), (int(connect[name]) for name in named), strict=True)
    )
    driver, jobs = the("Service", "spark-connect-driver"), the("Service", "spark-connect")
    assert connect["spark.driver.host"] == f"{driver['metadata']['name']}.{driver['metadata']['namespace']}.svc"
    spark = json.loads(next(each["value"] for each in helm_values()["env"] if each["name"] == "AIRFLOW_CONN_SPARK_DEFAULT"))
    assert (spark["host"], spark["port"]) == (f"sc://{jobs['metadata']['name']}", jobs["spec"]["ports"][0]["port"])
    for service in (driver, jobs):
        assert (
            service["spec"]["selector"].items()
            <= the("Deployment", "spark-connect")["spec"]["template"]["metadata"]["labels"].items()
        )
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    assert spec["serviceAccountName"] == the("RoleBinding", "spark-driver")["subjects"][0]["name"] == "spark-driver"
    assert (
        conf["spark.kubernetes.authenticate.executor.serviceAccountName"]
        == the("ServiceAccount", "spark-executor")["metadata"]["name"]
    )
    assert the("ServiceAccount", "spark-executor")["automountServiceAccountToken"] is False, (
        "executors ask nothing of Kubernetes"
    )
    assert {each["metadata"].get("namespace", "event-pairing") for each in objects()} == {conf["spark.kubernetes.namespace"]}
    values = helm_values()
    assert (
        conf["spark.kubernetes.container.image"]
        == container["image"]
        == f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}"
    )


def test_the_configuration_is_where_spark_looks_for_it() -> None:
    (container,) = pods()["spark-connect"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    mounted = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "spark-conf")
    conf = spark_settings()["kubernetes"]
    assert environment["SPARK_CONF_DIR"] == mounted
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mounted}/executor.yaml"
    assert conf["spark.kubernetes.executor.podTemplateContainerName"] == template()["spec"]["containers"][0]["name"]
    (command,) = template()["spec"]["containers"][0]["command"]
    home = "/opt/event-pairing"
    assert command.startswith(f"{home}/") and (ROOT / command.removeprefix(f"{home}/")).stat().st_mode & 0o111


def test_who_may_reach_the_server_is_named() -> None:
    policy = the("NetworkPolicy", "spark-connect")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    reached = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    assert set(reached) == {"connect", "driver", "blocks"}
    assert reached["connect"] == [{"podSelector": {"matchLabels": {"tier": "airflow", "component": "worker"}}}]
    label = spark_settings()["kubernetes"]["spark.kubernetes.executor.label.part-of"]
    assert (
        reached["driver"]
        == reached["blocks"]
        == [{"podSelector": {"matchLabels": {"spark-role": "executor", "part-of": label}}}]
    )


def test_a_setting_is_read_as_spark_reads_it() -> None:
    assert settings("# no\n\nspark.a   1 2\n") == {"spark.a": "1 2"}
