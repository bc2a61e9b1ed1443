"""Programs that outlive the command that started them: the broker, the Spark server and Airflow's parts.

A program belongs to a folder, where its log and its pid file lie. Its environment names that folder, and so does that of
every process it starts: what is ended is proven to be ours, and nothing of ours is left behind, whoever its parent is now.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from include.local.machine import ROOT, SetupError

MARK = "PAIRING_SERVER_FOLDER"
READY_WITHIN_S = 60.0
# The usual range of outgoing connections begins at 32768 (Linux) or 49152 (elsewhere).
SERVER_PORTS = range(20_000, 32_768)
_given: set[int] = set()


class LocalServer(ABC):
    """A server with its files in `folder`, listening on 127.0.0.1:`port`. As a context manager it runs inside the block."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # What was started, but did not answer, would stay for ever: nobody leaves a block that was not entered.
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> bool:
        """Returns when the server answers: True if it was started, False if it ran already. Raises SetupError."""

    @abstractmethod
    def is_running(self) -> bool:
        """Whether it lives, on whatever port."""

    @abstractmethod
    def where(self) -> str:
        """Where it is, for people."""

    def stop(self) -> bool:
        """Ends every process of it in good order, its data stay; False if it did not run."""
        return stop_programs(self.folder)

    def wait_until(self, ready: Callable[[], bool], name: str, program: str, telling: Sequence[str], not_ready: str) -> None:
        """Returns when `ready`. Raises SetupError if the program ends, with what the log says of it, or READY_WITHIN_S pass."""
        log = log_path(self.folder, program)
        deadline, absent = time.monotonic() + READY_WITHIN_S, 0
        while time.monotonic() < deadline:
            absent = 0 if self.is_running() else absent + 1
            # A shell that is just becoming a Java program cannot be told from one that is gone, for a moment.
            if absent > 1:
                cause = " / ".join(last_lines(self.folder, program, 2, containing=telling))
                raise SetupError(f"{name} ended while it started ({cause[:300]}): see {log}")
            if not absent and ready():
                return
            time.sleep(0.1)
        raise SetupError(f"{name} {not_ready}: see {log}, then make stop")


def command_line(name: str, variable: str, default_port: int, make: Callable[[int], LocalServer]) -> int:
    """`start|stop|status` of one server; 0 when done, 1 with one line when not (status: 1 when it does not run)."""
    parser = argparse.ArgumentParser(description=f"{name} on this machine, on 127.0.0.1 only.")
    parser.add_argument("action", choices=["start", "stop", "status"])
    parser.add_argument("--port", default=os.environ.get(variable), help=f"default: {variable}, or {default_port}")
    arguments = parser.parse_args()
    try:
        server = make(port_setting(arguments.port, default_port, variable))
        if arguments.action == "start":
            print(f"{name} {'started' if server.start() else 'runs already'} {server.where()}")
        elif arguments.action == "stop":
            print(f"{name} {'stopped' if server.stop() else 'did not run'}")
        else:
            running = server.is_running()
            print(f"{name} runs {server.where()}" if running else f"{name} does not run")
            return 0 if running else 1
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def start_program(folder: Path, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
    """Starts `command` in a session of its own, output to `<folder>/<name>.log`, process id in `<folder>/<name>.pid`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Logs, and Airflow's passwords and keys, are nobody else's.
    folder.chmod(0o700)
    # setproctitle, which Airflow uses, would write its titles over the mark without SPT_NOENV.
    marked = {**environment, MARK: str(folder.resolve()), "SPT_NOENV": "1"}
    with log_path(folder, name).open("ab") as log:
        program = subprocess.Popen(
            command, cwd=ROOT, env=marked, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / f"{name}.pid").write_text(str(program.pid))
    # For a moment after its start a process has no environment yet, and would not be known as ours.
    deadline = time.monotonic() + 5
    while program.poll() is None and running_program(folder, name) is None and time.monotonic() < deadline:
        time.sleep(0.01)


def log_path(folder: Path, name: str) -> Path:
    """Where the output of a program goes."""
    return folder / f"{name}.log"


def running_program(folder: Path, name: str) -> psutil.Process | None:
    """The process in the pid file, if it lives and really is the one that was started for this folder."""
    try:
        process = psutil.Process(int((folder / f"{name}.pid").read_text()))
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    return process if _belongs_to(process, folder) else None


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every living process that was started for this folder, directly or by another one."""
    return [process for process in psutil.process_iter() if _belongs_to(process, folder)]


def _belongs_to(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(folder.resolve())
    except (psutil.Error, OSError):
        # Gone meanwhile, or another user's.
        return False


def stop_programs(folder: Path, patience_s: float = 10.0) -> bool:
    """Ends all processes of a folder, False if there are none. They get `patience_s` to end in good order (0: none at all).

    The youngest come first, so that no parent leaves children behind that it would have ended itself.
    """
    found = sorted(processes_of(folder), key=lambda process: process.create_time(), reverse=True)
    if patience_s:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _wait_until_gone(found, patience_s)
    # Those that did not end, and whatever they started meanwhile.
    left = processes_of(folder)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_until_gone([*found, *left], 5)
    for pid_file in folder.glob("*.pid"):
        pid_file.unlink()
    return bool(found)


def _wait_until_gone(processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(_is_gone(process) for process in processes):
        time.sleep(0.05)


def _is_gone(process: psutil.Process) -> bool:
    try:
        # A zombie only waits to be counted by its parent; while it has threads it still holds its ports.
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def check_port(port: int, variable: str) -> None:
    """Raises SetupError if something listens on the port already; `variable` is what the user sets to choose another."""
    with socket.socket() as probe:
        probe.settimeout(1)
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if not taken:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken = True
    if taken:
        raise SetupError(
            f"port {port} is taken by another program: end that, or choose another port: {variable}={port + 1000}"
        )


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now; no port twice in one process.

    It is below those the system gives to outgoing connections: one of these can take any port of theirs between this answer
    and the start of the server it is for, which happens once there are thousands of connections.
    """
    for _ in SERVER_PORTS:
        # Not the shared random numbers: a test may have seeded them, in two processes alike.
        port = random.SystemRandom().choice(SERVER_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
    raise SetupError(f"no port from {SERVER_PORTS.start} to {SERVER_PORTS.stop - 1} is free: end what listens there")


def port_setting(text: str | None, default: int, variable: str) -> int:
    """The port a user asked for, or the default; raises SetupError if it is none (1024 to 65535)."""
    if not text:
        return default
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise SetupError(f"{variable}={text} is no port: choose a number from 1024 to 65535")
    return int(text)


def last_lines(folder: Path, name: str, count: int = 5, containing: Sequence[str] = ()) -> list[str]:
    """The last lines of a program's log, those with one of the words in `containing` if there are any."""
    lines = [line.rstrip() for line in log_path(folder, name).read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if any(word in line for word in containing)]
    return (telling or lines)[-count:]
