"""Makes sure of a cluster's executors before a job first needs them, and says in one line what they lack.

Spark waits for an executor for ever, and reports a missing package as a page of stack traces.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.faults.problems import JobProblem, NeedsOperator

WITHIN_VARIABLE = "PAIRING_EXECUTORS_WITHIN_S"
_WITHIN_S = 300.0
_PROGRESS_S = 10.0
# Stores refuse requests that are signed with a time further off, and tokens expire by it.
_CLOCKS_APART_S = 600
_LOOK = "host string, clock double"
_CHECKED: WeakSet[Any] = WeakSet()
# What Spark says of a failed task, and in it PySpark and Python.
_HOST = re.compile(r"\(TID \d{1,19}\) \(([\w.:-]{1,253}) executor (\S{1,20})\)")
# A Spark Connect server hands on the worker's stack trace alone.
_FROM_WORKER = "An exception was thrown from the Python worker"
_NOTED = re.compile(r"on executor host ([\w.:-]{1,253})")
_MISSING = re.compile(r"No module named '([\w.]{1,100})'")
_NO_PYTHON = re.compile(r'Cannot run program "([^"\n]{1,200})"')
_OTHER_PYTHON = re.compile(r"Python in worker has different version: (\S{1,20}) than that in driver: (\S{1,20}),")


def is_cluster(spark: SparkSession) -> bool:
    """Whether the workers may run on other machines than the driver."""
    return not str(spark.conf.get("spark.master", "local")).startswith("local")


def check_executors(spark: SparkSession) -> None:
    """Returns when an executor of the cluster has answered; does nothing where the driver does the work, or at the second call.

    Prints every ten seconds that it waits. Raises JobProblem after $PAIRING_EXECUTORS_WITHIN_S seconds (300), and NeedsOperator if the
    executor's clock is more than ten minutes off.
    """
    if spark in _CHECKED or not is_cluster(spark):
        return
    host, apart = _first_answer(spark)
    if abs(apart) > _CLOCKS_APART_S:
        raise NeedsOperator(
            f"the clock of executor host {host} is {apart:+.0f} s off the driver's: a store refuses what is signed there; "
            "set the clocks by NTP, then run this again"
        )
    _CHECKED.add(spark)


@contextmanager
def name_host_in_errors(on_cluster: bool) -> Iterator[None]:
    """In a worker: adds the host to the stack trace of an error, for `failed_host`, if this machine is not the driver's."""
    try:
        yield
    except Exception as error:
        if on_cluster:
            error.add_note(f"on executor host {socket.gethostname()}")
        raise


def failed_host(text: str) -> str | None:
    """The host of the executor whose task failed, by the text of Spark's error; None where the driver did the work, or none is named.

    >>> failed_host("(TID 3) (10.0.0.7 executor 1): broken"), failed_host("(TID 3) (10.0.0.7 executor driver): broken")
    ('10.0.0.7', None)
    """
    if noted := _NOTED.search(text):
        return noted[1]
    failed = _HOST.search(text)
    return failed[1] if failed and failed[2] != "driver" else None


def executor_problem(text: str) -> NeedsOperator | None:
    """The problem if the text of an error, with its stack trace, says that an executor lacks a Python or a package.

    >>> executor_problem('(TID 3) (10.0.0.7 executor 1): ... ModuleNotFoundError: No module named \\'pyarrow\\'')
    NeedsOperator('the Python of executor host 10.0.0.7 has no module pyarrow: install the packages of requirements.lock for it')
    """
    failed = _HOST.search(text)
    if not failed and _FROM_WORKER not in text:
        return None
    where = f"executor host {failed[1]}" if failed else "an executor"
    if missing := _MISSING.search(text):
        return NeedsOperator(
            f"the Python of {where} has no module {missing[1]}: install the packages of requirements.lock for it"
        )
    if program := _NO_PYTHON.search(text):
        return NeedsOperator(
            f"there is no Python {program[1]} on {where}: install it, or name another in spark.pyspark.python (PYSPARK_PYTHON of the server)"
        )
    if versions := _OTHER_PYTHON.search(text):
        return NeedsOperator(
            f"the Python of {where} is {versions[1]}, that of the driver {versions[2]}: both must have the same minor version; "
            "name the right one in spark.pyspark.python (PYSPARK_PYTHON of the server)"
        )
    return None


def _first_answer(spark: SparkSession) -> tuple[str, float]:
    """The host of the executor that answers first, and how many seconds its clock is ahead of this one's."""
    answers: list[tuple[str, float] | Exception] = []

    def ask() -> None:
        try:
            (row,) = spark.range(1, numPartitions=1).mapInArrow(_look, _LOOK).collect()
            answers.append((row["host"], row["clock"] - time.time()))
        except Exception as error:
            answers.append(error)

    within = float(os.environ.get(WITHIN_VARIABLE) or _WITHIN_S)
    asking, began = threading.Thread(target=ask, daemon=True), time.monotonic()
    asking.start()
    while asking.is_alive():
        waited = time.monotonic() - began
        asking.join(min(_PROGRESS_S, max(within - waited, 0.1)))
        waited = time.monotonic() - began
        if asking.is_alive():
            master = spark.conf.get("spark.master", None)
            if waited >= within:
                # A server would go on with the question after the end of the job.
                with suppress(Exception):
                    spark.interruptAll()
                raise JobProblem(
                    f"no executor of {master} has taken a task for {waited:.0f} s: the cluster has no free core, or no worker with enough "
                    f"memory; look at the master's page, or raise {WITHIN_VARIABLE}"
                )
            print(f"waiting for an executor of {master} for {waited:.0f} s, at most {within:.0f} s", flush=True)
    (answer,) = answers
    if isinstance(answer, Exception):
        raise answer
    return answer


def _look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pylist([{"host": socket.gethostname(), "clock": time.time()}])
