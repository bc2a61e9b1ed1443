"""Ships the project's code to executors on other machines, with the job.

Executors of local mode import it from this machine. Those of a cluster need only Python and the packages of requirements.lock, at any path.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from include.config.project import ROOT
from spark_jobs.spark.executors import is_cluster

# What functions for workers import.
_PACKAGES = ("spark_jobs", "include/config")
# The oldest time that a zip file can hold: equal code makes equal bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


# A driver of its own serves the archive to its executors for as long as it lives. The end of a job closes this.
SHIPPED = ExitStack()


def ship_code(spark: SparkSession) -> None:
    """Makes the project's modules importable for the session's workers; does nothing where they run on this machine."""
    if is_cluster(spark):
        folder = SHIPPED.enter_context(tempfile.TemporaryDirectory(prefix="pairing-"))
        spark.addArtifacts(str(code_archive(Path(folder))), pyfile=True)


def code_archive(folder: Path) -> Path:
    """Writes a zip file of the packages into the folder. Its name holds a hash of the content, so a session never has two of one name."""
    files = sorted({ROOT / "include" / "__init__.py", *(file for name in _PACKAGES for file in (ROOT / name).rglob("*.py"))})
    content = hashlib.sha256()
    for file in files:
        content.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    archive = folder / f"event_pairing_{content.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            packed.writestr(zipfile.ZipInfo(str(file.relative_to(ROOT)), _TIME), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return archive
