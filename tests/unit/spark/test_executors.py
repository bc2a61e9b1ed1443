"""A job waits for a cluster's executors for so long, says so, and names in one line what they lack."""

from __future__ import annotations

import re
import socket
import threading
import time
import traceback
from types import SimpleNamespace

import pytest

from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.spark import executors
from spark_jobs.spark.executors import WITHIN_VARIABLE, check_executors, executor_problem, failed_host, name_host_in_errors


class Session:
    """What `check_executors` asks of a session."""

    def __init__(self, answer, master: str = "spark://cluster:7077") -> None:
        self.answer, self.asked, self.interrupted = answer, 0, threading.Event()
        self.conf = SimpleNamespace(get=lambda name, default=None: master)

    def range(self, *_, **__):
        return self

    def mapInArrow(self, *_):
        return self

    def collect(self):
        self.asked += 1
        return [self.answer()]

    def interruptAll(self) -> None:
        self.interrupted.set()


def now(ahead_s: float = 0.0):
    return {"host": "10.0.0.7", "clock": time.time() + ahead_s}


def test_executors_are_asked_once_a_session() -> None:
    session = Session(now)
    for _ in range(2):
        check_executors(session)
    assert session.asked == 1
    check_executors(Session(now))


def test_a_driver_that_does_the_work_itself_is_not_asked() -> None:
    session = Session(now, "local[2]")
    check_executors(session)
    assert session.asked == 0


def test_the_wait_for_an_executor_is_told_and_ends(monkeypatch, capsys) -> None:
    monkeypatch.setenv(WITHIN_VARIABLE, "0.35")
    monkeypatch.setattr(executors, "_PROGRESS_S", 0.1)
    session = Session(lambda: time.sleep(30))
    with pytest.raises(
        JobProblem, match=r"no executor of spark://cluster:7077 has taken a task for 0 s: .* raise PAIRING_EX"
    ) as told:
        check_executors(session)
    assert not isinstance(told.value, NeedsOperator)
    assert capsys.readouterr().out.count("waiting for an executor of spark://cluster:7077 for 0 s, at most 0 s\n") >= 2
    # Or the server would go on with the question.
    assert session.interrupted.is_set()


@pytest.mark.parametrize(("ahead_s", "said"), [(3_600, "+3600"), (-3_600, "-3600"), (601, "+601")])
def test_a_clock_that_is_off_is_refused(ahead_s: int, said: str) -> None:
    with pytest.raises(NeedsOperator, match=re.escape(f"executor host 10.0.0.7 is {said} s off the driver's")):
        check_executors(Session(lambda: now(ahead_s)))


@pytest.mark.parametrize("ahead_s", [0, 598, -599])
def test_a_clock_that_is_nearly_right_is_taken(ahead_s: int) -> None:
    check_executors(Session(lambda: now(ahead_s)))


def test_an_error_of_the_question_is_the_job_s_error() -> None:
    def fails():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        check_executors(Session(fails))


FAILED = "Job aborted: Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor 1): "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{FAILED}ModuleNotFoundError: No module named 'msgspec'",
            "the Python of executor host 10.0.0.7 has no module msgspec: install the packages of requirements.lock for it",
        ),
        (
            f'{FAILED}java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
            "there is no Python python3 on executor host 10.0.0.7: install it, or name another in spark.pyspark.python",
        ),
        (
            f"{FAILED}[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot",
            "the Python of executor host 10.0.0.7 is 3.12, that of the driver 3.11: both must have the same minor version",
        ),
    ],
)  # fmt: skip
def test_what_executors_lack_is_one_line(text: str, said: str) -> None:
    problem = executor_problem(f"{text}\n\tat org.apache.spark.Something\n")
    assert str(problem).startswith(said)


def test_what_executors_lack_is_one_line_also_where_no_host_is_named() -> None:
    """Of a Spark Connect server the client gets the worker's stack trace alone."""
    lacks = (
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot"
    )
    problem = executor_problem(f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback …\n{lacks}")
    assert str(problem).startswith("the Python of an executor is 3.12, that of")


@pytest.mark.parametrize(("on_cluster", "host"), [(True, socket.gethostname()), (False, None)])
def test_a_worker_on_a_cluster_names_its_host(on_cluster: bool, host: str | None) -> None:
    with pytest.raises(ValueError, match="broken") as raised, name_host_in_errors(on_cluster):
        raise ValueError("broken")
    # As PySpark hands it over.
    assert failed_host("".join(traceback.format_exception(raised.value))) == host


def test_an_error_of_the_driver_is_not_one_of_the_executors() -> None:
    assert executor_problem("ModuleNotFoundError: No module named 'msgspec'") is None
    assert executor_problem(f"{FAILED}ValueError: broken") is None
