"""Programs that outlive the command that started them: the broker, the Spark server and Airflow's parts.

A program belongs to a folder, which holds its log and its pid file. Its environment names that folder, and all processes that it starts
inherit this mark. So `stop` ends every process of ours, whatever its parent is now, and no process of others.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from include.local.machine import ROOT, SetupError

MARK = "PAIRING_SERVER_FOLDER"
# Most take seconds; on a machine that does much else, minutes. One that ends is noticed at once.
READY_WITHIN_S = 300.0
# The usual range of outgoing connections begins at 32768 (Linux) or 49152 (elsewhere).
SERVER_PORTS = range(20_000, 32_768)
_claims: list[socket.socket] = []


class LocalServer(ABC):
    """A server with its files in `folder`, listening on 127.0.0.1:`port`. As a context manager it runs inside the block."""

    # Of the program that is the server, as `start_program` calls it.
    name = ""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # __exit__ is not called for a block that was not entered, so a server that did not answer would stay for ever.
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> bool:
        """Starts the server and waits until it answers; False if it ran already. Raises SetupError."""

    def is_running(self) -> bool:
        """Whether the server of this folder is alive, on any port."""
        return running_program(self.folder, self.name) is not None

    @abstractmethod
    def where(self) -> str:
        """Its address, for people."""

    def stop(self) -> bool:
        """Ends all its processes in order and keeps its data; False if it did not run."""
        return stop_programs(self.folder)

    def listens(self) -> bool:
        """Whether anything listens on the port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def wait_until(self, ready: Callable[[], bool], name: str, program: str, signs: Sequence[str], not_ready: str) -> None:
        """Returns when `ready` is true. Raises SetupError if the program ends (with the log lines that have one of `signs`), or after READY_WITHIN_S."""
        log = log_path(self.folder, program)
        deadline, absent = time.monotonic() + READY_WITHIN_S, 0
        while time.monotonic() < deadline:
            absent = 0 if self.is_running() else absent + 1
            # While a shell becomes a Java program (exec), it looks like a process that is gone, for a moment.
            if absent > 1:
                cause = " / ".join(last_lines(self.folder, program, 2, containing=signs))
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


def start_program(
    folder: Path, name: str, command: Sequence[str | Path], environment: Mapping[str, str], place: Path = ROOT
) -> None:
    """Starts `command` in `place`, in a session of its own, output to `<folder>/<name>.log`, process id in `<folder>/<name>.pid`."""
    folder.mkdir(parents=True, exist_ok=True)
    # Only this user may read logs, and Airflow's passwords and keys.
    folder.chmod(0o700)
    # Airflow uses setproctitle, which would overwrite the mark with its titles but for SPT_NOENV.
    marked = {**environment, MARK: str(folder.resolve()), "SPT_NOENV": "1"}
    with log_path(folder, name).open("ab") as log:
        program = subprocess.Popen(
            command, cwd=place, env=marked, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (folder / f"{name}.pid").write_text(str(program.pid))
    # A process has no environment, and so no mark, for a moment after its start.
    deadline = time.monotonic() + 5
    while program.poll() is None and running_program(folder, name) is None and time.monotonic() < deadline:
        time.sleep(0.01)


def log_path(folder: Path, name: str) -> Path:
    """The file with the output of a program."""
    return folder / f"{name}.log"


def running_program(folder: Path, name: str) -> psutil.Process | None:
    """The process in the pid file, if it is alive and has the mark of this folder: its id may belong to another process by now."""
    try:
        process = psutil.Process(int((folder / f"{name}.pid").read_text()))
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    return process if _belongs_to(process, folder) else None


def lost_programs(folder: Path) -> list[str]:
    """The programs of a folder that ended without being stopped."""
    return [file.stem for file in sorted(folder.glob("*.pid")) if running_program(folder, file.stem) is None]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every living process with the mark of this folder."""
    return [process for process in psutil.process_iter() if _belongs_to(process, folder)]


def _belongs_to(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(folder.resolve())
    except (psutil.Error, OSError):
        # It ended meanwhile, or belongs to another user.
        return False


def end_strays(folder: Path, names: Iterable[str]) -> None:
    """Kills the processes of a folder that no running program of these names has started: what a killed program left behind."""
    running = [process for name in names if (process := running_program(folder, name))]
    kept = {each.pid for process in running for each in (process, *process.children(recursive=True))}
    strays = [process for process in processes_of(folder) if process.pid not in kept]
    for process in strays:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_until_gone(strays, 5)


def stop_programs(folder: Path, patience_s: float = 10.0, first: str | None = None) -> bool:
    """Ends all processes of a folder; False if there are none. Kills those that have not ended after `patience_s` (0: kills all at once).

    The youngest are asked first, so that parents, which end their children themselves, are still there. `first`: a program that is killed
    before all others.
    """
    found = sorted(processes_of(folder), key=lambda process: process.create_time(), reverse=True)
    ahead = running_program(folder, first) if first else None
    # Before anything ends: who watches would start it again.
    for pid_file in folder.glob("*.pid"):
        pid_file.unlink()
    if ahead:
        ahead.kill()
    if patience_s:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        _wait_until_gone(found, patience_s)
    # Those that did not end, and the processes that they started meanwhile.
    left = processes_of(folder)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_until_gone([*found, *left], 5)
    return bool(found)


def _wait_until_gone(processes: list[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(_is_gone(process) for process in processes):
        time.sleep(0.05)


def _is_gone(process: psutil.Process) -> bool:
    try:
        # A zombie waits for its parent only; while it has threads it still holds its ports.
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def check_port(port: int, variable: str) -> None:
    """Raises SetupError if the port is taken; `variable` is the setting that chooses another one."""
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
    """A port of 127.0.0.1 on which nothing listens now, and which no other call here or in another living process has got.

    It lies below the range of outgoing connections: with thousands of these, one may take a port of that range before the server starts.
    """
    for _ in SERVER_PORTS:
        # Tests may seed the shared generator, in two processes alike.
        port = random.SystemRandom().choice(SERVER_PORTS)
        # Nothing listens on the port before its server starts, nor while that is killed and starts again. So the UDP port of the same number,
        # which nothing else uses, is taken as a sign of that until this process ends.
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as probe:
            try:
                claim.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
    raise SetupError(f"no port from {SERVER_PORTS.start} to {SERVER_PORTS.stop - 1} is free: end what listens there")


def port_setting(text: str | None, default: int, variable: str) -> int:
    """The port that the user chose, or the default; raises SetupError if it is not 1024 to 65535."""
    if not text:
        return default
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise SetupError(f"{variable}={text} is no port: choose a number from 1024 to 65535")
    return int(text)


def last_lines(folder: Path, name: str, count: int = 5, containing: Sequence[str] = ()) -> list[str]:
    """The last lines of a program's log, those with one of the words in `containing` if there are any."""
    lines = [line.rstrip() for line in log_path(folder, name).read_text(errors="replace").splitlines() if line.strip()]
    matching = [line for line in lines if any(word in line for word in containing)]
    return (matching or lines)[-count:]
