"""One Spark server (Spark Connect) on this machine, on loopback only: `python -m include.local.spark start|stop|status`.

The local Airflow's jobs use it instead of a JVM of their own, which would start cold each time. It keeps no data, so it may
be ended at any moment; Airflow tries a job that was running again.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from include.config.project import REMOTE_VARIABLE
from include.config.store import hide_cloud_variables
from include.local.machine import ROOT, VENV, demo_folder, project_environment
from include.local.process import (
    LocalServer,
    check_port,
    command_line,
    log_path,
    running_program,
    start_program,
)

FOLDER = demo_folder("spark-server")
DEFAULT_PORT = 15002
LOCAL_MASTER = "local[2]"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # The jobs of a pipeline share a session, and a session that the server has closed can never be used again.
    "spark.connect.session.manager.defaultSessionTimeout": "3650d",
    # Otherwise its clients look up the caller of each function of a column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
WARM_UP = ROOT / "spark_jobs" / "warm_up.py"
_CODE, _PORT = "PAIRING_CODE", "PAIRING_SPARK_PORT"


class LocalSpark(LocalServer):
    """A Spark Connect server, its log in `folder`, listening on 127.0.0.1:`port`; its executors are on `master`.

    `settings`: of Spark, besides SETTINGS.
    """

    name = "server"

    def __init__(
        self, folder: Path, port: int, master: str = LOCAL_MASTER, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, port)
        self.master, self.settings = master, SETTINGS | dict(settings or {})

    @property
    def url(self) -> str:
        """The address for its clients."""
        return f"sc://127.0.0.1:{self.port}"

    def where(self) -> str:
        """Its address."""
        return f"on {self.url}"

    def check(self) -> None:
        """Raises SetupError if `start` would fail: another program has the port."""
        if not self._runs_with({_PORT: str(self.port)}):
            check_port(self.port, "SPARK_PORT")

    def start(self) -> bool:
        """Starts the server and waits until it listens. Replaces one that runs other code or listens on another port. Raises SetupError."""
        identity = self._identity()
        if self._runs_with(identity):
            return False
        # The old one's Python workers keep the code that they have loaded.
        self.stop()
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        log_path(self.folder, self.name).write_text("")
        options = [f"--conf={name}={value}" for name, value in self.settings.items()]
        command = [
            str(VENV / "bin" / "spark-submit"),
            f"--master={self.master}",
            *options,
            f"--conf=spark.connect.grpc.binding.port={self.port}",
            "--class=org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ]
        environment = project_environment()
        if not self.master.startswith("local"):
            # Each worker's own, found on its PATH.
            environment["PYSPARK_PYTHON"] = "python3"
        hide_cloud_variables(environment)
        start_program(self.folder, self.name, command, environment | identity)
        self._wait_until_it_listens()
        return True

    def warm_up(self) -> None:
        """Runs once what the jobs do, on made-up rows. A failure does no harm: the first jobs are slower."""
        environment = project_environment() | {REMOTE_VARIABLE: self.url}
        with log_path(self.folder, "warm-up").open("w") as log:
            command = [str(VENV / "bin" / "python"), str(WARM_UP)]
            subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)

    def _identity(self) -> dict[str, str]:
        """Variables of the server's environment that show with which code it runs, with which executors, and on which port."""
        code = hashlib.sha256(self.master.encode())
        for path in sorted([*(ROOT / "spark_jobs").rglob("*.py"), *(ROOT / "include" / "config").rglob("*.py")]):
            code.update(path.read_bytes())
        return {_CODE: code.hexdigest(), _PORT: str(self.port)}

    def _runs_with(self, variables: dict[str, str]) -> bool:
        process = running_program(self.folder, self.name)
        return process is not None and variables.items() <= process.environ().items()

    def _wait_until_it_listens(self) -> None:
        signs = ("ERROR", "Error", "Exception")
        self.wait_until(self.listens, "the Spark server", self.name, signs, f"does not listen on {self.url}")


if __name__ == "__main__":
    sys.exit(command_line("Spark", "SPARK_PORT", DEFAULT_PORT, lambda port: LocalSpark(FOLDER, port)))
