"""Whatever program of the demo's is killed, the platform is whole again within half a minute, and works. A stop in the middle of a run costs nothing."""

from __future__ import annotations

import threading
import time

import pytest

from include.local.airflow import PARTS
from include.local.airflow_client import AirflowError
from include.local.demo import start_servers
from include.local.process import processes_of, running_program
from include.local.watch import watch
from tests.helpers.job_processes import wait_for
from tests.load.servers import PIPELINE, servers

pytestmark = [pytest.mark.e2e, pytest.mark.long]

WITHIN_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with servers(tmp_path_factory.mktemp("healing")) as up:
        up.client.pause(PIPELINE, True)
        over = threading.Event()
        watching = threading.Thread(target=watch, args=(up.all, over.is_set), daemon=True)
        watching.start()
        yield up
        over.set()
        watching.join(60)


def is_whole(running):
    server_up = running.broker.listens() and running.spark.listens() and all(each.is_running() for each in running.all)
    try:
        return server_up and all(status == "healthy" for status in running.client.health().values())
    except (AirflowError, OSError):
        return False


def left_behind(running):
    """Processes of Airflow's that none of its programs has started."""
    parts = [running_program(running.airflow.folder, part) for part in PARTS]
    started = {each.pid for part in parts for each in (part, *part.children(recursive=True))}
    return [each for each in processes_of(running.airflow.folder) if each.pid not in started]


@pytest.mark.parametrize("program", ["kafka", "server", *PARTS])
def test_a_program_that_is_killed_is_up_again(running, program):
    server = next(each for each in running.all if (each.folder / f"{program}.pid").is_file())
    killed = running_program(server.folder, program)
    begin = time.monotonic()
    killed.kill()
    killed.wait(10)
    while not is_whole(running):
        assert time.monotonic() - begin < WITHIN_S, f"{program} is not up again after {WITHIN_S:.0f} s"
        time.sleep(0.2)
    assert running_program(server.folder, program).pid != killed.pid
    wait_for(lambda: not left_behind(running), "what the program left behind to be ended", 10)
    print(f"{program}: {time.monotonic() - begin:.1f} s")


def test_then_a_run_succeeds(running):
    client = running.client
    client.pause(PIPELINE, False)
    assert client.wait_for_run(PIPELINE, client.trigger(PIPELINE), 120) == "success"


def test_a_stop_in_the_middle_of_a_run_is_resumed_at_once(running):
    client, task = running.client, "report_quality"
    run = client.trigger(PIPELINE)
    wait_for(lambda: client.task_states(PIPELINE, run).get(task) == "running", "the task to run", 120)
    # As `make stop` does, and the next `make demo`.
    for server in reversed(running.all):
        assert server.stop()
    start_servers(*running.all)
    begin, client = time.monotonic(), running.client
    wait_for(lambda: client.task_states(PIPELINE, run)[task] in ("running", "success"), "the task to be resumed", 10)
    print(f"resumed {time.monotonic() - begin:.1f} s after the start")
    assert client.wait_for_run(PIPELINE, run, 120) == "success"
    tries = {name: each["try_number"] for name, each in client.tasks(PIPELINE, run).items()}
    assert tries == dict.fromkeys(tries, 1) | {task: 2}
