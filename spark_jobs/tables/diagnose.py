"""Translates errors about files of a warehouse, or about its store, into one line with the remedy; libraries raise them as stack traces or XML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from obstore.exceptions import BaseError

from include.config.pipeline import PipelineError
from include.config.store import StoreRefused, local_folder
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.executors import failed_host

# Texts of the operating system. Problems of the first kind may pass by themselves, those of the second do not.
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
_FORBIDDEN = ("Read-only file system", "Permission denied", "Operation not permitted", "Not a directory")
# Python's text of such an error, with the place; the same from a worker.
_IN_PYTHON = re.compile(r"\[Errno \d+\] [^\n]{0,2000}?: '([^'\n]+)'")
# The driver gets a worker's one line at the end of a stack trace.
_IN_WORKER = re.compile(
    r"spark_jobs\.(?:faults\.problems|kafka\.settings|formats\.registry)\.(JobProblem|NeedsOperator|BrokerProblem|RegistryProblem): ([^\n]+)"
)
_JAVA = re.compile(r"^: (?:[\w$]+\.)*([\w$]+): (.*)$", re.MULTILINE)
# Errors of the object-store client; errors about Kafka may contain the same signs.
_STORE_ERROR = re.compile(
    r"Error performing|Generic (?:S3|MicrosoftAzure|GCS|HTTP)\w* error|obstore|object store|Object at location"
)
_RESUMES = "completed steps are kept; the next run resumes"


class _StoreError(NamedTuple):
    """An error of a store, recognised by its text."""

    sign: str
    meaning: str
    remedy: str
    passes: bool = False  # whether trying again can help


_CONNECTION = "the connection warehouse_default (PAIRING_STORE outside Airflow)"
# The first that fits counts: exact signs stand before general ones.
_STORE_ERRORS = (
    _StoreError("NoSuchBucket|ContainerNotFound|The specified bucket does not exist", "there is no such bucket or container",
                "create it, or correct PAIRING_WAREHOUSE"),
    _StoreError("InvalidBucketName|InvalidResourceName|OutOfRangeInput", "the bucket's or container's name is not valid", "correct PAIRING_WAREHOUSE"),
    _StoreError("ExpiredToken|TokenRefreshRequired|token (?:has|is) expired|RequestTimeTooSkewed", "the credentials have expired",
                f"renew them in {_CONNECTION}", True),
    _StoreError("InvalidAccessKeyId|XAdminUserNotFound|SignatureDoesNotMatch|InvalidToken|AuthenticationFailed|InvalidAuthenticationInfo"
                "|failed to authenticate"
                "|UnauthenticatedError|401 Unauthorized",
                "the store does not accept the credentials", f"correct them in {_CONNECTION}"),
    _StoreError("PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|301 Moved|region.{0,40}is wrong|Received redirect without LOCATION",
                "the store is in another region or at another endpoint", f"set region and endpoint in {_CONNECTION}"),
    _StoreError("AccessDenied|AuthorizationPermissionMismatch|AuthorizationFailure|403 Forbidden", "the store does not allow it",
                "the user needs the rights to get, put, list and delete objects there"),
    _StoreError("NotImplemented|501 Not Implemented", "the store lacks what a table needs", "use one that honours If-None-Match (put-if-absent)"),
    _StoreError("SlowDown|ServerBusy|TooManyRequests|503 Service|429 Too", "the store asks for fewer requests", "try again later", True),
    _StoreError("InternalError|500 Internal|502 Bad|504 Gateway|OperationTimedOut", "the store had an error of its own", "try again later", True),
    _StoreError("missing credentials|no credentials|Error getting credentials|CredentialsNotLoaded|169\\.254\\.169\\.254|metadata server",
                "there are no credentials for the store", f"give them in {_CONNECTION}, or give the machine a role"),
    _StoreError("error sending request|Connection refused|dns error|tcp connect error|connection closed|Connection reset|timed out|HTTP error"
                "|error decoding response",
                "the store does not answer", f"check the network and the endpoint in {_CONNECTION}; try again when it answers", True),
)  # fmt: skip


@contextmanager
def translate_file_errors(place: str) -> Iterator[None]:
    """Raises a JobProblem with place and remedy if the block fails because of files of a warehouse or its store; other errors pass.

    `place`: the table, or the pipeline's folder, that the block works on. If the error names a file, the text has that file.
    """
    try:
        yield
    except (JobProblem, BrokenInvariant, PipelineError):
        raise
    except StoreRefused as error:
        raise NeedsOperator(str(error)) from None
    except OSError as error:
        # delta-rs sets a text and no number.
        _raise_if_known(error.strerror or str(error), str(error.filename or place))
        raise
    except Exception as error:
        _raise_if_known(full_text(error), place)
        if isinstance(error, BaseError):
            raise JobProblem(f"{place} cannot be used: {str(error).splitlines()[0]}; {_RESUMES}") from None
        raise


def full_text(error: Exception) -> str:
    """The text of an error with its causes, which Spark has only in the stack trace."""
    trace = getattr(error, "getStackTrace", lambda: None)()
    return f"{error}\n{trace or ''}"


def java_line(text: str) -> str | None:
    """The Java exception in the text of an error that PySpark has no class for: `SparkException: text`."""
    found = _JAVA.search(text)
    return f"{found[1]}: {found[2]}" if found else None


def _raise_if_known(text: str, place: str) -> None:
    if found := _IN_WORKER.search(text):
        raise (NeedsOperator if found[1] == "NeedsOperator" else JobProblem)(found[2]) from None
    if found := _IN_PYTHON.search(text):
        place = found[1]
    if local_folder(place) is None:
        # Each machine may have rights, and a way to the store, of its own.
        asked = f" (asked by executor host {host})" if (host := failed_host(text)) else ""
        for error in _STORE_ERRORS:
            if _STORE_ERROR.search(text) and re.search(error.sign, text):
                problem = JobProblem(
                    f"the store of {place} cannot be used: {error.meaning}{asked}: {error.remedy}; {_RESUMES}"
                )
                raise (problem if error.passes else NeedsOperator(str(problem))) from None
        return
    for reason in _FULL:
        if reason in text:
            raise JobProblem(f"{place} cannot be written ({reason}): free space there; {_RESUMES}") from None
    for reason in _FORBIDDEN:
        if reason in text:
            raise NeedsOperator(
                f"{place} cannot be written ({reason}): make it a folder that the user of the jobs may write; {_RESUMES}"
            ) from None


def damaged(file: str, what: str) -> NeedsOperator:
    """The problem of a damaged file of a table; `what`: "is missing", say."""
    return NeedsOperator(f"{file} {what}: the table is damaged, put all tables of the pipeline back from one backup")


def log_file(table: str, version: int) -> str:
    """The file of a table's log that commits a version."""
    return f"{table}/_delta_log/{version:020d}.json"
