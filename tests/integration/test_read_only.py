"""The image's commands as its unprivileged user, with nothing to write to but the folders that docker-compose.yaml and the pods name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from include.image.create_topics import pipeline_topics
from include.local.machine import ROOT, SPARK_CONF, project_environment
from tests.helpers.confined import USER, confined, skip_unless_possible
from tests.helpers.job_processes import JOBS

pytestmark = [pytest.mark.integration, pytest.mark.long]
# Who it is, and where it can write: one line of JSON.
PROBE = """
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
written = []
for folder in sys.argv[1:]:
    try:
        open(os.path.join(folder, "probe"), "w").close()
        os.unlink(os.path.join(folder, "probe"))
        written.append(folder)
    except OSError:
        pass
print(json.dumps([os.getuid(), os.getgid(), int(status["CapEff"], 16), int(status["CapBnd"], 16), int(status["NoNewPrivs"]), written]))
"""


@pytest.fixture
def places(tmp_path):
    """The folders that a container may write to: of the tables, of Airflow, and for scratch."""
    skip_unless_possible()
    # The temporary folder is not the machine's /tmp: that one is not to be seen at all.
    found = {name: tmp_path / name for name in ("warehouse", "airflow", "tmp")}
    for folder in found.values():
        folder.mkdir()
    return found


@pytest.fixture
def run(places, broker):
    """run(command …) as the image would, and its output; it has to succeed."""
    environment = project_environment() | {
        "HOME": "/home/pairing",
        "TMPDIR": str(places["tmp"]),
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={places['tmp']}",
        "AIRFLOW_HOME": str(places["airflow"]),
        "PAIRING_WAREHOUSE": str(places["warehouse"]),
        "PAIRING_KAFKA": json.dumps({"bootstrap.servers": broker.bootstrap}),
        "SPARK_CONF_DIR": str(SPARK_CONF),
    }

    def call(*command: str) -> str:
        done = confined([*command], [*places.values()], environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def test_who_it_is_and_where_it_can_write(run, places) -> None:
    folders = [
        *map(str, places.values()),
        str(ROOT),
        str(ROOT / ".local"),
        "/",
        "/usr",
        "/etc",
        "/opt",
        "/home",
        "/var",
        "/tmp",
        "/home/pairing",
    ]
    user, group, effective, bounding, no_new, written = json.loads(run(sys.executable, "-c", PROBE, *folders))
    assert (user, group, effective, bounding, no_new) == (USER, USER, 0, 0, 1)
    assert written == [*map(str, places.values())]


def test_topics_jobs_and_airflow_need_no_other_folder(run, places, broker) -> None:
    run("python", "-m", "include.image.create_topics", broker.bootstrap)
    truth = places["tmp"] / "truth.jsonl"
    run("python", "-m", "include.sample.calls", "--calls", "50", "--bootstrap", broker.bootstrap, "--truth", str(truth))
    for job in JOBS:
        run("spark-submit", "--master", "local[2]", f"spark_jobs/{job}.py", "--pipeline", "include/pipelines/calls.yaml")
    made = {path.name for path in (places["warehouse"] / "calls").iterdir()}
    assert made >= {"raw_analytics", "compound_events", "batch_ledger", "quality"} and pipeline_topics()
    assert (places["warehouse"] / "calls" / "quality" / "batch-1.html").stat().st_uid == USER
    run("airflow", "db", "migrate")
    assert Path(places["airflow"] / "airflow.db").stat().st_uid == USER
