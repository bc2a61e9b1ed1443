"""Prometheus' own program for rules, built by Go once in the user's cache (ten minutes)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from include.local.tools import CACHE
from tests.helpers.stores import REQUIRED

_MODULE, _VERSION = "github.com/prometheus/prometheus/cmd/promtool", "v0.316.0"


def promtool() -> Path:
    """The program. Skips the test where there is no Go, or fails it if stores are required, as in continuous integration."""
    folder = CACHE / f"promtool-{_VERSION}"
    program = folder / "promtool"
    if program.exists():
        return program
    if shutil.which("go") is None:
        (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)("promtool is built by Go, and there is no Go")
    # Go moves it there when it is whole.
    command = ["go", "install", f"{_MODULE}@{_VERSION}"]
    subprocess.run(command, env=os.environ | {"GOBIN": str(folder)}, check=True, timeout=3_000)
    return program
