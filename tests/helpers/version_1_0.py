"""The jobs of version 1.0 by its own code, kept in tests/fixtures/code-1.0.tar.xz: by what later versions wrote it is seen what 1.0 makes of that.

The archive has `spark_jobs` and `include/config` of the last commit before the changelog had anything unreleased. It is never written again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from include.config.project import REMOTE_VARIABLE, ROOT
from include.local.machine import project_environment
from include.local.process import free_port
from include.local.spark import LocalSpark

ARCHIVE = ROOT / "tests" / "fixtures" / "code-1.0.tar.xz"


class Spark10(LocalSpark):
    """A Spark server whose workers import the code of 1.0 in `code`, and never that of this version."""

    def __init__(self, folder: Path, code: Path) -> None:
        super().__init__(folder, free_port())
        self.code = code

    def _identity(self) -> dict[str, str]:
        # Without the second, the folder in which the server was started comes before the path.
        return super()._identity() | {"PYTHONPATH": str(self.code), "PYTHONSAFEPATH": "1"}


class Version10(NamedTuple):
    """Its jobs on one pipeline's tables. `code`: where the archive is unpacked; `server`: with its code."""

    code: Path
    file: Path
    warehouse: str
    bootstrap: str
    server: str

    def run(self, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a job to its end."""
        environment = project_environment() | {
            # Of this version it sees nothing but the installed packages.
            "PYTHONPATH": str(self.code),
            "PAIRING_KAFKA": json.dumps({"bootstrap.servers": self.bootstrap}),
            "PAIRING_WAREHOUSE": self.warehouse,
            REMOTE_VARIABLE: self.server,
        }
        asked = [sys.executable, f"spark_jobs/{job}.py", f"--pipeline={self.file}", *arguments]
        return subprocess.run(
            asked, cwd=self.code, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    def work(self, *jobs: str) -> None:
        """Runs the jobs, each to its good end."""
        for job in jobs:
            done = self.run(job)
            assert done.returncode == 0, f"{job} of 1.0: {(done.stdout + done.stderr)[-3000:]}"


@contextmanager
def version_1_0(folder: Path, file: Path, warehouse: str, bootstrap: str) -> Iterator[Version10]:
    """Its jobs while the block runs, unpacked into the folder."""
    code = folder / "code"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(code, filter="data")
    with Spark10(folder / "spark-1.0", code) as server:
        yield Version10(code, file, warehouse, bootstrap, server.url)
