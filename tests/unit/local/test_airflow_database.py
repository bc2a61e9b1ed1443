"""The keys of the local Airflow, and what it is told of schedulers that were killed."""

from __future__ import annotations

import sqlite3
from configparser import ConfigParser
from contextlib import closing

from include.local.airflow_database import end_lost_schedulers, write_keys


def keys_of(folder):
    read = ConfigParser(interpolation=None)
    read.read(folder / "airflow.cfg")
    return {(section, name): value for section in read.sections() for name, value in read[section].items()}


def test_the_keys_are_long_enough_and_only_the_owner_can_read_them(tmp_path):
    write_keys(tmp_path)
    first = keys_of(tmp_path)
    assert [*first] == [("core", "fernet_key"), ("api", "secret_key"), ("api_auth", "jwt_secret")]
    assert len(first["api_auth", "jwt_secret"]) >= 64
    assert (tmp_path / "airflow.cfg").stat().st_mode & 0o777 == 0o600
    write_keys(tmp_path)
    assert keys_of(tmp_path) == first


def test_what_airflow_has_encrypted_stays_readable(tmp_path):
    (tmp_path / "airflow.cfg").write_text("[core]\nfernet_key = old=\n[api_auth]\njwt_secret = dG9vIHNob3J0IGEga2V5Li4=\n")
    write_keys(tmp_path)
    assert keys_of(tmp_path)["core", "fernet_key"] == "old="
    assert len(keys_of(tmp_path)["api_auth", "jwt_secret"]) >= 64


def test_only_a_scheduler_that_is_said_to_run_was_lost(tmp_path):
    jobs = [("SchedulerJob", "running"), ("SchedulerJob", "success"), ("TriggererJob", "running")]
    with closing(sqlite3.connect(tmp_path / "airflow.db")) as database:
        database.execute("CREATE TABLE job (job_type TEXT, state TEXT)")
        database.executemany("INSERT INTO job VALUES (?, ?)", jobs)
        database.commit()
        end_lost_schedulers(f"sqlite:///{tmp_path / 'airflow.db'}")
        assert database.execute("SELECT * FROM job").fetchall() == [("SchedulerJob", "failed"), *jobs[1:]]
