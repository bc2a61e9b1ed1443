"""What a job waits for, written down by the job itself: the bench of a run copies this into its copy of the project as `spark_jobs.spans`.

A line of JSON for each moment and each call of `CALLS`, in a file with the job's name below PAIRING_SPANS.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Module, name in it, and what the table calls it.
CALLS = (
    ("spark_jobs.spark.session", "spark_session", "session"),
    ("spark_jobs.tables.one_writer", "check_store", "store's probe"),
    ("spark_jobs.tables.commit", "commit", "commits"),
    ("spark_jobs.tables.commit", "commit_rows", "commits of rows"),
    ("spark_jobs.tables.delta_log", "newest_table", "tables opened"),
    ("spark_jobs.tables.delta_log", "table_at_version", "versions opened"),
    ("spark_jobs.tables.ledger", "Ledger.append", "ledger rows written"),
    ("spark_jobs.tables.ledger", "Ledger.plan", "plan written"),
    ("spark_jobs.tables.ledger", "Ledger.rows", "ledger rows read"),
    ("spark_jobs.tables.ledger", "Ledger.last_ids", "last batches asked"),
    ("spark_jobs.tables.integrity", "check_ledger", "tables checked"),
    ("spark_jobs.tables.integrity", "check_tables", "tables checked"),
    ("spark_jobs.kafka.input_topics", "ask_inputs", "Kafka: input topics"),
    ("spark_jobs.kafka.input_topics", "show_landed", "Kafka: landed offsets"),
    ("spark_jobs.kafka.offsets", "ask_broker", "Kafka: topics"),
    ("spark_jobs.kafka.offsets", "ends_written", "Kafka: ends of the output"),
    ("spark_jobs.kafka.output_topic", "output_topic", "Kafka: output topic"),
    ("spark_jobs.kafka.output_topic", "positions_kept_minutes", "Kafka: positions kept"),
    ("spark_jobs.kafka.fencing", "fence_and_read_positions", "Kafka: fencing"),
    ("spark_jobs.kafka.open_transactions", "held_partitions", "Kafka: held partitions"),
    ("spark_jobs.quality.suite", "judge", "judging"),
    ("spark_jobs.quality.suite", "warm_up", "Great Expectations"),
    ("spark_jobs.quality.pages", "write_pages", "page written"),
    ("spark_jobs.quality.current_pages", "write_index", "index written"),
    ("spark_jobs.quality.trend_files", "add_to_trend", "trend written"),
    ("spark_jobs.quality.metrics", "load_report_input", "report's input"),
    ("spark_jobs.quality.metrics", "measure", "measuring"),
    ("spark_jobs.quality.offenders", "find_offenders", "offenders"),
    ("spark_jobs.stages.landed_counts", "landed_counts", "counting landed rows"),
    ("spark_jobs.stages.pair", "decide_batch", "deciding"),
)
# Of DataFrames: each is a query.
QUERIES = ("collect", "toArrow", "count")


def trace() -> None:
    """Wraps the calls. A job runs it before it imports anything of the project."""
    # spark-submit runs a file, a fork the module of a name.
    job = Path(sys.argv[0]).stem
    lines = (Path(os.environ["PAIRING_SPANS"]) / job).open("a", buffering=1)

    def note(name: str, begin: float, end: float) -> None:
        lines.write(json.dumps({"name": name, "begin": begin, "end": end}) + "\n")

    note("process", time.time(), 0)
    importlib.import_module(f"spark_jobs.{job}")
    names = _names()
    for module, name, label in CALLS:
        if module in sys.modules:
            _wrap(sys.modules[module], name, label, note, names)
    from pyspark.sql import DataFrame

    frames = {DataFrame}
    if "pyspark.sql.connect.dataframe" in sys.modules or os.environ.get("PAIRING_SPARK_REMOTE"):
        frames = {importlib.import_module("pyspark.sql.connect.dataframe").DataFrame}
    for frame in frames:
        for name in QUERIES:
            setattr(frame, name, _timed(getattr(frame, name), "queries", note))
    run = importlib.import_module("spark_jobs.job.run")
    started, ended = run.end_with_the_task, os._exit

    def begin() -> None:
        note("imported", time.time(), 0)
        started()

    def end(status: int) -> None:
        note("end", time.time(), 0)
        ended(status)

    run.end_with_the_task = begin
    run.os._exit = end
    atexit.register(lines.close)


def _names() -> dict[int, list[tuple[Any, str]]]:
    """By the id of a function, the modules of the project that have it and its name there. Found once: a look for each call takes a tenth of a second."""
    found: dict[int, list[tuple[Any, str]]] = {}
    for module in [each for key, each in sys.modules.items() if key.startswith("spark_jobs")]:
        for name, value in vars(module).items():
            found.setdefault(id(value), []).append((module, name))
    return found


def _wrap(
    module: Any,
    name: str,
    label: str,
    note: Callable[[str, float, float], None],
    names: dict[int, list[tuple[Any, str]]],
) -> None:
    owner, _, method = name.rpartition(".")
    if owner:
        setattr(getattr(module, owner), method, _timed(getattr(getattr(module, owner), method), label, note))
        return
    call = getattr(module, name)
    timed = _timed(call, label, note)
    for other, its_name in names[id(call)]:
        setattr(other, its_name, timed)


def _timed(call: Callable[..., Any], label: str, note: Callable[[str, float, float], None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*arguments: Any, **settings: Any) -> Any:
        begin = time.time()
        try:
            return call(*arguments, **settings)
        finally:
            note(label, begin, time.time())

    return timed
