"""A PostgreSQL for an Airflow in a test: its own files and port, on loopback only, gone afterwards."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from include.local.process import free_port

NEEDED = "no PostgreSQL server is installed (apt-get install postgresql)"
_USER = "airflow"


def programs() -> Path | None:
    """The folder of the server's programs, which Debian keeps off the PATH; None if it is not installed."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(found) if (folder / "initdb").exists()), None)


@contextmanager
def local_postgres() -> Iterator[str]:
    """The URL of an empty database, for SQLAlchemy."""
    bin_folder = programs()
    if bin_folder is None:
        raise RuntimeError(NEEDED)
    # It refuses to run as root.
    owner: dict[str, Any] = {"user": "postgres", "group": pwd.getpwnam("postgres").pw_gid} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pairing-postgres-"))
    password, port = secrets.token_hex(8), free_port()
    try:
        secret = folder / "password"
        secret.write_text(password)
        if owner:
            for each in (folder, secret):
                shutil.chown(each, owner["user"])

        def run(program: str, *options: str) -> None:
            command = [str(bin_folder / program), "-D", str(folder / "data"), *options]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, **owner
            )
            if done.returncode:
                log = folder / "log"
                raise RuntimeError(f"{program}: {done.stderr}{log.read_text() if log.exists() else ''}")

        run("initdb", "-U", _USER, "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--locale=C")
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories='' -c fsync=off"
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg2://{_USER}:{password}@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
