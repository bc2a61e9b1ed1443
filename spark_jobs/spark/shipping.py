"""Ships the project's code to executors on other machines, with the job.

Executors of local mode import it from this machine. Those of a cluster need only Python and the packages of requirements.lock, at any path.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from include.config.driver_files import project_archive
from spark_jobs.spark.executors import is_cluster

# A driver of its own serves the archive to its executors for as long as it lives. The end of a job closes this.
SHIPPED = ExitStack()


def ship_code(spark: SparkSession) -> None:
    """Makes the project's modules importable for the session's workers; does nothing where they run on this machine.

    The archive's name holds a hash of its content, so a session never has two of one name.
    """
    if is_cluster(spark):
        folder = SHIPPED.enter_context(tempfile.TemporaryDirectory(prefix="pairing-"))
        spark.addArtifacts(str(project_archive(Path(folder))), pyfile=True)
