"""The local Spark server listens on loopback only, and one that runs other code or on another port is not taken for it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.local import spark as local_spark
from include.local.machine import SetupError
from include.local.process import free_port, start_program, stop_programs
from include.local.spark import SETTINGS, LocalSpark

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LocalSpark]:
    server = LocalSpark(tmp_path, free_port())
    start_program(tmp_path, "server", SLEEP, {**os.environ, **server._identity()})
    yield server
    stop_programs(tmp_path)


def test_it_is_told_to_listen_on_loopback_only() -> None:
    assert SETTINGS["spark.connect.grpc.binding.address"] == "127.0.0.1"


def test_the_same_server_is_not_started_twice(running: LocalSpark) -> None:
    assert LocalSpark(running.folder, running.port).start() is False


@pytest.mark.parametrize("change", ["code", "port"])
def test_another_one_is_replaced(running: LocalSpark, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = LocalSpark(running.folder, free_port() if change == "port" else running.port)
    if change == "code":
        monkeypatch.setattr(wanted, "_identity", lambda: {**running._identity(), "PAIRING_CODE": "other"})
    started: list[str] = []
    monkeypatch.setattr(local_spark, "start_program", lambda folder, name, *rest: started.append(name))
    monkeypatch.setattr(wanted, "_wait_until_it_listens", lambda: None)
    assert wanted.start() is True
    assert started == ["server"]
    assert not running.is_running()


@pytest.mark.parametrize("file", ["spark_jobs/rules/clock.py", "include/config/pipeline.py"])
def test_changed_code_of_jobs_and_settings_is_other_code(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_spark, "ROOT", tmp_path)
    server, path = LocalSpark(tmp_path / "server", 15_002), tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("A = 1\n")
    before = server._identity()
    path.write_text("A = 2\n")
    assert server._identity() != before


def test_a_taken_port_is_said_with_the_variable_that_chooses_another(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(SetupError, match="choose another port: SPARK_PORT="):
            LocalSpark(tmp_path, other.getsockname()[1]).check()


def test_a_server_that_ends_at_once_is_said_with_its_log(tmp_path: Path) -> None:
    server = LocalSpark(tmp_path, free_port())
    (tmp_path / "server.log").write_text("Exception in thread main: no memory\n")
    with pytest.raises(
        SetupError, match=r"ended while it started \(Exception in thread main: no memory\): see .*server.log"
    ):
        server._wait_until_it_listens()


def test_a_server_that_is_not_seen_for_a_moment_has_not_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, seen = LocalSpark(tmp_path, free_port()), iter([True, False, True])
    monkeypatch.setattr(server, "is_running", lambda: next(seen))
    asked: list[None] = []
    server.wait_until(lambda: asked.append(None) or len(asked) > 1, "it", "server", (), "is late")  # type: ignore[func-returns-value]
    assert list(seen) == []


def test_a_server_that_does_not_come_up_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, stopped = LocalSpark(tmp_path, free_port()), []
    monkeypatch.setattr(server, "start", lambda: 1 / 0)
    monkeypatch.setattr(server, "stop", lambda: stopped.append(True))
    with pytest.raises(ZeroDivisionError), server:
        pass
    assert stopped
