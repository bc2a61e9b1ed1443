"""Jobs on a Spark Connect server: each runs in a process forked from its task, as `python -m spark_jobs.<job>` would.

Such a job needs no JVM, and its modules are there already: the process from which tasks are forked has imported them once. A new version of the
project needs no restart: a job imports it.
"""

from __future__ import annotations

import importlib
import logging
import os
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn

from airflow.configuration import conf
from airflow.listeners import hookimpl
from setproctitle import setproctitle

from include.airflow.ready_modules import ReadyModules
from include.config.project import JOBS, PACKAGE, ROOT

# What jobs import while they run, so that importing a job does not import it. The quality report judges with the last one.
LIBRARIES = ("pyspark.sql.connect.session", "pyspark.sql.connect.functions", "great_expectations")
# Airflow kills a task five seconds after it has asked it to end.
_ENDS_WITHIN_S = 4.0
_ready = ReadyModules()
# In a forked process: streams of its task.
_left: list[IO[str]] = []


@hookimpl
def on_starting(component: Any) -> None:
    """Airflow calls this when one of its programs starts. With the LocalExecutor the scheduler forks the processes of tasks afterwards."""
    if sys.argv[1:2] == ["scheduler"] and "LocalExecutor" in conf.get("core", "executor"):
        import_for_jobs()


def import_for_jobs() -> None:
    """Imports what jobs need, so that the processes forked from this one have it. What is missing is missed by the job itself."""
    # It would report every run to its makers.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    # It would list a hundred of its functions in the log at each start.
    logging.getLogger("great_expectations._docs_decorators").setLevel(logging.WARNING)
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    _ready.fill()


class ForkedJob:
    """A job in a process of its own, which ends as soon as the lock of `alive` is free: see `end_with_the_task` of the jobs."""

    def __init__(self, job: str, arguments: Sequence[str], alive: IO[str]) -> None:
        self.alive = alive
        output, its_output = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_the_job(job, arguments, its_output)
        os.close(its_output)
        self._output = os.fdopen(output, errors="replace")

    def wait(self, show: Callable[[str], None]) -> int:
        """Shows each line of the job's output; returns its exit status, negative if a signal ended it."""
        try:
            with self._output:
                for line in self._output:
                    show(line.rstrip())
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except BaseException:
            # Of a time limit, for one. The job must not work on beside the next try.
            self.end()
            raise

    def end(self) -> None:
        """Has the job end its work on the server, and itself; kills it if that takes long."""
        self.alive.close()
        deadline = time.monotonic() + _ENDS_WITHIN_S
        with suppress(ChildProcessError, ProcessLookupError):
            while time.monotonic() < deadline:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    return
                time.sleep(0.02)
            os.kill(self.pid, signal.SIGKILL)


def _be_the_job(job: str, arguments: Sequence[str], output: int) -> NoReturn:
    """What the forked process does, and all that it does: nothing of Airflow's may run in it."""
    status = 1
    try:
        # A signal to the task's group must not end the job before it has ended its work on the server.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _leave_the_task(output)
        sys.argv = [job, *arguments]
        setproctitle(f"{JOBS}.{job} {' '.join(arguments)}")
        runpy.run_module(f"{JOBS}.{job}", run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def _leave_the_task(output: int) -> None:
    """Takes `output` as standard output and error, and closes everything else: the task's lock, its sockets to Airflow, its log."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # The end of the old ones would close what they stand for.
    _left[:] = [sys.stdout, sys.stderr]
    sys.stdout, sys.stderr = (os.fdopen(each, "w", buffering=1, closefd=False) for each in (1, 2))
    # Airflow's loggers and its hook for warnings write to the log that is closed now.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    _ready.put_in()
    if not PACKAGE and str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    print(f"{category.__name__}: {message}", file=sys.stderr)
