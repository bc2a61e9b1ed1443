"""What every job does around its work: arguments, the writer's lock, a session, one clear line when it fails.

A job also writes its outcome into the file or object that PAIRING_OUTCOME names, if it is set: `{"ok": true, "counts": {…}}` or
`{"ok": false, "error": "…", "retry": true|false}`, both with the `application` id of Spark, the `lineage` (see there) and, if there are any, the
`news` for people (of which some are `over`) and the `checks` of the report. Airflow's operator reads the file and shows the reason.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from include.config.pipeline import Pipeline, PipelineError
from include.config.project import REMOTE_VARIABLE
from include.config.secret_values import without_secrets
from include.config.store import (
    WAREHOUSE_VARIABLE,
    StoreRefused,
    checked_root,
    local_folder,
    warehouse_root,
    warehouse_store,
)
from include.config.task_lease import wait_for_end
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.job.arguments import OneLineParser, end_with, pipeline_argument, write_outcome
from spark_jobs.job.lineage import lineage
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.executors import executor_problem, is_cluster
from spark_jobs.spark.local_workers import has_workers, start_workers, stop_workers
from spark_jobs.spark.session import (
    LazySession,
    cores_here,
    end_session,
    interrupt_work,
    reading_session,
    server_problem,
    spark_session,
)
from spark_jobs.spark.shipping import SHIPPED
from spark_jobs.tables.delta_log import trust_cache
from spark_jobs.tables.diagnose import full_text, java_line, translate_file_errors
from spark_jobs.tables.one_writer import check_store, writer_lock
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

# Names a file that Airflow's task holds locked for as long as it lives, or an object, the task's lease.
TASK_VARIABLE = "PAIRING_TASK_LOCK"
_LOCK_WAIT_S = 300.0

Counts = dict[str, int]


def job_parser(job: str, description: str | None) -> OneLineParser:
    """The arguments that all jobs have."""
    parser = OneLineParser(prog=job, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=pipeline_argument, required=True, help="the pipeline's YAML file")
    parser.add_argument(
        "--warehouse",
        default=warehouse_root(),
        help=f"folder or URI above the pipelines' tables (default: ${WAREHOUSE_VARIABLE}, else .local/warehouse)",
    )
    return parser


def run_job(
    job: str,
    arguments: argparse.Namespace,
    work: Callable[[Warehouse], Mapping[str, Any]],
    lock_wait_s: float = _LOCK_WAIT_S,
    without_spark: Callable[[Tables], Mapping[str, Any] | None] = lambda tables: None,
    own_workers: bool = False,
) -> None:
    """Runs `work` as the only writer of the pipeline and ends the process: status 0, or 1 with one line on standard error.

    `without_spark`: called before; if it returns counts, the job has ended with them. `own_workers`: whether work may be done by workers of this
    process where Spark would do it on this machine, too.
    """
    pipeline: Pipeline = arguments.pipeline
    with exit_without_cleanup(), errors_in_one_line(), ExitStack() as running:
        if own_workers and (cores := cores_here()):
            start_workers(cores)
        end_with_the_task()
        root = warehouse_folder(arguments.warehouse)
        with translate_file_errors(f"{root}/{pipeline.name}"), writer_lock(root, pipeline.name, job, lock_wait_s):
            check_store(warehouse_store(root).at(pipeline.name))
            running.enter_context(trust_cache())
            tables = Tables(root, pipeline)
            try:
                known = without_spark(tables)
                counts = dict(_with_spark(job, pipeline, root, work) if known is None else known)
            except Exception:
                # Steps may be recorded, and a report that fails has judged. The error itself counts.
                with suppress(Exception):
                    write_outcome({"lineage": lineage(job, tables)})
                raise
            write_outcome({"ok": True, "counts": counts, "lineage": lineage(job, tables)})
        print(f"{job}: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing to do"))


def _with_spark(
    job: str, pipeline: Pipeline, root: str, work: Callable[[Warehouse], Mapping[str, Any]]
) -> Mapping[str, Any]:
    def start() -> SparkSession:
        spark = spark_session(job, pipeline.name)
        write_outcome({"application": spark.conf.get("spark.app.id", None)})
        if has_workers() and is_cluster(spark):
            stop_workers()
        return spark

    session = LazySession(start)
    # A server may still be at work for a job that was killed, and knows better where the work is done.
    if not has_workers() or os.environ.get(REMOTE_VARIABLE):
        session()
    try:
        return work(Warehouse(root, pipeline, session))
    finally:
        if session.is_started:
            end_session(session())


@contextmanager
def reading_tables(arguments: argparse.Namespace) -> Iterator[Tables]:
    """The tables for a block that only reads, without the writer's lock and without Spark; ends the process after it as `run_job` does."""
    with exit_without_cleanup(), errors_in_one_line():
        end_with_the_task()
        root = warehouse_folder(arguments.warehouse)
        with translate_file_errors(f"{root}/{arguments.pipeline.name}"):
            yield Tables(root, arguments.pipeline)


@contextmanager
def reading_job(job: str, arguments: argparse.Namespace) -> Iterator[Warehouse]:
    """As `reading_tables`, with a Spark session."""
    with reading_tables(arguments) as tables:
        spark = reading_session(job, tables.pipeline.name)
        write_outcome({"application": spark.conf.get("spark.app.id", None)})
        try:
            yield Warehouse(tables.root, tables.pipeline, spark)
        finally:
            end_session(spark)


@contextmanager
def exit_without_cleanup() -> Iterator[None]:
    """Ends the process after the block with status 0, or that of its SystemExit, without the cleanup of Python and the libraries.

    Threads of C++ libraries that still run during cleanup abort the process now and then (`terminate called without an active exception`,
    status 134). A job that has done all its work would count as failed, and a failed job would lose its status.
    """
    status = 0
    try:
        yield
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    SHIPPED.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def warehouse_folder(given: str) -> str:
    """The folder or URI above the pipelines' tables; a local folder is made absolute. Raises NeedsOperator."""
    try:
        return checked_root(given)
    except StoreRefused as error:
        raise NeedsOperator(str(error)) from None


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Ends the process with status 1 and one line on standard error if the block raises."""
    try:
        yield
    except (JobProblem, BrokenInvariant, PipelineError, OSError) as error:
        _end_with(error, f"{' '.join(str(error).split())}")
    except Exception as error:
        if problem := executor_problem(full_text(error)) or server_problem(error):
            _end_with(problem, str(problem))
        print(without_secrets(traceback.format_exc()), end="", file=sys.stderr)
        first_line = next(iter(str(error).strip().splitlines()), "")
        _end_with(error, (java_line(str(error)) or f"{type(error).__name__}: {first_line}")[:500])


def _end_with(error: Exception, line: str) -> NoReturn:
    end_with(line, 1, retry=not isinstance(error, NeedsOperator | BrokenInvariant | PipelineError))


def end_with_the_task() -> None:
    """Ends this process as soon as the task that PAIRING_TASK_LOCK names is gone; returns at once and watches in a thread.

    Airflow ends the job of a task that it ends itself. But the task's process may die, killed by a person or for want of memory. Its job
    would live on beside the next try, hold the writer's lock, and, if it hangs, block every try.
    """
    if place := os.environ.get(TASK_VARIABLE):
        threading.Thread(target=_end_when_gone, args=(place,), daemon=True).start()


def _end_when_gone(place: str) -> None:
    # The job itself says what is wrong with its store.
    with suppress(StoreRefused):
        _wait_for_the_end_of(place)
        try:
            # The task may have been the only reader of this stream.
            print("error: the Airflow task that started this job is gone, so the job ends, too", file=sys.stderr, flush=True)
        finally:
            interrupt_work()
            # As sudden as a kill -9, which every step survives; an orderly end would wait for the work in hand.
            os._exit(1)


def _wait_for_the_end_of(place: str) -> None:
    if not local_folder(place):
        folder, _, name = place.rpartition("/")
        wait_for_end(warehouse_store(folder), name)
        return
    with open(place, encoding="utf-8") as file:
        # The kernel frees the task's lock when its process ends.
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
