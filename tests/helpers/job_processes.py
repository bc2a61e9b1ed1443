"""Jobs as processes of their own that start at once: forked from one that has imported what they need.

A job runs its script as `__main__` with its own arguments and environment, as `spark-submit` would have it, and works on a Spark
server. Spared are the launcher's JVM and the imports, three quarters of the time of a job on a small batch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from include.config.pipeline import Pipeline
from include.config.project import REMOTE_VARIABLE
from include.local.machine import ROOT, project_environment
from spark_jobs.spark.workers import ALONE_VARIABLE, FEW_VARIABLE
from tests.helpers.stores import table_of

JOBS = ("land_events", "pair_events", "publish_compounds", "report_quality")
_IMPORTED = [
    *(f"spark_jobs.{job}" for job in (*JOBS, "replay_interval", "maintain_tables")),
    "pyspark.sql.connect.session",
    "great_expectations",
    "great_expectations.render.renderer",
    "great_expectations.render.view",
]
_WITHIN_S = 120.0


class Running(NamedTuple):
    """A job that was started. `log`: its standard output and error."""

    process: multiprocessing.process.BaseProcess
    log: Path

    def wait(self, within_s: float = _WITHIN_S) -> int:
        """Its exit status, minus the signal if one ended it."""
        self.process.join(within_s)
        assert self.process.exitcode is not None, f"still running after {within_s:.0f} s: {self.told()}"
        return self.process.exitcode

    def is_over(self) -> bool:
        return self.process.exitcode is not None

    def kill(self) -> int:
        """kill -9 of the job; its exit status. What it left running on the Spark server goes on."""
        # It may have come to its end just now.
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        return self.wait()

    def told(self) -> str:
        return self.log.read_text(errors="replace")


class Faults(NamedTuple):
    """The folder in which fault points are armed; see spark_jobs/faults/fault_points.py."""

    folder: Path

    def arm(self, point: str) -> None:
        """Whoever comes to the point from now on stands still there."""
        for mark in ("reached", "released"):
            self._mark(point, mark).unlink(missing_ok=True)
        self._mark(point, "armed").touch()

    def is_reached(self, point: str) -> bool:
        return self._mark(point, "reached").exists()

    def who(self, point: str) -> int:
        """The process that stands at the point."""
        return int(self._mark(point, "reached").read_text())

    def disarm(self, point: str) -> None:
        """Nobody else stops there; who stands there stays."""
        self._mark(point, "armed").unlink()

    def release(self, point: str) -> None:
        """Whoever stands there goes on."""
        self._mark(point, "released").touch()

    def _mark(self, point: str, mark: str) -> Path:
        return self.folder / f"{point}.{mark}"


class Jobs:
    """The jobs of one pipeline, on one Spark server. `faults`: None for jobs that nothing is to stop. `by_spark`: its workers do all work, also
    on few rows; `by_workers`: the jobs' own workers do.
    """

    def __init__(
        self,
        file: Path,
        pipeline: Pipeline,
        bootstrap: str,
        server: str,
        warehouse: str | Path,
        faults: Faults | None = None,
        by_spark: bool = False,
        by_workers: bool = False,
    ) -> None:
        self.file, self.pipeline, self.warehouse, self.faults = file, pipeline, warehouse, faults
        self.environment = project_environment() | {
            "PAIRING_KAFKA": json.dumps({"bootstrap.servers": bootstrap}),
            "PAIRING_WAREHOUSE": str(warehouse),
            REMOTE_VARIABLE: server,
        }
        self.environment.pop("PAIRING_FAULT_DIR", None)
        if by_spark:
            self.environment[FEW_VARIABLE] = "0"
        if by_workers:
            self.environment[ALONE_VARIABLE] = "0"
        if faults:
            self.environment["PAIRING_FAULT_DIR"] = str(faults.folder)
        self.started = 0
        # Seconds after which jobs give a broker up, instead of ANSWER_WITHIN_S.
        self.patience_s: float | None = None

    def start(self, job: str, *arguments: str) -> Running:
        """Starts the job, and returns. `arguments`: besides the pipeline's file."""
        self.started += 1
        log = self.file.parent / f"{self.pipeline.name}-{self.started:03}-{job}.log"
        log.touch()
        target = (job, [str(self.file), *arguments], self.environment, str(log), self.patience_s)
        process = _forkserver().Process(target=_run, args=target, daemon=True)
        process.start()
        return Running(process, log)

    def run(self, job: str, *arguments: str) -> None:
        """Runs the job to its end, which has to be a good one."""
        running = self.start(job, *arguments)
        assert running.wait() == 0, running.told()

    def start_and_stand(self, job: str, point: str, *arguments: str) -> Running:
        """Starts the job and returns when it stands still at the point."""
        assert self.faults is not None
        self.faults.arm(point)
        running = self.start(job, *arguments)
        wait_for(lambda: self.faults.is_reached(point) or running.is_over(), f"{job} to come to {point}")
        self.faults.disarm(point)
        assert self.faults.is_reached(point), f"{job} did not come to {point}: {running.told()}"
        return running

    def version(self, table: str) -> int:
        """The newest one of the table."""
        return table_of(self.warehouse, self.pipeline, table).version()

    def kill_at(self, job: str, point: str) -> None:
        """Starts the job and kills it at the point."""
        assert self.start_and_stand(job, point).kill() == -signal.SIGKILL


def wait_for(condition: Callable[[], object], what: str, within_s: float = _WITHIN_S, every_s: float = 0.02) -> None:
    """Returns when the condition holds; fails after `within_s`. `every_s`: longer where asking is work for a server."""
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up, f"waited {within_s:.0f} s for {what}"
        time.sleep(every_s)


def _forkserver() -> multiprocessing.context.BaseContext:
    context = multiprocessing.get_context("forkserver")
    # Does nothing once the server runs. It finds the modules by this process's path.
    context.set_forkserver_preload(_IMPORTED)
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    return context


def _run(job: str, arguments: list[str], environment: dict[str, str], log: str, patience_s: float | None = None) -> None:
    """In the job's process: what the interpreter does with a script."""
    os.setsid()
    # Otherwise a job could have no workers of its own.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(environment)
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
    for name, module in [*sys.modules.items()] if patience_s else ():
        if name.startswith("spark_jobs.kafka.") and hasattr(module, "ANSWER_WITHIN_S"):
            module.ANSWER_WITHIN_S = patience_s
    script = ROOT / "spark_jobs" / f"{job}.py"
    os.chdir(ROOT)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), "--pipeline", *arguments]
    runpy.run_path(str(script), run_name="__main__")
