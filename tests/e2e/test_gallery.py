"""Each example of the gallery as a person runs it, twice: its pipelines alone are in Airflow, and all that comes out equals the truth."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from include.local.airflow_client import AirflowClient
from include.local.machine import EXAMPLES as NAMES
from include.local.machine import ROOT, SetupError
from include.local.process import free_port
from include.local.registry import registry_program
from include.sample.examples import EXAMPLES
from include.sample.truth import EQUAL
from tests.helpers.copied_project import copied
from tests.helpers.gallery_page import came_out, shown
from tests.helpers.stores import skip_or_fail

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PORTS = ("KAFKA_PORT", "SPARK_PORT", "AIRFLOW_PORT", "REGISTRY_PORT")


@pytest.fixture
def project(tmp_path):
    """A copy of the project that is set up, so that its demos have no data of others."""
    folder = copied(tmp_path / "project")
    (folder / ".local").mkdir()
    for name in (".venv", ".local/jars", ".local/spark-conf"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture
def command(project):
    """Runs a module of the copy; gives its exit status and all that it prints."""
    ports = {name: str(free_port()) for name in PORTS}

    def run(module, example):
        environment = os.environ | ports | {"EXAMPLE": example, "PYTHONPATH": str(project)}
        done = subprocess.run(
            [sys.executable, "-m", module], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        print(done.stdout)
        return done.returncode, done.stdout + done.stderr

    run.airflow = f"http://127.0.0.1:{ports['AIRFLOW_PORT']}"
    yield run
    run("include.local.stop", "")


def form(text):
    """What is alike in all first demos: no numbers, and no values, of which the page's are held against the truth by a unit test."""
    lines = (line for line in text.split("\n") if line != EQUAL)
    return [re.sub(r"\d[\d,]*", "N", re.sub(r"{.*", "{", line)) for line in lines]


@pytest.mark.parametrize("example", NAMES[1:])
def test_what_comes_out_of_an_example_equals_its_truth(project, command, example):
    try:
        if EXAMPLES[example].schemas:
            registry_program()
    except SetupError as problem:
        skip_or_fail(problem)
    pipelines = [each.name for each in EXAMPLES[example].pipelines]
    status, printed = command("include.local.demo", example)
    assert (status, printed.count(EQUAL)) == (0, len(pipelines)), printed
    for name in pipelines:
        assert f"DAG {name}, run" in printed
    assert form(came_out(printed)) == form(shown(example)), "make docs/gallery.md anew: tests/helpers/gallery_page.py"

    status, printed = command("include.local.demo", example)
    assert (status, printed.count(EQUAL)) == (0, len(pipelines)), printed
    # Of the second demo's events some are late, but where late events ask for replays.
    assert (" late" in printed) is (example != "legs")
    password = json.loads((project / ".local" / example / "airflow" / "passwords.json").read_text())["admin"]
    client = AirflowClient(command.airflow, "admin", password)
    dags = {each["dag_id"] for each in client.call("GET", "/dags?limit=100")["dags"]}
    assert dags == {f"{name}{suffix}" for name in pipelines for suffix in ("", "_replay", "_maintenance")}
