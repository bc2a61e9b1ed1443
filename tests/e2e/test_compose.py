"""docker-compose.yaml as `docker compose up --wait` would run it, then the commands of docs/deployment.md, word by word."""

from __future__ import annotations

import re
import shlex

import pytest

from include.config.pipeline import MAINTENANCE_SUFFIX
from include.local.demo import pause_when_idle
from include.local.machine import ROOT
from tests.helpers.compose_images import require_servers
from tests.helpers.composed import Composed
from tests.helpers.job_processes import wait_for
from tests.helpers.timeline import CALLS

pytestmark = [pytest.mark.e2e, pytest.mark.long]
CELERY = {"AIRFLOW_EXECUTOR": "CeleryExecutor"}


def documented():
    """(service, command) of each `docker compose exec` that the manual shows."""
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    return [(name, shlex.split(words)) for name, words in re.findall(r"^    docker compose exec (\S+) (.+)$", text, re.M)]


@pytest.mark.parametrize(("profiles", "variables"), [((), {}), (("celery",), CELERY)], ids=["default", "celery"])
def test_the_services_pair_a_batch_as_the_manual_says(profiles, variables):
    require_servers()
    *before, compare = documented()
    assert compare[1][:3] == ["python", "-m", "include.sample.truth"] and len(before) == 4
    with Composed(profiles, variables) as compose:
        client = compose.client()
        client.wait_for_dag(CALLS.name, 300)
        for name, words in before:
            compose.run(name, words)
        # The schedule brings a run; nobody triggers one.
        wait_for(lambda: client.runs(CALLS.name), "the schedule's run", 300, every_s=1)
        first = client.runs(CALLS.name)[-1]["dag_run_id"]
        state, tasks = client.wait_for_run(CALLS.name, first, 900), client.tasks(CALLS.name, first)
        assert state == "success", {name: client.task_log(CALLS.name, first, name)[-15:] for name in tasks}
        assert first.startswith("scheduled__")
        assert {task["try_number"] for task in tasks.values()} == {1}
        for dag_id in (CALLS.name, f"{CALLS.name}{MAINTENANCE_SUFFIX}"):
            pause_when_idle(client, dag_id)
        verdict = compose.run(*compare)
        assert "equal to the truth of the sample traffic, message by message" in verdict
        assert int(re.search(r"published: ([\d,]+) compounds", verdict)[1].replace(",", "")) > 1_500
        # It has no volume with the tables, as the file says, and needs none.
        assert not [*compose.places.own("airflow-triggerer").glob("files/var/lib/event-pairing/warehouse/*")]
