"""docker-compose.yaml against the published Compose schema, and against what no schema knows. No Docker is needed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from include.airflow.forked_jobs import LIBRARIES
from include.image.write_env import SECRETS

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yaml"
TEXT = COMPOSE_FILE.read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OUR_IMAGE = "event-pairing:local"
OURS = [name for name, service in SERVICES.items() if service["image"] == OUR_IMAGE]
# The programs of other people's images that we name, as their documentation gives them.
FOREIGN_PROGRAMS = {
    "apache/kafka": {"/opt/kafka/bin/kafka-broker-api-versions.sh"},
    "postgres": {"pg_isready"},
    "redis": {"sh", "redis-cli"},
}
# Of packages that only the image has, by requirements-celery.lock.
CELERY_PROGRAMS = {"celery"}
CELERY_SERVICES = {"redis", "airflow-scheduler-2", "airflow-worker-1", "airflow-worker-2"}

each_service = pytest.mark.parametrize("name", SERVICES)
each_of_ours = pytest.mark.parametrize("name", OURS)


def awaited(condition: str) -> set[str]:
    """The services that some other one waits for in this way."""
    waits = [wait for service in SERVICES.values() for wait in service.get("depends_on", {}).items()]
    return {target for target, wait in waits if wait["condition"] == condition}


# They do one thing and end: nothing could ask them for their health, their exit code is it.
ONE_SHOT = awaited("service_completed_successfully")


def test_the_file_follows_the_published_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE_FILE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_services_are_complete() -> None:
    airflow = {f"airflow-{part}" for part in ("init", "api-server", "scheduler", "dag-processor", "triggerer")}
    assert set(SERVICES) - CELERY_SERVICES == airflow | {"kafka", "topics", "spark", "postgres"}


def test_celery_is_a_profile_and_the_rest_does_without_it() -> None:
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["celery"]} == CELERY_SERVICES
    assert {name for name, service in SERVICES.items() if "profiles" in service} == CELERY_SERVICES
    waits = {target for name in set(SERVICES) - CELERY_SERVICES for target in SERVICES[name].get("depends_on", {})}
    assert not waits & CELERY_SERVICES


@pytest.mark.parametrize("number", [1, 2])
def test_workers_have_a_name_each_and_wait_for_the_broker(number: int) -> None:
    worker = SERVICES[f"airflow-worker-{number}"]
    assert worker["command"][-2:] == ["--celery-hostname", f"worker-{number}"]
    assert worker["healthcheck"]["test"][-1] == f"celery@worker-{number}"
    assert worker["environment"]["CELERY_BROKER_URL"] == worker["environment"]["AIRFLOW__CELERY__BROKER_URL"]
    assert worker["depends_on"]["redis"] == {"condition": "service_healthy"}
    assert worker["volumes"] == SERVICES["airflow-scheduler"]["volumes"]


@each_service
def test_health_is_known(name: str) -> None:
    service = SERVICES[name]
    if name in ONE_SHOT:
        assert service["restart"] == "no", "a one-shot service that is restarted never completes"
        assert "ports" not in service
    else:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] == "unless-stopped"


@each_service
def test_dependencies_exist_and_wait_for_health(name: str) -> None:
    for target, wait in SERVICES[name].get("depends_on", {}).items():
        expected = "service_completed_successfully" if target in ONE_SHOT else "service_healthy"
        assert (target in SERVICES, wait["condition"]) == (True, expected)


def test_dependencies_have_no_circle_and_reach_everything_a_task_needs() -> None:
    graph = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    assert list(TopologicalSorter(graph).static_order())
    needed, todo = set(), {"airflow-scheduler"}
    while todo:
        needed |= todo
        todo = set().union(*(graph[name] for name in todo)) - needed
    assert needed == set(SERVICES) - CELERY_SERVICES - {"airflow-dag-processor", "airflow-triggerer"}


def test_nothing_is_published_beyond_loopback() -> None:
    published = {name: port for name, service in SERVICES.items() for port in service.get("ports", [])}
    assert set(published) == {"kafka", "spark", "airflow-api-server"}
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+", port) for port in published.values()), published
    assert not [name for name, service in SERVICES.items() if "network_mode" in service]


def test_every_variable_is_explained_and_has_a_default_or_is_demanded() -> None:
    variables = re.findall(r"(?<!\$)\$\{?(\w+)(:[-?])?", TEXT)
    manual = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert [name for name, _ in variables if f"`{name}`" not in manual] == []
    assert [name for name, form in variables if not form] == []
    assert {name for name, form in variables if form == ":?"} == set(SECRETS)


@each_service
def test_no_secret_is_written_down(name: str) -> None:
    environment = SERVICES[name].get("environment", {})
    secret = {key: value for key, value in environment.items() if re.search(r"(PASSWORD|SECRET|_KEY|TOKEN|AUTH)$", key)}
    assert all(re.fullmatch(r"\$\{\w+:\?[^}]+\}", value) for value in secret.values()), sorted(secret)
    assert all(re.search(r":\$\{\w+:\?[^}]+\}@", value) for value in environment.values() if re.search(r"://\w*:.*@", value))
    # Of the container's environment by the shell, so that no command line has it.
    assert not re.findall(r"(?<!\$)\$\{?\w*(?:PASSWORD|SECRET|KEY|TOKEN|AUTH)", " ".join(SERVICES[name].get("command", [])))


# What they import by importing the jobs.
OF_JOBS = (
    *("confluent_kafka.admin", "deltalake.fs", "fastavro", "jinja2", "numpy", "obstore", "pandas"),
    *("pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "pyruhvro", "pyspark.sql.functions", "pyspark.sql.pandas.types"),
)


def test_celery_s_workers_import_the_libraries_of_jobs() -> None:
    """Before they fork, so that tasks have them."""
    (module,) = json.loads(SERVICES["airflow-worker-1"]["environment"]["AIRFLOW__CELERY__EXTRA_CELERY_CONFIG"])["imports"]
    program = f"import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*LIBRARIES, *OF_JOBS} <= {*done.stdout.split()}


def test_airflow_services_share_their_settings() -> None:
    environments = [SERVICES[name]["environment"] for name in OURS if name.startswith("airflow")]
    for key in set().union(*environments) - {"CELERY_BROKER_URL"}:
        assert len({environment.get(key) for environment in environments}) == 1, key


def test_images_are_pinned_and_ours_is_built_once() -> None:
    builders = [name for name, service in SERVICES.items() if "build" in service]
    assert [SERVICES[name]["image"] for name in builders] == [OUR_IMAGE]
    assert (ROOT / SERVICES[builders[0]]["build"]["dockerfile"]).is_file()
    assert {SERVICES[name]["pull_policy"] for name in OURS if name not in builders} == {"never"}
    foreign = {service["image"] for service in SERVICES.values()} - {OUR_IMAGE}
    assert all(re.fullmatch(r"[a-z/]+:\d+\.\d+(\.\d+)?(-[a-z]+)?", image) for image in foreign), foreign


def test_kafka_is_the_release_that_the_local_broker_runs() -> None:
    release = re.search(
        r'name="kafka_2\.13" rev="([^"]+)"', (ROOT / "include" / "local" / "ivy.xml").read_text(encoding="utf-8")
    )
    assert release and SERVICES["kafka"]["image"] == f"apache/kafka:{release[1]}"


@each_service
def test_programs_exist_in_their_image(name: str) -> None:
    service = SERVICES[name]
    commands = [service.get("command", []), service.get("healthcheck", {}).get("test", [])[1:]]
    for command in filter(None, commands):
        if name in OURS:
            assert command[0] in CELERY_PROGRAMS or (Path(sys.prefix) / "bin" / command[0]).is_file(), command
            assert command[1] != "-m" or find_spec(command[2]), command
        else:
            assert command[0] in FOREIGN_PROGRAMS[service["image"].split(":")[0]], command


@each_service
def test_no_service_keeps_privileges(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES[name]["security_opt"]


@each_of_ours
def test_our_services_are_no_root_and_write_to_no_image(name: str) -> None:
    dockerfile = (ROOT / "include/image/Dockerfile").read_text(encoding="utf-8")
    user = re.search(r"useradd --uid (\d+) ", dockerfile)
    assert user and SERVICES[name]["user"] == f"{user[1]}:{user[1]}"
    assert SERVICES[name]["read_only"] is True
    # Either in memory, where programs must be able to map libraries, or on a disk.
    places = {mount.split(":")[1] for mount in SERVICES[name].get("volumes", [])}
    assert (SERVICES[name]["tmpfs"] == ["/tmp:exec,mode=1777"]) is ("/tmp" not in places)


def test_volumes_are_declared_and_used() -> None:
    mounted = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}
    assert mounted == set(COMPOSE["volumes"])


def test_jobs_and_the_spark_server_see_one_warehouse() -> None:
    place = "warehouse:/var/lib/event-pairing/warehouse"
    assert place in SERVICES["airflow-scheduler"]["volumes"]
    assert place in SERVICES["spark"]["volumes"]
    assert f"{place}:ro" in SERVICES["airflow-api-server"]["volumes"]


def test_hosts_in_settings_are_services() -> None:
    named = set(re.findall(r"(?:://|@|[ ,\"'])([a-z][a-z-]+)(?:\", \"port\": |:)(\d{4,5})\b", TEXT))
    assert {("kafka", "19092"), ("spark", "15002"), ("airflow-api-server", "8080")} <= named
    assert {host for host, _ in named} <= set(SERVICES)
    assert "@postgres/" in SERVICES["airflow-init"]["environment"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]


def test_tasks_find_their_connections(tmp_path: Path) -> None:
    program = """
import json
from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
spark = SparkConnectHook(conn_id="spark_default").get_connection_url()
kafka = KafkaBaseHook(kafka_config_id="kafka_default").get_connection("kafka_default").extra_dejson
print(json.dumps([spark, kafka]))
"""
    settings = SERVICES["airflow-scheduler"]["environment"]
    connections = {key: value for key, value in settings.items() if key.startswith("AIRFLOW_CONN_")}
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), **connections}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    spark, kafka = json.loads(done.stdout.splitlines()[-1])
    assert spark.startswith("sc://spark:15002/")
    assert kafka == {"bootstrap.servers": "kafka:19092"}
