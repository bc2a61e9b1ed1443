"""A Spark cluster on this machine, on loopback only: a master and two workers with one core each, which share nothing with the jobs.

Each worker has a folder, processes and environment of its own, and a Python with the packages of the lock but without the project: what its
executors import of the project came with the job.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from include.local.machine import LOCAL, VENV, console_logging, java, say
from include.local.process import LocalServer, check_port, free_port, log_path, running_program, start_program
from include.local.setup import LOCK, LOG, fingerprint, is_done, mark_done, run, sync_packages, wait_for_turn

PYTHON = LOCAL / "cluster-python"
DEFAULT_PORT = 7077
_MEMORY = "2g"


def worker_python() -> Path:
    """Makes a virtual environment for the workers, once: the lock's packages, linked from uv's cache where that is on the same disk."""
    python, packages = PYTHON / "bin" / "python", fingerprint(LOCK)
    with (LOCAL / "cluster-python.lock").open("w") as lock:
        wait_for_turn(lock)
        if not is_done(PYTHON, packages):
            say("Python packages of the cluster's workers ...")
            LOG.parent.mkdir(parents=True, exist_ok=True)
            uv, base = VENV / "bin" / "uv", VENV / "bin" / "python"
            run("virtual environment of the workers", [uv, "venv", "--clear", "--python", base, PYTHON], lock)
            # Workers import few of them.
            sync_packages(python, lock, compiled=False)
            mark_done(PYTHON, packages)
    return python


class LocalCluster(LocalServer):
    """A standalone master on 127.0.0.1:`port` with its workers; `folder` has a folder for each of them.

    `hosts`: loopback addresses, one a worker; Spark runs two attempts of one task on two hosts only. `variables`: of the workers' environment.
    """

    name = "master"

    def __init__(
        self, folder: Path, port: int, hosts: Sequence[str] = ("127.0.0.1",) * 2, variables: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, port)
        self.hosts, self.variables = hosts, dict(variables or {})

    @property
    def master(self) -> str:
        """The value of Spark's `--master`."""
        return f"spark://127.0.0.1:{self.port}"

    def where(self) -> str:
        """Its address and size."""
        return f"on {self.master} ({len(self.hosts)} workers with 1 core each)"

    def start(self) -> bool:
        """Starts what does not run and waits until all workers are registered. Raises SetupError."""
        if all(running_program(self.folder, name) for name in self._names()):
            return False
        self.stop()
        check_port(self.port, "CLUSTER_PORT")
        python, signs = worker_python(), ("ERROR", "Exception")
        self.folder.mkdir(parents=True, exist_ok=True)
        log = log_path(self.folder, self.name)
        # Workers of an earlier start do not count.
        log.write_text("")
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self.port)]
        self._run(self.name, python, [*master, "--webui-port", str(free_port())])
        self.wait_until(self.listens, "the Spark master", self.name, signs, f"does not listen on {self.master}")
        for name, host in zip(self._names()[1:], self.hosts, strict=True):
            self._start_worker(name, host, python)

        def registered() -> bool:
            return log.read_text(errors="replace").count("Registering worker") >= len(self.hosts)

        self.wait_until(registered, "the Spark cluster", self.name, signs, "has not all its workers")
        return True

    def _start_worker(self, name: str, host: str, python: Path) -> None:
        place = self.folder / f"{name}-files"
        place.mkdir(parents=True, exist_ok=True)
        options = f"--host {host} --cores 1 --memory {_MEMORY} --webui-port {free_port()} --work-dir".split()
        self._run(name, python, ["org.apache.spark.deploy.worker.Worker", *options, str(place), self.master])

    def _names(self) -> list[str]:
        return [self.name, *(f"worker-{number}" for number in range(1, len(self.hosts) + 1))]

    def _run(self, name: str, python: Path, program: list[str]) -> None:
        home = next(python.parent.parent.glob("lib/python*/site-packages/pyspark"))
        conf = self.folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "log4j2.properties").write_text(console_logging("info"))
        # Nothing of the caller's environment, so nothing that only this machine has.
        environment = {
            "PATH": f"{python.parent}{os.pathsep}{os.defpath}",
            "HOME": str(self.folder),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-scratch"),
            **self.variables,
            **{variable: os.environ[variable] for variable in ("JAVA_HOME", "LANG") if variable in os.environ},
        }
        # They do too little for a full compilation to pay.
        options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        start_program(self.folder, name, [java(), *options, "-cp", f"{conf}:{home}/jars/*", *program], environment)
