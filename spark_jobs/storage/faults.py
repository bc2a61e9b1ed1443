"""What is wrong with the files of a warehouse, in one line, where Spark and Delta have a stack trace for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from include.pipeline_config import PipelineError
from spark_jobs.pairing.conservation import BrokenInvariant
from spark_jobs.problems import JobProblem, NeedsOperator

# What the operating system says, and what helps. The first kind may pass by itself, the second does not.
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_FORBIDDEN = ("Read-only file system", "Permission denied", "Operation not permitted", "Not a directory")
_NO_FOLDER = re.compile(r"DELTA_CANNOT_CREATE_LOG_PATH\] Cannot create (?:file:)?(\S+)/_delta_log")

_TRUNCATED = re.compile(r"DELTA_TRUNCATED_TRANSACTION_LOG\] (?:file:)?(\S+): ")
_GAP = re.compile(r"DELTA_VERSIONS_NOT_CONTIGUOUS\] Versions \(([\d, ]+)\)")
_UNREADABLE = re.compile(r"FAILED_READ_FILE\.(\w+)\] Encountered error while reading file (?:file:(?://)?)?(\S+?)\.?\s")
# As Python tells it, with the place, also out of a worker.
_IN_PYTHON = re.compile(r"\[Errno \d+\] [^:\n\[]+: '([^'\n]+)'")
_JAVA = re.compile(r"^: (?:[\w$]+\.)*([\w$]+): (.*)$", re.MULTILINE)


@contextmanager
def files_named(place: str) -> Iterator[None]:
    """Raises a JobProblem with file and remedy where the block fails by the files of a warehouse; other errors pass.

    `place`: the table, or the pipeline's folder, that the block is at work on. Where the error names a file itself, that is told.
    """
    try:
        yield
    except (JobProblem, BrokenInvariant, PipelineError):
        raise
    except OSError as error:
        # delta-rs gives a text and no number.
        _raise_if_known(error.strerror or str(error), str(error.filename or place))
        raise
    except Exception as error:
        _raise_if_known(full_text(error), place)
        raise


def full_text(error: Exception) -> str:
    """What an error says, with its causes: Spark has those only in the stack trace."""
    trace = getattr(error, "getStackTrace", lambda: None)()
    return f"{error}\n{trace or ''}"


def java_line(text: str) -> str | None:
    """The Java exception in the text of an error that PySpark has no class for: `SparkException: what it says`."""
    found = _JAVA.search(text)
    return f"{found[1]}: {found[2]}" if found else None


def _raise_if_known(text: str, place: str) -> None:
    if found := _IN_PYTHON.search(text):
        place = found[1]
    for reason in _FULL:
        if reason in text:
            raise JobProblem(
                f"{place} cannot be written ({reason}): free space there; what is done is done, the next run goes on behind it"
            ) from None
    for reason in _FORBIDDEN:
        if reason in text:
            _raise_forbidden(place, reason)
    if found := _NO_FOLDER.search(text):
        _raise_forbidden(found[1], "it is no folder, or its folder is not writable")
    if found := _TRUNCATED.search(text):
        raise damaged(found[1], "is missing") from None
    if found := _GAP.search(text):
        versions = {int(number) for number in found[1].split(",")}
        missing = min(set(range(min(versions), max(versions))) - versions)
        raise damaged(log_file(place, missing), "is missing") from None
    if found := _UNREADABLE.search(text):
        raise damaged(found[2], "is missing" if found[1] == "FILE_NOT_EXIST" else "is cut off or overwritten") from None


def _raise_forbidden(place: str, reason: str) -> NoReturn:
    raise NeedsOperator(
        f"{place} cannot be written ({reason}): make it a folder that the user of the jobs may write; what is done is done, the "
        "next run goes on behind it"
    ) from None


def damaged(file: str, what: str) -> NeedsOperator:
    """The problem of a file of a table that `is missing`, or `is` something else."""
    return NeedsOperator(f"{file} {what}: the table is damaged, put all tables of the pipeline back from one backup")


def log_file(table: str, version: int) -> str:
    """The file of a table's log that makes a version."""
    return f"{table}/_delta_log/{version:020d}.json"
