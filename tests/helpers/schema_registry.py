"""A real schema registry on this machine, on loopback only: Apicurio, by the API that Confluent's registry has.

Ivy fetches it once into the user's cache (140 MB), as for the other servers. Its schemas are in memory: after a kill and a start it has none, and
gives the same ids to the same schemas if these are registered in the same order.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from include.local.machine import ROOT, VENV, SetupError, java, project_environment
from include.local.process import LocalServer, free_port, last_lines, running_program, start_program
from include.local.setup import is_done, mark_done
from include.local.store import CACHE
from tests.helpers.job_processes import wait_for
from tests.helpers.stores import REQUIRED

_VERSION = "2.5.11.Final"
_ARCHIVE = "apicurio-registry-app"
# The classifier, which Ivy's command line cannot name.
_IVY = f"""\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="event-pairing" module="schema-registry"/>
  <configurations><conf name="registry"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="{_ARCHIVE}" rev="{_VERSION}" conf="registry->*">
      <artifact name="{_ARCHIVE}" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
# Fast to start; and of an id that nobody has, it would log a stack trace.
_OPTIONS = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dquarkus.log.level=WARN"]
# It takes 5 s; on a machine that does much else, four times as long.
_READY_WITHIN_S = 120


def registry_program() -> Path:
    """The jar that starts the registry; fetches and unpacks it if it is not in the cache (20 s, once). Raises SetupError."""
    folder = CACHE / f"apicurio-{_VERSION}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "apicurio.lock").open("w") as lock:
        # Another checkout may fetch it at the same moment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_done(folder, _IVY):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _fetch(folder)
            mark_done(folder, _IVY)
    return folder / f"{_ARCHIVE}-{_VERSION}-runner.jar"


def _fetch(folder: Path) -> None:
    (folder / "ivy.xml").write_text(_IVY)
    ivy = next(VENV.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar"))
    files = ["-settings", ROOT / "include" / "local" / "ivysettings.xml", "-ivy", folder / "ivy.xml"]
    places = ["-cache", folder / "ivy", "-retrieve", f"{folder}/[artifact].[ext]"]
    done = subprocess.run([java(), "-jar", ivy, *files, *places], capture_output=True, text=True, check=False, timeout=600)
    archive = folder / f"{_ARCHIVE}.tar.gz"
    if done.returncode or not archive.exists():
        cause = " ".join(done.stdout[-200:].split())
        raise SetupError(f"the schema registry cannot be fetched ({cause}): check the network")
    shutil.unpack_archive(archive, folder)
    archive.unlink()
    shutil.rmtree(folder / "ivy")


@contextmanager
def running_registry(folder: Path) -> Iterator[LocalRegistry]:
    """A registry while the block runs. Skips the test where it is not to be had, or fails it if REQUIRED is set."""
    try:
        registry_program()
    except SetupError as problem:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(str(problem))
    with LocalRegistry(folder, free_port()) as running:
        yield running


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory) -> Iterator[LocalRegistry]:
    """One for a module of tests."""
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


class LocalRegistry(LocalServer):
    """A registry on 127.0.0.1:`port`."""

    name = "registry"

    @property
    def url(self) -> str:
        """The setting `url` of clients."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def where(self) -> str:
        return f"on {self.url}"

    def is_running(self) -> bool:
        return running_program(self.folder, self.name) is not None

    def start(self) -> bool:
        """Starts it, without any schema, and waits until it answers; False if it ran already. Raises SetupError."""
        if self.is_running():
            return False
        program = registry_program()
        address = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
        # It ends with the thread that starts it, so also with a test that is killed.
        dies_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*dies_with_us, java(), *_OPTIONS, *address, "-jar", program]
        start_program(self.folder, self.name, command, project_environment(), program.parent)
        wait_for(self._answers, f"the registry to answer {self.where()}", _READY_WITHIN_S)
        return True

    def kill(self) -> None:
        """Ends it without warning, like a power cut; its schemas are lost."""
        process = running_program(self.folder, self.name)
        if process is not None:
            process.kill()
            process.wait(5)

    def restart(self) -> None:
        """Kills it and starts it, without any schema; the next one that is registered gets the first id again."""
        self.kill()
        self.start()

    def register(self, subject: str, kind: str, text: str, references: Mapping[str, tuple[str, int]] | None = None) -> int:
        """Registers a schema as the next version of a subject; returns its id. `references`: name in the schema -> subject and version."""
        named = [{"name": name, "subject": of, "version": version} for name, (of, version) in (references or {}).items()]
        body = {"schema": text, "schemaType": kind, "references": named}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.loads(answer.read())["id"])

    def _answers(self) -> bool:
        if not self.is_running():
            raise SetupError(
                f"the registry ended while it started ({' / '.join(last_lines(self.folder, self.name, 2))[:300]})"
            )
        try:
            with urllib.request.urlopen(f"{self.url}/schemas/types", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
