"""Fault points: nothing without the variable, a stop where one is armed, an error where there is none."""

from __future__ import annotations

import os
import threading

import pytest

from spark_jobs.faults.fault_points import FAULT_POINTS, fault_point
from tests.helpers.job_processes import Faults, wait_for


def test_an_armed_point_stops_until_it_is_released(tmp_path, monkeypatch):
    faults = Faults(tmp_path)
    monkeypatch.setenv("PAIRING_FAULT_DIR", str(tmp_path))
    faults.arm("before_landed")
    fault_point("after_landed")
    job = threading.Thread(target=fault_point, args=("before_landed",), daemon=True)
    job.start()
    wait_for(lambda: faults.is_reached("before_landed"), "the point", 10)
    assert faults.who("before_landed") == os.getpid()
    faults.disarm("before_landed")
    # Nobody else stops; who stands there stays.
    fault_point("before_landed")
    job.join(0.3)
    assert job.is_alive()
    faults.release("before_landed")
    job.join(10)
    assert not job.is_alive()


def test_without_the_variable_a_point_does_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("PAIRING_FAULT_DIR", raising=False)
    # Nor does it take the folder of the process for the one that the variable would name.
    monkeypatch.chdir(tmp_path)
    Faults(tmp_path).arm("before_landed")
    job = threading.Thread(target=fault_point, args=("before_landed",), daemon=True)
    job.start()
    job.join(10)
    assert not job.is_alive()
    assert [file.name for file in tmp_path.iterdir()] == ["before_landed.armed"]


def test_a_point_that_nobody_lists_is_refused(monkeypatch):
    monkeypatch.delenv("PAIRING_FAULT_DIR", raising=False)
    with pytest.raises(ValueError, match="before_lunch is not in FAULT_POINTS"):
        fault_point("before_lunch")


def test_no_point_is_listed_twice():
    points = [point for listed in FAULT_POINTS.values() for point in listed]
    assert len(points) == len(set(points))
