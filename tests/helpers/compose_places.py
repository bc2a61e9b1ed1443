"""From the containers' names, ports and paths to those of this machine; nothing else of docker-compose.yaml is changed.

- Each service's name becomes 127.0.0.1, and each of its ports a free port of this machine, the same wherever the file names it.
- Each volume becomes a folder. A path on no volume of the service becomes a folder that only this service has, as /tmp does.
- The project in the image becomes a copy with the content that the Dockerfile gives it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from include.local.machine import ROOT, SPARK_CONF, VENV
from include.local.process import free_port
from tests.helpers.compose_file import Service, copied_into_image

HOME = "/opt/event-pairing"
# Folders of a container that no other one sees, unless a volume is mounted there.
_PRIVATE = ("/var/lib/event-pairing", "/tmp")
_PORT_OPTIONS = ("--port", "-p")
_PORT_SETTING = re.compile(r"^(--conf=spark\.[\w.]+\.port=)(\d+)$")
_POSTGRES_PORT = 5432


class Places:
    """Below `folder`: `project`, `volumes/<volume>`, and `services/<service>` with what a container has for itself.

    `settings`: values of `.env`, whose addresses are those of this machine already.
    """

    def __init__(self, folder: Path, names: Collection[str], settings: Collection[str]) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.names = names
        self._ports: dict[tuple[str, int], int] = {}
        self._outside = {int(port) for value in settings for port in re.findall(r"127\.0\.0\.1:(\d+)", value)}
        # Longest first: airflow-scheduler is also the start of another name.
        some = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        self._address = re.compile(rf'(?<![\w-])({some}|127\.0\.0\.1)(:|", "port": )(\d+)\b')

    def port(self, service: str, number: int) -> int:
        """The port of this machine that stands for a service's port."""
        if (service, number) not in self._ports:
            self._ports[service, number] = free_port()
        return self._ports[service, number]

    def volume(self, name: str) -> Path:
        """The folder of a volume."""
        return self.folder / "volumes" / name

    def own(self, service: str) -> Path:
        """The folder with the files, logs and process ids of one service."""
        return self.folder / "services" / service

    def text(self, service: Service, text: str) -> str:
        """A value of the service's environment, or a part of its command, for this machine."""
        if text in self.names:
            return "127.0.0.1"
        text = self._address.sub(lambda found: self._here(service.name, *found.groups()), text)
        text = text.replace("@postgres/", f"@127.0.0.1:{self.port('postgres', _POSTGRES_PORT)}/")
        text = re.sub(r"^port (\d+)$", lambda found: f"port {self.port(service.name, int(found[1]))}", text, flags=re.M)
        return self.paths(service, text.replace("0.0.0.0", "127.0.0.1"))

    def words(self, service: Service, words: list[str]) -> list[str]:
        """A command of the service."""
        return [*self._words(service, words)]

    def paths(self, service: Service, text: str) -> str:
        """The text with the paths of this machine."""
        here = {f"{HOME}/.venv": VENV, HOME: self.project}
        here |= {path: self.own(service.name) / "files" / path.lstrip("/") for path in _PRIVATE}
        here |= {target: self.volume(name) for target, name in service.volumes.items()}
        some = "|".join(sorted(map(re.escape, here), key=len, reverse=True))
        # In one go, so that no path of this machine is taken for one of the container.
        return re.sub(rf"(?<![\w/.-])({some})(?![\w-])", lambda found: str(here[found[1]]), text)

    def make(self, services: Collection[Service]) -> None:
        """Makes the folders, and the project as the image has it."""
        for service in services:
            for path in (*_PRIVATE, *service.volumes):
                folder = Path(self.paths(service, path))
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
        for sources, target in copied_into_image():
            for source in sources:
                _copy(ROOT / source, self.project / target)
        # Of the set-up, which runs in the image.
        shutil.copy(SPARK_CONF / "log4j2.properties", self.project / ".local" / "spark-conf")
        settings = self.project / ".local" / "spark-conf" / "spark-defaults.conf"
        settings.write_text(settings.read_text().replace(f"{HOME}/.venv", str(VENV)))

    def _words(self, service: Service, words: list[str]) -> Iterator[str]:
        before = ""
        for word in words:
            if before in _PORT_OPTIONS and word.isdecimal():
                yield str(self.port(service.name, int(word)))
            elif setting := _PORT_SETTING.match(word):
                yield f"{setting[1]}{self.port(service.name, int(setting[2]))}"
            else:
                yield self.text(service, word)
            before = word

    def _here(self, service: str, name: str, between: str, port: str) -> str:
        # Ports of this machine that came by a variable: KAFKA_PORT, for one.
        here = {*self._ports.values(), *self._outside}
        if name == "127.0.0.1" and int(port) in here:
            return f"{name}{between}{port}"
        return f"127.0.0.1{between}{self.port(service if name == '127.0.0.1' else name, int(port))}"


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
