"""The package in an Airflow of another project: an environment of its own, a folder `include` of its own, and the DAG file of docs/package.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from include.config.pipeline_file import load_pipeline
from include.local import airflow as local_airflow
from include.local import airflow_database
from include.local import spark as local_spark
from include.local.airflow import PARTS, LocalAirflow
from include.local.broker import create_topics
from include.local.demo import pause_when_idle
from include.local.machine import ROOT, SPARK_CONF, VENV, project_environment
from include.local.process import free_port, log_path, start_program
from include.local.setup import LOCK
from include.local.spark import LocalSpark
from include.sample import truth as sample_truth
from include.sample.calls import generate, send

pytestmark = [pytest.mark.e2e, pytest.mark.long]

NAME = "team_calls"
PAGE = (ROOT / "docs/package.md").read_text()


def block(mark: str) -> str:
    """A block of the page, by what stands behind its fence."""
    (found,) = re.findall(rf"^```{mark}\n(.*?)^```$", PAGE, re.M | re.S)
    return found


class Environment:
    """Where the package is installed: its programs, and the variables of a shell that has nothing of the project's tree."""

    def __init__(self, folder: Path) -> None:
        self.venv, self.conf = folder / "venv", folder / "conf"
        self.python = self.venv / "bin" / "python"
        uv = str(VENV / "bin" / "uv")
        self.run(uv, "venv", "--python", str(VENV / "bin" / "python"), str(self.venv))
        self.run(uv, "build", "--wheel", "--out-dir", str(folder), str(ROOT))
        (wheel,) = folder.glob("event_pairing-*.whl")
        # As the page says, but that the wheel is built once for all.
        self.run(uv, "pip", "install", "--python", str(self.python), "--constraints", str(LOCK), str(wheel))
        shutil.copytree(SPARK_CONF, self.conf)
        defaults = self.conf / "spark-defaults.conf"
        defaults.write_text(re.sub(r"^(spark\.pyspark\.python) .*$", rf"\1 {self.python}", defaults.read_text(), flags=re.M))

    def variables(self) -> dict[str, str]:
        tree = project_environment()
        del tree["PYTHONPATH"]
        path = f"{self.venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return tree | {"PATH": path, "SPARK_CONF_DIR": str(self.conf)}

    def run(self, *command: str, **more: str) -> str:
        # Not in the project's folder, which Python would look into first.
        done = subprocess.run(
            command,
            cwd=self.venv.parent,
            env=self.variables() | more,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2_000:]}"
        return done.stdout


class TeamAirflow(LocalAirflow):
    """An Airflow from that environment, on the team's folder."""

    def __init__(self, installed: Environment, team: Path, *arguments, **settings) -> None:
        super().__init__(*arguments, dags=team / "dags", **settings)
        self.installed, self.team = installed, team

    def settings(self):
        return super().settings() | {
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.team / "plugins"),
            "PAIRING_PIPELINES": str(self.team / "pipelines"),
            # The team's own modules.
            "PYTHONPATH": str(self.team),
        }

    def environment(self):
        return self.installed.variables() | self.settings()

    def _start_part(self, part):
        log_path(self.folder, part).write_text("")
        command = [self.installed.venv / "bin" / "airflow", part, *PARTS[part]]
        start_program(self.folder, part, command, self.environment(), place=self.team)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    yield Environment(folder)
    # 1.6 GB.
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def team(tmp_path_factory):
    """Another project: a DAG and a module of its own, the DAG file of the page, and a pipeline file."""
    folder = tmp_path_factory.mktemp("team")
    for name in ("dags", "include", "pipelines", "plugins"):
        (folder / name).mkdir()
    (folder / "dags" / "pairs.py").write_text(block("python dag-file"))
    (folder / "include" / "__init__.py").write_text("")
    (folder / "include" / "greeting.py").write_text('WORD = "hello"\n')
    (folder / "dags" / "greets.py").write_text(
        "from airflow.sdk import DAG, task\n\nfrom include.greeting import WORD\n\n"
        'with DAG("greets", schedule=None):\n    task(task_id=WORD)(lambda: WORD)()\n'
    )
    calls = (ROOT / "include/pipelines/calls.yaml").read_text()
    for topic in ("analyticsTopic", "metricsTopic", "outputTopic"):
        calls = calls.replace(topic, f"team.{topic}")
    # No run of the schedule before that of the test.
    calls = re.sub(r"^schedule: .*$", "schedule: null", calls, flags=re.M)
    (folder / "pipelines" / f"{NAME}.yaml").write_text(calls)
    return folder


def test_every_module_can_be_imported_where_only_the_package_is_installed(installed):
    """So nothing is missing in its dependencies."""
    code = """
import importlib, pkgutil, event_pairing
names = [each.name for each in pkgutil.walk_packages(event_pairing.__path__, "event_pairing.") if ".dags" not in each.name]
for name in names: importlib.import_module(name)
print(len(names))
"""
    place = {"PAIRING_PIPELINES": str(installed.venv), "AIRFLOW_HOME": str(installed.venv.parent / "home")}
    assert int(installed.run(str(installed.python), "-c", code, **place).splitlines()[-1]) > 200
    for name in ("include", "spark_jobs", "plugins", "dags"):
        found = installed.run(
            str(installed.python), "-c", f"import importlib.util; print(importlib.util.find_spec({name!r}))"
        )
        assert found == "None\n", "the names stay the team's"


def test_a_run_in_another_airflow_is_as_the_truth_says(installed, team, broker, tmp_path, monkeypatch):
    for module in (local_airflow, airflow_database, local_spark):
        monkeypatch.setattr(module, "VENV", installed.venv)
    monkeypatch.setattr(local_spark, "project_environment", installed.variables)
    pipeline = load_pipeline(team / "pipelines" / f"{NAME}.yaml")
    topics = (pipeline.left.topic, pipeline.right.topic, pipeline.output_topic)
    create_topics(broker.bootstrap, dict.fromkeys(topics, 2), {"retention.ms": "-1"})
    warehouse = str(tmp_path / "warehouse")
    with (
        LocalSpark(tmp_path / "spark", free_port()) as spark,
        TeamAirflow(
            installed, team, tmp_path / "airflow", free_port(), broker.bootstrap, warehouse, spark=spark.url
        ) as airflow,
    ):
        client = airflow.client()
        for dag in (NAME, f"{NAME}_replay", f"{NAME}_maintenance", "greets"):
            client.wait_for_dag(dag, 120)
        assert client.call("GET", "/importErrors")["import_errors"] == []
        providers = {
            each["package_name"]: each["version"] for each in client.call("GET", "/providers?limit=100")["providers"]
        }
        assert providers["event-pairing"] == "1.0.0"
        plugins = {each["name"]: each["source"] for each in client.call("GET", "/plugins?limit=100")["plugins"]}
        assert "event-pairing" in plugins["event_pairing"]
        assert client.call("GET", f"/pools/{NAME}")["slots"] == 1

        sample = generate(pipeline, 500, 7, time.time_ns() // 1_000_000, None)
        sample.write_truth(tmp_path / "truth.jsonl")
        kafka = {"bootstrap.servers": broker.bootstrap}
        send(sample.records, kafka)
        client.pause(NAME, False)
        run_id = client.trigger(NAME)
        state = client.wait_for_run(NAME, run_id, 600)
        assert state == "success", {name: client.task_log(NAME, run_id, name)[-15:] for name in client.tasks(NAME, run_id)}
        pause_when_idle(client, NAME)
        clock = sample_truth.ledger_clock(warehouse, pipeline)
        verdict = sample_truth.check([tmp_path / "truth.jsonl"], pipeline, kafka, warehouse, clock)
        assert verdict.differences == [] and sum(verdict.kinds.values()) > 350

        page = urllib.request.Request(f"{airflow.url}/quality/{NAME}/index.html")
        page.add_header("Authorization", f"Bearer {client._token}")
        with urllib.request.urlopen(page, timeout=20) as answer:
            assert answer.status == 200 and b"passed" in answer.read()

        maintained = client.trigger(f"{NAME}_maintenance")
        client.pause(f"{NAME}_maintenance", False)
        assert client.wait_for_run(f"{NAME}_maintenance", maintained, 600) == "success"

    # A job by hand, on a Spark of its own, as the page says.
    told = {
        "PAIRING_KAFKA": f'{{"bootstrap.servers": "{broker.bootstrap}"}}',
        "PAIRING_WAREHOUSE": warehouse,
        "PAIRING_PIPELINES": str(team / "pipelines"),
    }
    command = block("bash by-hand").replace("NAME", NAME)
    installed.run("bash", "-euc", command, **told)
