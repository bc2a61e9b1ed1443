"""The services of docker-compose.yaml as processes of this machine, for there is no Docker where tests run.

Each service has the command and the environment of the file, and nothing of the environment of the tests. It starts when what it depends on is
healthy by the file's own check, or has ended well. What differs from containers is in compose_places.py and compose_images.py; besides, all
processes see one network, one disk and one list of processes, and no image is built.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

from include.image.write_env import SECRETS
from include.local.airflow_client import AirflowClient
from include.local.process import last_lines, log_path, running_program, start_program, stop_programs
from tests.helpers.compose_file import COMPLETED, Service, services
from tests.helpers.compose_images import Environment, command, environment, program
from tests.helpers.compose_places import HOME, Places

_READY_WITHIN_S = 900.0
_CHECK_WITHIN_S = 30.0
# Each starts a program, which the services would rather have the processor for.
_BETWEEN_CHECKS_S = 1.0
_PROGRAM = "main"


class Composed:
    """As a context manager all services of the profiles run inside the block; `project` may be changed before.

    `variables`: what `.env` would have besides the secrets. `more`: environment of our own services besides the file's. `without`: services that
    are left out, also where others would wait for them.
    """

    def __init__(
        self,
        profiles: Collection[str] = (),
        variables: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        # Another user runs PostgreSQL, so everybody may pass; what is below is private.
        self.folder = Path(tempfile.mkdtemp(prefix="pairing-compose-"))
        self.folder.chmod(0o755)
        self.more = dict(more or {})
        known = {name: make() for name, make in SECRETS.items()} | dict(variables or {})
        self.places = Places(self.folder, services(known, ["celery"]).keys(), known.values())
        published = {
            "KAFKA_PORT": ("kafka", 9092),
            "AIRFLOW_PORT": ("airflow-api-server", 8080),
            "SPARK_UI_PORT": ("spark", 4040),
        }
        known |= {name: str(self.places.port(*place)) for name, place in published.items()}
        self.services = {name: service for name, service in services(known, profiles).items() if name not in without}
        self.places.make(self.services.values())
        self._met: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # PostgreSQL last, and in good order: it has memory that outlives a kill.
        for name in sorted(self.services, key=lambda name: name == "postgres"):
            stop_programs(self.places.own(name), patience_s=10 if name == "postgres" else 0)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """Airflow's address."""
        return f"http://127.0.0.1:{self.places.port('airflow-api-server', 8080)}"

    @property
    def bootstrap(self) -> str:
        """Kafka's address for programs outside the containers."""
        return f"127.0.0.1:{self.places.port('kafka', 9092)}"

    @property
    def warehouse(self) -> str:
        return str(self.places.volume("warehouse"))

    def client(self) -> AirflowClient:
        """A client of Airflow's REST API, with the password that the documents say how to find."""
        shown = self.run("airflow-api-server", ["cat", "/var/lib/event-pairing/airflow/passwords.json"])
        return AirflowClient(self.url, "admin", shown.split('"')[3])

    def environment(self, name: str) -> Environment:
        """That of a service's processes."""
        service = self.services[name]
        return environment(service, self.places) | (self.more if service.is_ours else {})

    def run(self, name: str, words: list[str], within_s: float = 120) -> str:
        """`docker compose exec` of a command in a service; its standard output. It has to end well."""
        done = self._run(self.services[name], words, within_s)
        assert done.returncode == 0, f"{name}: {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str) -> None:
        """Starts a service that does not run; one that does one thing and ends has ended well when this returns."""
        service = self.services[name]
        if any(other.waits.get(name) == COMPLETED for other in self.services.values()):
            self.run(name, service.command, _READY_WITHIN_S)
            self._met.add((name, COMPLETED))
            return
        settings = self.environment(name)
        words = command(service, self.places, settings)
        start_program(self.places.own(name), _PROGRAM, words, settings, self._place(service))

    def kill(self, name: str) -> None:
        """kill -9 of all processes of a service, as when its container is lost."""
        assert stop_programs(self.places.own(name), patience_s=0)

    def is_healthy(self, name: str) -> bool:
        """What the service's own check says now."""
        service = self.services[name]
        assert running_program(self.places.own(name), _PROGRAM), (
            f"{name} ended: {' '.join(last_lines(self.places.own(name), _PROGRAM))}"
        )
        try:
            return self._run(service, service.healthcheck, _CHECK_WITHIN_S).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def wait_until_healthy(self, *names: str) -> None:
        """Returns when all these are; fails after a quarter of an hour."""
        give_up = time.monotonic() + _READY_WITHIN_S
        while ill := [name for name in names if not self.is_healthy(name)]:
            assert time.monotonic() < give_up, f"not healthy: {', '.join(ill)}; logs are in {self.folder}"
            time.sleep(_BETWEEN_CHECKS_S)

    def log(self, name: str) -> str:
        """What a service has printed."""
        return log_path(self.places.own(name), _PROGRAM).read_text(errors="replace")

    def _start_all(self) -> None:
        waiting = dict(self.services)
        give_up = time.monotonic() + _READY_WITHIN_S
        while waiting:
            ready = [name for name, service in waiting.items() if all(self._is_met(*wait) for wait in service.waits.items())]
            for name in ready:
                self.start(name)
                del waiting[name]
            assert time.monotonic() < give_up, f"these wait still: {', '.join(waiting)}"
            time.sleep(0 if ready else _BETWEEN_CHECKS_S)
        self.wait_until_healthy(*(name for name, service in self.services.items() if service.healthcheck))

    def _is_met(self, name: str, condition: str) -> bool:
        wait = (name, condition)
        if name not in self.services:
            return True
        started = running_program(self.places.own(name), _PROGRAM) is not None
        if wait not in self._met and condition != COMPLETED and started and self.is_healthy(name):
            self._met.add(wait)
        return wait in self._met

    def _run(self, service: Service, words: list[str], within_s: float) -> subprocess.CompletedProcess[str]:
        first, *others = self.places.words(service, words)
        return subprocess.run(
            [*program(first), *others],
            cwd=self._place(service),
            env=self.environment(service.name),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )

    def _place(self, service: Service) -> Path:
        return Path(self.places.paths(service, HOME)) if service.is_ours else self.places.own(service.name)
