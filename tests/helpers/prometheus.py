"""Prometheus, and its own program for rules, each built by Go once in the user's cache (ten minutes together)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from include.local.process import free_port
from include.local.tools import CACHE, cache_lock
from tests.helpers.job_processes import wait_for
from tests.helpers.stores import skip_or_fail

_MODULE, _VERSION = "github.com/prometheus/prometheus/cmd", "v0.316.0"


def promtool() -> Path:
    """The program for rules. Skips the test where there is no Go, or fails it if stores are required, as in continuous integration."""
    return _built("promtool")


def _built(name: str) -> Path:
    folder = CACHE / f"{name}-{_VERSION}"
    program = folder / name
    if program.exists():
        return program
    if shutil.which("go") is None:
        skip_or_fail(f"{name} is built by Go, and there is no Go")
    command = ["go", "install", f"{_MODULE}/{name}@{_VERSION}"]
    with cache_lock(name):
        # Go moves it there when it is whole; who has waited for another process finds it at once.
        subprocess.run(command, env=os.environ | {"GOBIN": str(folder)}, check=True, timeout=3_000)
    return program


class Prometheus(NamedTuple):
    """A server that runs. `otlp`: where it takes OpenTelemetry's metrics."""

    url: str

    @property
    def otlp(self) -> str:
        return f"{self.url}/api/v1/otlp"

    def ask(self, path: str, **parameters: Any) -> Any:
        """The `data` of an answer of its API."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str, **parameters: Any) -> dict[str, float]:
        """The newest value of each series, by its labels as JSON."""
        result = self.ask("query", query=expression, **parameters)["result"]
        return {json.dumps(each["metric"], sort_keys=True): float(each["value"][1]) for each in result}


@contextmanager
def prometheus(folder: Path, config: dict[str, Any], port: int | None = None) -> Iterator[Prometheus]:
    """The server with these settings, its data in the folder, while the block runs."""
    program, address = _built("prometheus"), f"127.0.0.1:{port or free_port()}"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-otlp-receiver",
        "--web.enable-lifecycle",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([str(program), *options], stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: _is_ready(address), "Prometheus", 60, every_s=0.2)
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
