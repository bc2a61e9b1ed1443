"""Runs of the DAG's order in which most jobs are killed somewhere."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.helpers.job_processes import JOBS, Jobs

# Of the jobs that are started; the others show that runs come through, too.
_DOOMED = 0.7
# Of the killed jobs: Airflow tries the task again, or the run fails and the next one begins.
_TRIED_AGAIN = 0.5
_LATEST = 1.2
# As Airflow does: a broker or a machine that is slow to answer is no reason to end it all.
_TRIES = 3
_REPORT_EVERY = 10


class JobFailed(Exception):
    """A job failed every time that it was tried, without having been killed; the text is what it said."""


class Attack:
    """Starts the jobs of one pipeline and kills them at random moments; counts what happened."""

    def __init__(self, jobs: Jobs, random: Random, say: Callable[[str], None]) -> None:
        self.jobs, self.random, self.say = jobs, random, say
        self.kills: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.failures = 0
        # Seconds that a job takes: of its last run that was let be.
        self.usual = dict.fromkeys(JOBS, 3.0)

    def run(self, kills: float, seconds: float) -> None:
        """Goes on until so many jobs were killed or the time is over. Raises JobFailed."""
        give_up = time.monotonic() + seconds
        while self.kills.total() < kills and time.monotonic() < give_up:
            self._one_run(kills, give_up)

    def _one_run(self, kills: float, give_up: float) -> None:
        for job in JOBS:
            while not self._comes_through(job):
                if self.random.random() > _TRIED_AGAIN or self.kills.total() >= kills or time.monotonic() > give_up:
                    return

    def _comes_through(self, job: str) -> bool:
        """Runs one job, False if it was killed."""
        begin = time.monotonic()
        running = self.jobs.start(job)
        if self.random.random() < _DOOMED:
            running.process.join(self.random.uniform(0, _LATEST * self.usual[job]))
            if not running.is_over() and running.kill() == -signal.SIGKILL:
                self.kills[job] += 1
                if self.kills.total() % _REPORT_EVERY == 0:
                    self.say(f"{self}")
                return False
        if running.wait():
            self._note_failure(job, running.told())
            return False
        self.usual[job] = time.monotonic() - begin
        self.ended[job] += 1
        self.failures = 0
        return True

    def _note_failure(self, job: str, told: str) -> None:
        self.failed[job] += 1
        self.failures += 1
        self.say(f"{job} failed by itself: {told.strip().splitlines()[-1:]}")
        if self.failures == _TRIES:
            raise JobFailed(f"{job} failed {_TRIES} times without having been killed: {told}")

    def __str__(self) -> str:
        starts = self.kills + self.ended + self.failed
        done = ", ".join(f"{job} {self.kills[job]} of {starts[job]} starts" for job in JOBS)
        return f"{self.kills.total()} kills ({done}); {self.failed.total()} failed by themselves"
