"""A driver elsewhere learns of its task's end by the lease, and only of its end."""

from __future__ import annotations

import threading
import time

import pytest

from include.config import task_lease
from include.config.store import Store, write_text
from include.config.task_lease import held, wait_for_end

NAME = "some.task"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(task_lease, "RENEWED_EVERY_S", 0.02)
    monkeypatch.setattr(task_lease, "EXPIRES_AFTER_S", 0.2)
    return Store(str(tmp_path))


def waiting(store):
    thread = threading.Thread(target=wait_for_end, args=(store, NAME), daemon=True)
    thread.start()
    return thread


def test_a_lease_holds_for_as_long_as_its_task(store):
    with held(store, NAME):
        driver = waiting(store)
        driver.join(0.5)
        assert driver.is_alive()
    driver.join(0.3)
    assert not driver.is_alive() and not list(store.folder.iterdir())


def test_a_driver_that_begins_after_the_end_of_its_task_ends(store, monkeypatch):
    monkeypatch.setattr(task_lease, "EXPIRES_AFTER_S", 60)
    driver = waiting(store)
    driver.join(0.3)
    assert not driver.is_alive()


def test_a_lease_that_nobody_renews_expires(store):
    write_text(store, NAME, "7")
    began = time.monotonic()
    wait_for_end(store, NAME)
    assert 0.2 <= time.monotonic() - began < 2


def test_a_store_without_an_answer_is_no_end(store, monkeypatch):
    write_text(store, NAME, "7")
    silent = threading.Event()

    def answer(*_):
        if silent.is_set():
            raise OSError("no route")
        return "7"

    monkeypatch.setattr(task_lease, "read_text", answer)
    silent.set()
    driver = waiting(store)
    driver.join(0.5)
    assert driver.is_alive()
    silent.clear()
    driver.join(2)
    assert not driver.is_alive()


def test_a_renewal_that_fails_is_tried_again(store, monkeypatch):
    write, failed = task_lease.write_text, []

    def fail_twice(*given):
        if given[2] in ("2", "3"):
            failed.append(given)
            raise OSError("no route")
        write(*given)

    monkeypatch.setattr(task_lease, "write_text", fail_twice)
    with held(store, NAME):
        driver = waiting(store)
        driver.join(0.5)
        assert driver.is_alive() and len(failed) == 2


def test_a_lease_that_cannot_be_written_is_an_error_at_once(store, monkeypatch):
    def refuse(*_):
        raise OSError("no route")

    monkeypatch.setattr(task_lease, "write_text", refuse)
    with pytest.raises(OSError, match="no route"), held(store, NAME):
        raise AssertionError("nothing may be submitted")
