"""What Spark, Delta and the operating system say, and the line that a job makes of it."""

import errno
import os

import pytest

from spark_jobs.problems import JobProblem, NeedsOperator
from spark_jobs.storage.faults import files_named, java_line

WRAPPED = "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n"
LOG = "/w/calls/t/_delta_log"
UNREADABLE = "org.apache.spark.SparkException: [FAILED_READ_FILE.{}] Encountered error while reading file {} SQLSTATE: KD001"


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (
            RuntimeError(f"{WRAPPED}Caused by: java.io.IOException: No space left on device"),
            JobProblem,
            "/w/calls/t cannot be written (No space left on device): free space there",
        ),
        (
            OSError(errno.EROFS, os.strerror(errno.EROFS), "/w/calls/writer.lock"),
            NeedsOperator,
            "/w/calls/writer.lock cannot be written",
        ),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            JobProblem,
            "/w/calls/t cannot be written (No space left on device)",
        ),
        (
            RuntimeError("[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/w/calls/u/_delta_log"),
            NeedsOperator,
            "/w/calls/u cannot be written",
        ),
        (
            RuntimeError(f"[DELTA_TRUNCATED_TRANSACTION_LOG] file:{LOG}/00000000000000000000.json: Unable to reconstruct"),
            NeedsOperator,
            f"{LOG}/00000000000000000000.json is missing: the table is damaged",
        ),
        (
            RuntimeError("[DELTA_VERSIONS_NOT_CONTIGUOUS] Versions (0, 1, 3, 4) are not contiguous."),
            NeedsOperator,
            f"{LOG}/00000000000000000002.json is missing",
        ),
        (
            RuntimeError(UNREADABLE.format("NO_HINT", f"file://{LOG}/00000000000000000003.json. ")),
            NeedsOperator,
            f"{LOG}/00000000000000000003.json is cut off or overwritten",
        ),
        (
            RuntimeError(UNREADABLE.format("FILE_NOT_EXIST", "file:/w/calls/u/part-0.snappy.parquet. File does not exist.")),
            NeedsOperator,
            "/w/calls/u/part-0.snappy.parquet is missing",
        ),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:60].strip(),
)
def test_named(error, kind, line):
    with pytest.raises(JobProblem) as raised, files_named("/w/calls/t"):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value).startswith(line) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("something else"), OSError(errno.ENOENT, "No such file", "/x"), NeedsOperator("told")]
)
def test_others_pass(error):
    with pytest.raises(type(error)) as raised, files_named("/w/calls/t"):
        raise error
    assert raised.value is error


def test_java_line():
    assert java_line(WRAPPED) == "SparkException: [TASK_WRITE_FAILED] Task failed."
    assert java_line("nothing of the kind") is None
