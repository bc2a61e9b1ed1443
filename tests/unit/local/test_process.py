"""Ports are checked, and programs that outlive their command end with all that they started, and nothing else does."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from include.local import process as local_process
from include.local.machine import SetupError
from include.local.process import (
    MARK,
    check_port,
    end_strays,
    free_port,
    log_path,
    port_setting,
    processes_of,
    running_program,
    start_program,
    stop_programs,
)

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# Starts a child that does not care for its parent's end, as Airflow's parts have them.
PARENT = [sys.executable, "-c", f"import subprocess, time; subprocess.Popen({SLEEP!r}); time.sleep(600)"]


@pytest.mark.parametrize(("text", "port"), [(None, 9092), ("", 9092), ("1024", 1024), ("65535", 65535)])
def test_port_setting(text: str | None, port: int) -> None:
    assert port_setting(text, 9092, "KAFKA_PORT") == port


@pytest.mark.parametrize("text", ["x", "1023", "65536", "-1", "80 80"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match=r"KAFKA_PORT=.* is no port"):
        port_setting(text, 9092, "KAFKA_PORT")


def test_a_taken_port_names_the_variable_to_set() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        with pytest.raises(SetupError, match=rf"port {server.server_port} is taken .* AIRFLOW_PORT=\d+$"):
            check_port(server.server_port, "AIRFLOW_PORT")
        port = server.server_port
    check_port(port, "AIRFLOW_PORT")


def wait_for(what: str, happened: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_program_ends_with_its_children_even_if_their_parent_was_killed(tmp_path: Path) -> None:
    start_program(tmp_path, "parent", PARENT, os.environ)
    wait_for("two processes", lambda: len(processes_of(tmp_path)) == 2)
    parent = running_program(tmp_path, "parent")
    assert parent is not None
    parent.kill()
    wait_for("the parent's end", lambda: running_program(tmp_path, "parent") is None)
    (orphan,) = processes_of(tmp_path)
    assert stop_programs(tmp_path) is True
    assert not psutil.pid_exists(orphan.pid) or orphan.status() == psutil.STATUS_ZOMBIE
    assert list(tmp_path.glob("*.pid")) == []
    assert stop_programs(tmp_path) is False


def test_only_what_a_killed_program_left_behind_is_a_stray(tmp_path: Path) -> None:
    for name in ("killed", "alive"):
        start_program(tmp_path, name, PARENT, os.environ)
    try:
        wait_for("two programs with a child each", lambda: len(processes_of(tmp_path)) == 4)
        killed, alive = running_program(tmp_path, "killed"), running_program(tmp_path, "alive")
        assert killed and alive
        kept = {alive.pid, *(child.pid for child in alive.children())}
        killed.kill()
        killed.wait(5)
        end_strays(tmp_path, ("killed", "alive", "never started"))
        assert {process.pid for process in processes_of(tmp_path)} == kept
    finally:
        stop_programs(tmp_path)


def test_one_program_can_be_ended_before_all_others(tmp_path: Path) -> None:
    told = tmp_path / "told"
    tells = f"import signal, time; signal.signal(signal.SIGTERM, lambda *_: open({str(told)!r}, 'w')); print('up', flush=True); time.sleep(600)"
    for name in ("first", "other"):
        start_program(tmp_path, name, [sys.executable, "-c", tells.replace("told", f"told-{name}")], os.environ)
    wait_for("both handlers", lambda: all("up" in log_path(tmp_path, name).read_text() for name in ("first", "other")))
    assert stop_programs(tmp_path, patience_s=0.5, first="first") is True
    assert [file.name for file in tmp_path.glob("told*")] == ["told-other"]


def test_a_program_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    start_program(tmp_path, "deaf", [sys.executable, "-c", deaf], os.environ)
    wait_for("its handler", lambda: "deaf" in (tmp_path / "deaf.log").read_text())
    assert stop_programs(tmp_path, patience_s=0.5) is True
    assert processes_of(tmp_path) == []


def test_a_process_that_took_over_the_id_is_neither_ours_nor_ended(tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEP, env={**os.environ, MARK: str(tmp_path / "elsewhere")})
    try:
        (tmp_path / "kafka.pid").write_text(str(stranger.pid))
        assert running_program(tmp_path, "kafka") is None
        assert stop_programs(tmp_path) is False
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_no_port_is_given_twice_and_none_that_an_outgoing_connection_could_take() -> None:
    random.seed(0)
    ports = [free_port() for _ in range(200)]
    random.seed(0)
    ports += [free_port() for _ in range(200)]
    assert len(set(ports)) == 400
    assert set(ports) <= set(range(20_000, 32_768))


def test_a_port_on_which_something_listens_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = server.getsockname()[1]
        monkeypatch.setattr(local_process, "SERVER_PORTS", range(taken, taken + 1))
        with pytest.raises(SetupError, match=rf"no port from {taken} to {taken} is free"):
            free_port()


def test_two_processes_never_get_the_same_port() -> None:
    mine = free_port()
    ask = f"from include.local import process; process.SERVER_PORTS = range({mine}, {mine + 1}); process.free_port()"
    other = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    assert f"SetupError: no port from {mine} to {mine} is free" in other.stderr
