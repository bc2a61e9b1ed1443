"""The metadata database and the keys of the local Airflow, in its folder."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import create_engine, text

from include.image.write_env import fernet_key, password, signing_key
from include.local.machine import ROOT, VENV, SetupError
from include.local.process import last_lines, log_path

LOG = "database"
# What the signature of Airflow's tokens (HS512) wants.
_SIGNING_KEY_BYTES = 64


def migrate_database(folder: Path, environment: Mapping[str, str]) -> None:
    """Creates or upgrades the database, once for each version of Airflow. Raises SetupError."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp, wanted = folder / "database.version", version("apache-airflow")
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if not stamp.is_file():
        # A first migration that was killed cannot be resumed.
        (folder / "airflow.db").unlink(missing_ok=True)
    with log_path(folder, LOG).open("wb") as log:
        command = [str(VENV / "bin" / "airflow"), "db", "migrate"]
        status = subprocess.call(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if status:
        lines = last_lines(folder, LOG, 1, containing=("Error", "ERROR", "error"))
        raise SetupError(f"Airflow's database could not be made ({' '.join(lines)[:300]}; see {log_path(folder, LOG)})")
    stamp.write_text(wanted)


def write_keys(folder: Path) -> None:
    """Writes airflow.cfg with nothing but the keys: the one that Airflow makes itself is too short for the signature of its tokens.

    Of an existing file the key that has encrypted connections is kept. One whose keys are long enough is left as it is.
    """
    file, known = folder / "airflow.cfg", ConfigParser(interpolation=None)
    known.read(file)
    if len(known.get("api_auth", "jwt_secret", fallback="")) >= _SIGNING_KEY_BYTES:
        return
    written = ConfigParser(interpolation=None)
    written["core"] = {"fernet_key": known.get("core", "fernet_key", fallback="") or fernet_key()}
    written["api"] = {"secret_key": password()}
    written["api_auth"] = {"jwt_secret": signing_key()}
    file.touch(mode=0o600)
    with file.open("w") as target:
        written.write(target)


def end_lost_schedulers(url: str) -> None:
    """Notes in the database that no scheduler runs.

    A new scheduler then takes over the tasks of the one before at once. By itself Airflow takes a killed scheduler for alive until its last
    heartbeat is half a minute old, and looks again only after minutes. Shorter times would take the tasks from a scheduler that is slow.
    """
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET state = 'failed' WHERE job_type = 'SchedulerJob' AND state = 'running'"))
    engine.dispose()
