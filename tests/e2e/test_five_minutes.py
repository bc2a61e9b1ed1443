"""docs/start.md on a machine that has nothing yet: its commands, and those of the operating guide that need the Airflow of the demo."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from include.local.machine import FOREIGN
from include.local.process import free_port
from tests.helpers.doc_blocks import block_with
from tests.helpers.timeline import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TOKEN = """
import json, re, sys, urllib.request
password = re.search(r"user admin, password (\\w+)", sys.argv[2])[1]
body = json.dumps({"username": "admin", "password": password}).encode()
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/auth/token", body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=30))["access_token"])
"""


@pytest.fixture
def fresh(tmp_path):
    """What git has of the project, in a folder without .venv and .local."""
    folder = tmp_path / "project"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / name).chmod((ROOT / name).stat().st_mode)
    return folder


def test_the_first_commands_run_as_they_stand(fresh):
    start, guide = ROOT / "docs" / "start.md", ROOT / "docs" / "operating.md"
    ports = {name: str(free_port()) for name in ("KAFKA_PORT", "SPARK_PORT", "AIRFLOW_PORT")}
    environment = {name: text for name, text in os.environ.items() if not FOREIGN.fullmatch(name)} | ports

    def run(page: Path, words: str, **more: str) -> str:
        script = block_with(page, words).replace("127.0.0.1:8080", f"127.0.0.1:{ports['AIRFLOW_PORT']}")
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=fresh,
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        said = run(start, "make demo")
        for line in re.findall(r"^    (\w+:|equal to .*)", start.read_text(), re.M):
            assert line in said
        assert '"compound_events"' in run(start, "cat > calls.jsonl")
        assert "success" in run(guide, "airflow dags list-runs")
        token = subprocess.run(
            ["python3", "-c", TOKEN, ports["AIRFLOW_PORT"], said], capture_output=True, text=True, check=True
        ).stdout.strip()
        assert "calls/compound_events" in run(guide, "curl", TOKEN=token)
    finally:
        stopped = run(start, "make stop")
    assert "Airflow stopped" in stopped and "the broker stopped" in stopped
