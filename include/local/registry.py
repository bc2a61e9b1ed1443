"""One schema registry on this machine, on loopback only: Apicurio, by the API that Confluent's registry has.

    EXAMPLE=orders python -m include.local.registry start|stop|status

Ivy fetches it once into the user's cache (140 MB), as the other servers that only some need. Its schemas are in memory. So each start registers them
again, in the same order, which gives them the same ids.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from include.local.machine import ROOT, VENV, SetupError, demo_example, demo_folder, java, project_environment
from include.local.process import LocalServer, check_port, command_line, start_program
from include.local.setup import is_done, mark_done
from include.local.tools import CACHE, cache_lock
from include.sample.examples import EXAMPLES, Schema

DEFAULT_PORT = 8081
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


def registry_program() -> Path:
    """The jar that starts the registry; fetches and unpacks it if it is not in the cache (20 s, once). Raises SetupError."""
    folder = CACHE / f"apicurio-{_VERSION}"
    with cache_lock("apicurio"):
        if not is_done(folder, _IVY):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _fetch(folder)
            mark_done(folder, _IVY)
    return folder / f"{_ARCHIVE}-{_VERSION}-runner.jar"


def _fetch(folder: Path) -> None:
    (folder / "ivy.xml").write_text(_IVY)
    ivy = next(VENV.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar"))
    files: list[str | Path] = ["-settings", ROOT / "include" / "local" / "ivysettings.xml", "-ivy", folder / "ivy.xml"]
    places: list[str | Path] = ["-cache", folder / "ivy", "-retrieve", f"{folder}/[artifact].[ext]"]
    done = subprocess.run([java(), "-jar", ivy, *files, *places], capture_output=True, text=True, check=False, timeout=600)
    archive = folder / f"{_ARCHIVE}.tar.gz"
    if done.returncode or not archive.exists():
        cause = " ".join(done.stdout[-200:].split())
        raise SetupError(f"the schema registry cannot be fetched ({cause}): check the network")
    shutil.unpack_archive(archive, folder)
    archive.unlink()
    shutil.rmtree(folder / "ivy")


class LocalRegistry(LocalServer):
    """A registry on 127.0.0.1:`port` that has `schemas`, all of them Avro, from each start on. `ids`: theirs, once it was started."""

    name = "registry"
    # Before the command.
    prefix: Sequence[str] = ()

    def __init__(self, folder: Path, port: int, schemas: Sequence[Schema] = ()) -> None:
        super().__init__(folder, port)
        self.schemas = schemas
        self.ids: list[int] = []

    @property
    def url(self) -> str:
        """The setting `url` of clients."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def connection(self) -> dict[str, object]:
        """The connection schema_registry_default of an Airflow that uses this registry."""
        return {"conn_type": "http", "host": self.url}

    def where(self) -> str:
        return f"on {self.url}"

    def check(self) -> None:
        """Raises SetupError if `start` would fail: another program has the port."""
        if not self.is_running():
            check_port(self.port, "REGISTRY_PORT")

    def start(self) -> bool:
        """Starts it, waits until it answers, and registers the schemas; False if it ran already. Raises SetupError."""
        runs = self.is_running()
        if not runs:
            self.check()
            program = registry_program()
            address = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"]
            command: list[str | Path] = [*self.prefix, java(), *_OPTIONS, *address, "-jar", program]
            start_program(self.folder, self.name, command, project_environment(), program.parent)
            signs = ("ERROR", "Error", "Exception")
            self.wait_until(self._answers, "the registry", self.name, signs, f"does not answer {self.where()}")
        self.ids = [self.register(each.subject, "AVRO", each.text) for each in self.schemas]
        return not runs

    def register(self, subject: str, kind: str, text: str, references: Mapping[str, tuple[str, int]] | None = None) -> int:
        """Registers a schema as the next version of a subject, unless it has it; returns its id. `references`: name in the schema -> subject and version."""
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
        try:
            with urllib.request.urlopen(f"{self.url}/schemas/types", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def local_registry(port: int) -> LocalRegistry | None:
    """The registry of the demo; None if nothing of it needs one. Raises SetupError."""
    schemas = EXAMPLES[demo_example()].schemas
    return LocalRegistry(demo_folder("registry"), port, schemas) if schemas else None


def _default(port: int) -> LocalRegistry:
    found = local_registry(port)
    if found is None:
        known = ", ".join(name for name, example in EXAMPLES.items() if example.schemas)
        raise SetupError(f"of what? set EXAMPLE to one that needs a schema registry: {known}")
    return found


if __name__ == "__main__":
    sys.exit(command_line("the schema registry", "REGISTRY_PORT", DEFAULT_PORT, _default))
