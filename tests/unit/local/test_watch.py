"""What the watch starts again, and what it leaves alone."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from include.local import watch as local_watch
from include.local.machine import SetupError
from include.local.process import LocalServer, lost_programs, running_program, start_program
from tests.helpers.job_processes import wait_for


class Sleeper(LocalServer):
    name = "sleeper"
    refuses = 0

    def start(self):
        if self.refuses:
            self.refuses -= 1
            raise SetupError("port 1 is taken by another program")
        start_program(self.folder, self.name, ["sleep", "600"], {})
        return True

    def where(self):
        return "here"


@contextmanager
def watched(server, monkeypatch):
    monkeypatch.setattr(local_watch, "_EVERY_S", 0.05)
    over = threading.Event()
    watching = threading.Thread(target=local_watch.watch, args=([server], over.is_set))
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join(5)


@pytest.fixture
def sleeper(tmp_path):
    with Sleeper(tmp_path / "sleeper", 1) as running:
        yield running


def test_what_was_killed_is_started_again(sleeper, monkeypatch, capsys):
    killed, sleeper.refuses = running_program(sleeper.folder, "sleeper"), 2
    with watched(sleeper, monkeypatch):
        killed.kill()
        killed.wait(5)
        wait_for(sleeper.is_running, "the program to be started again", 10)
    said = [line.split("s  ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    gone, refused = "sleeper is gone, it is started again", "port 1 is taken by another program"
    assert said == [gone, refused, gone, refused, gone, "sleeper is up here"]


def test_what_was_stopped_stays_so(sleeper, monkeypatch, capsys):
    sleeper.stop()
    assert lost_programs(sleeper.folder) == []
    with watched(sleeper, monkeypatch):
        threading.Event().wait(0.3)
    assert not sleeper.is_running()
    assert capsys.readouterr().out == ""


def test_what_is_being_stopped_is_not_started_again(tmp_path, monkeypatch, capsys):
    class Slow(Sleeper):
        def start(self):
            start_program(
                self.folder, "sleeper", ["bash", "-c", "trap 'sleep 0.5; exit' TERM; echo up; sleep 600 & wait"], {}
            )
            return True

    with Slow(tmp_path / "slow", 1) as slow:
        wait_for(lambda: "up" in (slow.folder / "sleeper.log").read_text(), "its handler", 10)
        with watched(slow, monkeypatch):
            slow.stop()
        assert not slow.is_running()
    assert capsys.readouterr().out == ""
