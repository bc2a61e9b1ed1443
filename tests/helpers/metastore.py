"""A Hive metastore of its own process, from the jars that pyspark brings, with a Derby database in a folder."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from include.local.machine import VENV, project_environment
from include.local.process import free_port
from tests.helpers.job_processes import wait_for


@contextmanager
def metastore(folder: Path) -> Iterator[str]:
    """Its address, `thrift://127.0.0.1:<port>`, while the block runs."""
    (jars,) = VENV.glob("lib/python*/site-packages/pyspark/jars")
    port = free_port()
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file://{folder}/warehouse",
        "hive.metastore.thrift.bind.host": "127.0.0.1",
        # It would need a library that pyspark leaves out.
        "hive.async.log.enabled": "false",
    }
    arguments = [each for name, value in settings.items() for each in ("--hiveconf", f"{name}={value}")]
    command = ["java", "-Xmx512m", f"-Dderby.stream.error.file={folder}/derby.log", "-cp", f"{jars}/*"]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port), *arguments]
    with (folder / "metastore.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=project_environment(), stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: _listens(port) or process.poll() is not None, "the metastore", 300, every_s=0.2)
        assert process.poll() is None, (folder / "metastore.log").read_text()[-2_000:]
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False
