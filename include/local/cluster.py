"""A Spark cluster on this machine, on loopback only: a master and two workers with one core each, which share nothing with the jobs.

Each worker has a folder, processes and environment of its own, and a Python with the packages of the lock but without the project: what its
executors import of the project came with the job.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

from include.local.machine import LOCAL, VENV, SetupError, java, say
from include.local.process import LocalServer, free_port, running_program, start_program

PYTHON = LOCAL / "cluster-python"
WORKERS = 2
DEFAULT_PORT = 7077
_MEMORY = "2g"


def worker_python() -> Path:
    """Makes a virtual environment for the workers, once: the lock's packages, linked from uv's cache where that is on the same disk."""
    stamp, lock = PYTHON / "lock", (LOCAL.parent / "requirements.lock").read_text(encoding="utf-8")
    if not (stamp.is_file() and stamp.read_text() == lock):
        say("Python packages of the cluster's workers ...")
        shutil.rmtree(PYTHON, ignore_errors=True)
        uv = VENV / "bin" / "uv"
        options: list[str | Path] = [
            "--python",
            PYTHON / "bin" / "python",
            "--system-certs",
            "--require-hashes",
            "--compile-bytecode",
        ]
        constraints = ["--build-constraints", "requirements.lock"]
        commands: list[list[str | Path]] = [
            [uv, "venv", "--python", VENV / "bin" / "python", PYTHON],
            [uv, "pip", "sync", *options, *constraints, "requirements.lock"],
        ]
        for command in commands:
            done = subprocess.run(command, cwd=LOCAL.parent, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                raise SetupError(f"the workers' packages could not be installed: {done.stderr.strip()[-300:]}")
        stamp.write_text(lock)
    return PYTHON / "bin" / "python"


class LocalCluster(LocalServer):
    """A standalone master on 127.0.0.1:`port` with its workers; `folder` has a folder for each of them."""

    @property
    def master(self) -> str:
        """The value of Spark's `--master`."""
        return f"spark://127.0.0.1:{self.port}"

    def where(self) -> str:
        """Its address and size."""
        return f"on {self.master} ({WORKERS} workers with 1 core each)"

    def is_running(self) -> bool:
        """Whether the master is alive."""
        return running_program(self.folder, "master") is not None

    def start(self) -> bool:
        """Starts what does not run and waits until all workers are registered. Raises SetupError."""
        if all(running_program(self.folder, name) for name in self._names()):
            return False
        self.stop()
        python = worker_python()
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port)]
        self._run("master", python, [*master, "--webui-port", str(free_port())])
        self.wait_until(
            self._listens, "the Spark master", "master", ("ERROR", "Exception"), f"does not listen on {self.master}"
        )
        for number in range(1, WORKERS + 1):
            self.start_worker(number)
        log = self.folder / "master.log"

        def registered() -> bool:
            return log.read_text(errors="replace").count("Registering worker") >= WORKERS

        self.wait_until(registered, "the Spark cluster", "master", ("ERROR", "Exception"), "has not all its workers")
        return True

    def start_worker(self, number: int) -> None:
        """Starts worker 1, 2, …; a worker that was killed is started anew."""
        place = self.folder / f"worker-{number}-files"
        place.mkdir(parents=True, exist_ok=True)
        options = [
            "--host",
            "127.0.0.1",
            "--cores",
            "1",
            "--memory",
            _MEMORY,
            "--work-dir",
            str(place),
            "--webui-port",
            str(free_port()),
        ]
        self._run(f"worker-{number}", worker_python(), ["org.apache.spark.deploy.worker.Worker", *options, self.master])

    def _names(self) -> list[str]:
        return ["master", *(f"worker-{number}" for number in range(1, WORKERS + 1))]

    def _run(self, name: str, python: Path, program: list[str]) -> None:
        home = next(python.parent.parent.glob("lib/python*/site-packages/pyspark"))
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "log4j2.properties").write_text(_LOGGING)
        # Nothing of the caller's environment, so nothing that only this machine has.
        environment = {
            "PATH": f"{python.parent}{os.pathsep}{os.defpath}",
            "HOME": str(self.folder),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-scratch"),
            **{variable: os.environ[variable] for variable in ("JAVA_HOME", "LANG") if variable in os.environ},
        }
        start_program(self.folder, name, [java(), "-Xmx512m", "-cp", f"{conf}:{home}/jars/*", *program], environment)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
