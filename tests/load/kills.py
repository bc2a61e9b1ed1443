"""kill -9 at random moments: the process of a job, the Spark server, the broker. What was a server is started again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import psutil

from include.local.process import processes_of, stop_programs
from tests.load.servers import Servers

KINDS = ("a job", "the Spark server", "the broker")
# A job has this long to appear: the schedule starts one every minute.
_JOB_WITHIN_S = 120.0
# Of the broker, until somebody starts it again.
_LONGEST_OUTAGE_S = 5.0


def order(kills: int, random: Random) -> list[str]:
    """So many of KINDS, each as often as the others or once more, in random order.

    >>> sorted(order(4, Random(1)))
    ['a job', 'a job', 'the Spark server', 'the broker']
    """
    kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
    random.shuffle(kinds)
    return kinds


def kill(kind: str, running: Servers, random: Random) -> str:
    """Kills one of the kind; returns what was killed. A server answers again when this returns. Raises SetupError."""
    if kind == "a job":
        return _kill_job(running)
    server = running.spark if kind == "the Spark server" else running.broker
    stop_programs(server.folder, patience_s=0)
    if server is running.broker:
        time.sleep(random.uniform(0, _LONGEST_OUTAGE_S))
    server.start()
    return kind


def _kill_job(running: Servers) -> str:
    give_up = time.monotonic() + _JOB_WITHIN_S
    while time.monotonic() < give_up:
        for process, job in _jobs(running):
            with suppress(psutil.NoSuchProcess):
                process.kill()
                return job
        time.sleep(0.2)
    return "no job, for none was there"


def _jobs(running: Servers) -> Iterator[tuple[psutil.Process, str]]:
    """The Python processes of jobs, with the jobs' names; not the JVM that starts one."""
    for process in processes_of(running.airflow.folder):
        with suppress(psutil.Error):
            words = process.cmdline()
            scripts = [word for word in words if "/spark_jobs/" in word and word.endswith(".py")]
            if scripts and "python" in process.name():
                yield process, scripts[0].rpartition("/")[2].removesuffix(".py")
