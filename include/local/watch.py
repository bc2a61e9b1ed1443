"""Starts the servers of the demo again when one of their programs was killed: `make demo` starts this watch, `make stop` ends it.

A program that was stopped in order has no pid file any more, and stays stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from include.local.machine import VENV, SetupError, demo_folder, project_environment, say
from include.local.process import LocalServer, lost_programs, running_program, start_program

FOLDER = demo_folder("watch")
_PROGRAM = "watch"
_EVERY_S = 2.0
# The watch finds the servers by the same settings as the demo.
_PORTS = ("KAFKA_PORT", "SPARK_PORT", "AIRFLOW_PORT", "STORE_PORT", "CLUSTER_PORT", "REGISTRY_PORT")
_SETTINGS = (*_PORTS, "STORE", "SPARK", "EXAMPLE", "PAIRING_WAREHOUSE")


def start_watch() -> None:
    """Starts the watch of this demo, unless it runs."""
    if running_program(FOLDER, _PROGRAM) is None:
        settings = {name: os.environ[name] for name in _SETTINGS if name in os.environ}
        command = [str(VENV / "bin" / "python"), "-m", "include.local.watch"]
        start_program(FOLDER, _PROGRAM, command, project_environment() | settings)


def watch(servers: Sequence[LocalServer], is_over: Callable[[], bool] = lambda: False) -> None:
    """Looks every two seconds, and starts what is lost. What cannot be started yet is tried again at the next look."""
    while not is_over():
        for server in servers:
            if lost := ", ".join(lost_programs(server.folder)):
                say(f"{lost} is gone, it is started again")
                try:
                    server.start()
                    say(f"{lost} is up {server.where()}")
                except SetupError as error:
                    say(str(error))
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    from include.local.demo import demo_servers

    try:
        watch(demo_servers().in_order())
    except SetupError as error:
        sys.exit(str(error))
