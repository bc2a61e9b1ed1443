"""What every job does around its work: arguments, the writer's lock, a session, one clear line when it fails.

A job tells how it ended in a file, too, if PAIRING_OUTCOME names one: `{"ok": true, "counts": {…}}` or
`{"ok": false, "error": "…", "retry": true|false}`, in both cases with the `application` as Spark calls it, and with the `news` that people
are to be told, if there are any. Airflow's operator reads it, so
the reason stands where people look.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from include.config.pipeline import Pipeline, PipelineError
from include.config.secret_values import without_secrets
from include.config.store import WAREHOUSE_VARIABLE, StoreRefused, checked_root, warehouse_root, warehouse_store
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.job.arguments import OneLineParser, pipeline_argument, tell_outcome
from spark_jobs.job.task_watch import end_with_the_task
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.session import end_session, spark_session
from spark_jobs.tables.delta_log import looking_once
from spark_jobs.tables.diagnose import files_named, java_line
from spark_jobs.tables.store_probe import check_store
from spark_jobs.tables.warehouse import Warehouse
from spark_jobs.tables.writer_lock import writer_lock

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
) -> None:
    """Runs `work` as the only writer of the pipeline and ends the process: 0, or 1 with one line on standard error."""
    pipeline: Pipeline = arguments.pipeline
    with ending_at_once(), told_in_one_line(), ExitStack() as running:
        end_with_the_task()
        root = warehouse_folder(arguments.warehouse)
        with files_named(f"{root}/{pipeline.name}"), writer_lock(root, pipeline.name, job, lock_wait_s):
            check_store(warehouse_store(root).at(pipeline.name))
            running.enter_context(looking_once())
            spark = spark_session(job, pipeline.name)
            try:
                tell_outcome({"application": spark.conf.get("spark.app.id", None)})
                counts = dict(work(Warehouse(spark, root, pipeline)))
            finally:
                end_session(spark)
        tell_outcome({"ok": True, "counts": counts})
        print(f"{job}: " + (", ".join(f"{name} {count}" for name, count in counts.items()) or "nothing to do"))


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ends the process with the block, with status 0 or that of its SystemExit, without what Python and the libraries do at its end.

    Threads of C++ libraries that are still running then abort it now and then (`terminate called without an active exception`,
    status 134): a job that has done all its work would count as failed, and a failed one would have no status of ours.
    """
    status = 0
    try:
        yield
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def warehouse_folder(given: str) -> str:
    """The folder or URI above the pipelines' tables as jobs use it; a local folder is absolute. Raises NeedsOperator."""
    try:
        return checked_root(given)
    except StoreRefused as error:
        raise NeedsOperator(str(error)) from None


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Ends the process with status 1 and one line on standard error if the block raises."""
    try:
        yield
    except (JobProblem, BrokenInvariant, PipelineError, OSError) as error:
        _end_with(error, f"{' '.join(str(error).split())}")
    except Exception as error:
        print(without_secrets(traceback.format_exc()), end="", file=sys.stderr)
        first_line = next(iter(str(error).strip().splitlines()), "")
        _end_with(error, (java_line(str(error)) or f"{type(error).__name__}: {first_line}")[:500])


def _end_with(error: Exception, line: str) -> None:
    line = without_secrets(line)
    tell_outcome(
        {"ok": False, "error": line, "retry": not isinstance(error, NeedsOperator | BrokenInvariant | PipelineError)}
    )
    print(f"error: {line}", file=sys.stderr, flush=True)
    sys.exit(1)
