"""One Airflow on this machine, on loopback only: `python -m include.local.airflow start|stop|status`. Its folder gets a file with the environment of
its commands: `source .local/airflow/environment.sh`.

It starts the parts of `airflow standalone` one by one: standalone would open two log servers to the whole network and leave its children behind
when it is killed. Tests start others beside it, in folders of their own.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from include.local import broker as local_broker
from include.local import registry as local_registry
from include.local import spark as local_spark
from include.local import store as local_store
from include.local.airflow_client import AirflowClient, AirflowError
from include.local.airflow_database import end_lost_schedulers, migrate_database, write_keys
from include.local.machine import (
    ROOT,
    VENV,
    SetupError,
    demo_example,
    demo_folder,
    project_environment,
    project_variables,
)
from include.local.process import (
    READY_WITHIN_S,
    LocalServer,
    check_port,
    command_line,
    end_strays,
    last_lines,
    log_path,
    port_setting,
    running_program,
    start_program,
    stop_programs,
)
from include.local.registry import LocalRegistry
from include.local.store import LocalStore
from include.sample.examples import EXAMPLES

FOLDER = demo_folder("airflow")
DEFAULT_PORT = 8080
ENVIRONMENT = "environment.sh"
API_SERVER, SCHEDULER = "api-server", "scheduler"
# Airflow reads the logs of tasks from the disk, so it needs no log servers, which would listen on every interface.
PARTS: dict[str, tuple[str, ...]] = {
    API_SERVER: (),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
    SCHEDULER: ("--skip-serve-logs",),
}


class LocalAirflow(LocalServer):
    """An Airflow with its files in `folder`, on 127.0.0.1:`port`, whose connection kafka_default leads to `kafka` (host:port).

    `warehouse`: folder or URI; None: that of the environment. `spark`: the Spark server of the jobs, `sc://host:port`; None: each job starts
    its own Spark. `database`: SQLAlchemy URL of the metadata; None: a file in the folder. `store`: the connection warehouse_default.
    `registry`: the connection schema_registry_default. `pipelines`: the folder of the pipeline files; None: that of the project.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        kafka: str,
        warehouse: str | None = None,
        dags: Path = ROOT / "dags",
        spark: str | None = None,
        database: str | None = None,
        store: Mapping[str, object] | None = None,
        registry: Mapping[str, object] | None = None,
        pipelines: Path | None = None,
    ) -> None:
        super().__init__(folder, port)
        self.kafka = kafka
        self.warehouse = warehouse or project_environment()["PAIRING_WAREHOUSE"]
        self.dags = dags
        self.spark = spark
        self.database = database
        self.store = store
        self.registry = registry
        self.pipelines = pipelines

    @property
    def url(self) -> str:
        """The address of UI and REST API."""
        return f"http://127.0.0.1:{self.port}"

    def where(self) -> str:
        """Address, user and password."""
        return f"on {self.url} (user admin, password {self.password()})"

    def settings(self) -> dict[str, str]:
        """The variables of this Airflow's programs, besides the project's environment."""
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.kafka}}
        spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        if self.spark:
            spark = {"conn_type": "spark_connect", "host": self.spark}
        return {
            "PAIRING_WAREHOUSE": self.warehouse,
            **({"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database} if self.database else {}),
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
            **({"AIRFLOW_CONN_WAREHOUSE_DEFAULT": json.dumps(self.store)} if self.store else {}),
            **({"AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT": json.dumps(self.registry)} if self.registry else {}),
            **({"PAIRING_PIPELINES": str(self.pipelines)} if self.pipelines else {}),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            # The default asks the name service, which may take seconds on a machine without network.
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._password_file),
            # Parts of the names of Kafka's secret settings. Airflow knows those with password, secret or token in them.
            "AIRFLOW__CORE__SENSITIVE_VAR_CONN_NAMES": "pem,jaas,oauthbearer.config,credential,assertion",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self.url,
            # By default the scheduler may sleep for a second between two tasks of a run. Shorter sleeps cost processor time while nothing runs.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.6",
            "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
        }

    @property
    def _password_file(self) -> Path:
        return self.folder / "passwords.json"

    def check(self) -> None:
        """Raises SetupError if `start` would fail: the port is taken, or a part runs with other settings."""
        if running_program(self.folder, API_SERVER) is None:
            check_port(self.port, "AIRFLOW_PORT")
        for part in PARTS:
            process = running_program(self.folder, part)
            environment = process.environ() if process else self.settings()
            for name, value in self.settings().items():
                if environment.get(name) != value:
                    raise SetupError(f"Airflow runs already, with another {name}: make stop, then start it again")

    def start(self) -> bool:
        """Starts the parts that do not run, the scheduler last, and waits until all are healthy; False if all ran already. Raises SetupError."""
        launched = datetime.now(UTC)
        prepared, lacks_scheduler = self.prepare(), running_program(self.folder, SCHEDULER) is None
        if lacks_scheduler:
            end_strays(self.folder, PARTS)
            end_lost_schedulers(self.database or f"sqlite:///{self.folder / 'airflow.db'}")
            self._start_part(SCHEDULER)
        self._wait_until(
            lambda: AirflowClient(self.url, "", "").is_healthy(launched if prepared or lacks_scheduler else None), PARTS
        )
        return prepared or lacks_scheduler

    def prepare(self) -> bool:
        """Starts what does not run, but for the scheduler, and waits until the API server answers; False if it all ran already. Raises SetupError.

        A task that is scheduled before the API server and what it needs itself answer fails, and is tried again half a minute later.
        """
        self.check()
        self._write_environment()
        others = [part for part in PARTS if part != SCHEDULER]
        missing = [part for part in others if running_program(self.folder, part) is None]
        if missing:
            end_strays(self.folder, PARTS)
            if not any(running_program(self.folder, part) for part in PARTS):
                write_keys(self.folder)
            migrate_database(self.folder, self.environment())
            for part in missing:
                self._start_part(part)
        api = AirflowClient(self.url, "", "")
        self._wait_until(lambda: self._password_file.is_file() and api.takes_tasks(), others)
        return bool(missing)

    def stop(self) -> bool:
        """Ends all its processes in order and keeps its data; False if it did not run."""
        return stop_airflow(self.folder)

    def _start_part(self, part: str) -> None:
        log_path(self.folder, part).write_text("")
        start_program(self.folder, part, [VENV / "bin" / "airflow", part, *PARTS[part]], self.environment())

    def environment(self) -> dict[str, str]:
        """That of this Airflow's programs and commands."""
        return project_environment() | self.settings()

    def _write_environment(self) -> None:
        """For shells."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # As logs and passwords.
        self.folder.chmod(0o700)
        variables = (
            f"export {name}={shlex.quote(value)}\n" for name, value in (project_variables() | self.settings()).items()
        )
        (self.folder / ENVIRONMENT).write_text(f'export PATH={shlex.quote(str(VENV / "bin"))}:"$PATH"\n{"".join(variables)}')

    def is_running(self) -> bool:
        """Whether every part is alive."""
        return all(running_program(self.folder, part) for part in PARTS)

    def missing(self) -> str:
        """What does not work yet, in brackets; empty if everything does."""
        try:
            health = AirflowClient(self.url, "", "").health()
        except AirflowError:
            return " (Airflow's API server does not answer yet)"
        names = [part for part, status in health.items() if status != "healthy"]
        return f" (Airflow's {', '.join(names)})" if names else ""

    def password(self) -> str:
        """The password of the user admin, which Airflow creates at its first start."""
        return str(json.loads(self._password_file.read_text())["admin"])

    def client(self) -> AirflowClient:
        """A client of the REST API, logged in as admin."""
        return AirflowClient(self.url, "admin", self.password())

    def _wait_until(self, ready: Callable[[], bool], parts: Iterable[str]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            for part in parts:
                if running_program(self.folder, part) is None:
                    raise SetupError(f"Airflow's {part} ended while it started ({self._cause(part)})")
            if ready():
                return
            time.sleep(0.3)
        raise SetupError(
            f"Airflow is not healthy after {READY_WITHIN_S:.0f} s: see its logs in {self.folder}, then make stop"
        )

    def _cause(self, name: str) -> str:
        lines = last_lines(self.folder, name, 1, containing=("Error", "ERROR", "error"))
        return f"{' '.join(lines)[:300]}; see {log_path(self.folder, name)}"


def stop_airflow(folder: Path) -> bool:
    """Ends the Airflow of a folder; False if it did not run. Its tasks cannot tell the API server that they were ended, so the next start resumes them.

    A task that could would be tried again half a minute later.
    """
    return stop_programs(folder, first=API_SERVER)


def demo_airflow(
    port: int, kafka: str, spark: str, store: LocalStore | None, registry: LocalRegistry | None
) -> LocalAirflow:
    """The Airflow of the demo, with its pipelines only. `kafka` and `spark`: as of LocalAirflow."""
    return LocalAirflow(
        FOLDER,
        port,
        kafka,
        warehouse=store.warehouse if store else None,
        spark=spark,
        store=store.connection if store else None,
        registry=registry.connection if registry else None,
        pipelines=EXAMPLES[name].folder if (name := demo_example()) else None,
    )


def _default(port: int) -> LocalAirflow:
    kafka, spark, store, registry = (
        port_setting(os.environ.get(variable), server.DEFAULT_PORT, variable)
        for variable, server in (
            ("KAFKA_PORT", local_broker),
            ("SPARK_PORT", local_spark),
            ("STORE_PORT", local_store),
            ("REGISTRY_PORT", local_registry),
        )
    )
    return demo_airflow(
        port,
        f"127.0.0.1:{kafka}",
        f"sc://127.0.0.1:{spark}",
        local_store.local_store(store),
        local_registry.local_registry(registry),
    )


if __name__ == "__main__":
    sys.exit(command_line("Airflow", "AIRFLOW_PORT", DEFAULT_PORT, _default))
