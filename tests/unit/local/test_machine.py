"""What a machine may lack is said in one line with the remedy; what it has too much of is kept away."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.local import machine as local_machine
from include.local.machine import LOCAL, ROOT, SetupError, check_disk, demo_folder, java, project_environment


def fake_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["17", "17.0.15"])
def test_java_17_is_taken(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java() == str(program)


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "170", "21"])
def test_another_java_is_refused_with_a_remedy(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match=rf"JAVA_HOME .* gives Java {re.escape(version)}: install a Java 17"):
        java()


def test_no_java_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no working Java found by PATH: install a Java 17"):
        java()


def test_a_missing_python_is_one_line_before_anything_is_done() -> None:
    made = subprocess.run(["make", "setup", "PYTHON=/no/python"], cwd=ROOT, capture_output=True, text=True, check=False)
    said, *rest = made.stderr.splitlines()
    assert made.returncode != 0
    assert said.startswith("Python 3.11 with its venv module not found (tried: /no/python): install python3.11")
    assert [line for line in rest if not line.startswith("make")] == []


@pytest.mark.parametrize(("free_gb", "is_enough"), [(3.9, False), (4.0, True)])
def test_disk(free_gb: float, is_enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=free_gb * 1e9))
    if is_enough:
        check_disk(4.0)
    else:
        with pytest.raises(SetupError, match=r"3\.9 GB of disk left in .*, 4 GB needed: free some"):
            check_disk(4.0)


def test_other_sparks_and_airflows_do_not_reach_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = [
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW_CONN_KAFKA_DEFAULT",
        "SPARK_HOME",
        "PYSPARK_PYTHON",
        "PAIRING_KAFKA",
        "PAIRING_PIPELINES",
        "PAIRING_SCHEMA_REGISTRY",
    ]
    for name in (*foreign, "PYTHONDONTWRITEBYTECODE", "KEPT"):
        monkeypatch.setenv(name, "theirs")
    environment = project_environment()
    assert [name for name in (*foreign, "PYTHONDONTWRITEBYTECODE") if name in environment] == []
    assert environment["KEPT"] == "theirs"
    assert environment["PYTHONPATH"] == str(ROOT)
    assert environment["PATH"].startswith(str(ROOT / ".venv" / "bin"))


def test_each_example_has_folders_of_its_own_and_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert demo_folder("broker") == LOCAL / "broker"
    monkeypatch.setenv("EXAMPLE", "orders")
    assert demo_folder("broker") == LOCAL / "orders" / "broker"
    monkeypatch.setenv("STORE", "s3")
    assert demo_folder("broker") == LOCAL / "s3" / "orders" / "broker"
    monkeypatch.setenv("EXAMPLE", "order")
    with pytest.raises(
        SetupError, match=r"^EXAMPLE=order is not known: leave it out for calls, or use one of orders, clicks, legs$"
    ):
        demo_folder("broker")
