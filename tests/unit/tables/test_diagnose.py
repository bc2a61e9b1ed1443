"""What the operating system, object stores and libraries say, and the line that a job makes of it."""

import errno
import os

import pytest
from deltalake.exceptions import DeltaError
from obstore.exceptions import GenericError, PermissionDeniedError

from include.config.store import StoreRefused
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables import diagnose as faults
from spark_jobs.tables.diagnose import damaged, java_line, log_file, translate_file_errors

WRAPPED = "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed.\n"
IN_WORKER = 'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "x.py", line 1\n{}\n\n\tat java.lang.Thread'
DEBUG = '\n\nDebug source:\nGeneric {\n    store: "S3",\n    source: Retry(…)\n}'


def raised_by(error, place):
    with pytest.raises(JobProblem) as raised, translate_file_errors(place):
        raise error
    assert "\n" not in str(raised.value)
    return raised.value


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
            OSError("Generic LocalFileSystem error\n  ↳ Unable to rename file\n  ↳ No space left on device (os error 28)"),
            JobProblem,
            "/w/calls/t cannot be written (No space left on device)",
        ),
        (
            GenericError(
                f"Generic LocalFileSystem error: Unable to open file /w/x#1: Permission denied (os error 13){DEBUG}"
            ),
            NeedsOperator,
            "/w/calls/t cannot be written (Permission denied): make it a folder that the user of the jobs may write",
        ),
        (
            RuntimeError(IN_WORKER.format("OSError: [Errno 122] Disk quota exceeded: '/w/calls/u'")),
            JobProblem,
            "/w/calls/u cannot be written (Disk quota exceeded)",
        ),
        (
            RuntimeError(
                IN_WORKER.format(
                    "spark_jobs.faults.problems.NeedsOperator: /w/calls/u/part-0 is missing: the table is damaged"
                )
            ),
            NeedsOperator,
            "/w/calls/u/part-0 is missing: the table is damaged",
        ),
        (
            RuntimeError(IN_WORKER.format("spark_jobs.kafka.settings.BrokerProblem: no answer from Kafka")),
            JobProblem,
            "no answer from Kafka",
        ),
        (
            GenericError(f"Generic LocalFileSystem error: something new{DEBUG}"),
            JobProblem,
            "/w/calls/t cannot be used: Generic LocalFileSystem error: something new; completed steps are kept",
        ),
        (StoreRefused("PAIRING_STORE is not JSON"), NeedsOperator, "PAIRING_STORE is not JSON"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:60].strip(),
)
def test_named(error, kind, line):
    problem = raised_by(error, "/w/calls/t")
    assert type(problem) is kind
    assert str(problem).startswith(line)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("something else"),
        OSError(errno.ENOENT, "No such file", "/x"),
        NeedsOperator("told"),
        # Of a store, where there is a folder.
        RuntimeError("Generic S3 error: Error performing GET http://x: AccessDenied"),
    ],
)
def test_others_pass(error):
    with pytest.raises(type(error)) as raised, translate_file_errors("/w/calls/t"):
        raise error
    assert raised.value is error


# Of stores


def answered(
    status, code, message="…", store="S3", url="https://s3.eu-central-1.amazonaws.com/lake/calls/raw/part-0.parquet"
):
    """As the client words the answer of a server."""
    return (
        f"Generic {store} error: Error performing PUT {url} in 93.1ms - Server returned non-2xx status code: {status}: "
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    )


def unsent(url, why):
    """As the client words it where there is no answer."""
    return (
        f"Generic S3 error: Error performing PUT {url} in 5.02s, after 2 retries, max_retries: 2, retry_timeout: 10s  - "
        f"HTTP error: error sending request for url ({url}): {why}"
    )


BUCKET = "there is no such bucket or container"
INVALID_NAME = "the bucket's or container's name is not valid"
EXPIRED = "the credentials have expired"
CREDENTIALS = "the store does not accept the credentials"
ELSEWHERE = "the store is in another region or at another endpoint"
FORBIDDEN = "the store does not allow it"
LACKS = "the store lacks what a table needs"
SLOWER = "the store asks for fewer requests"
ITS_OWN = "the store had an error of its own"
NONE_GIVEN = "there are no credentials for the store"
SILENT = "the store does not answer"
PASSING = {EXPIRED, SLOWER, ITS_OWN, SILENT}
SAID = [
    (answered("404 Not Found", "NoSuchBucket", "The specified bucket does not exist"), BUCKET),
    (answered("404 Not Found", "ContainerNotFound", store="MicrosoftAzure"), BUCKET),
    (answered("404 Not Found", "x", "The specified bucket does not exist.", store="GCS"), BUCKET),
    (answered("400 Bad Request", "InvalidBucketName"), INVALID_NAME),
    (answered("400 Bad Request", "InvalidResourceName", store="MicrosoftAzure"), INVALID_NAME),
    (answered("400 Bad Request", "OutOfRangeInput", store="MicrosoftAzure"), INVALID_NAME),
    (answered("400 Bad Request", "ExpiredToken", "The provided token has expired."), EXPIRED),
    (answered("403 Forbidden", "RequestTimeTooSkewed"), EXPIRED),
    (answered("403 Forbidden", "InvalidAccessKeyId"), CREDENTIALS),
    (answered("403 Forbidden", "SignatureDoesNotMatch"), CREDENTIALS),
    (answered("400 Bad Request", "InvalidToken"), CREDENTIALS),
    (answered("403 Forbidden", "AuthenticationFailed", store="MicrosoftAzure"), CREDENTIALS),
    (answered("401 Unauthorized", "x", store="GCS"), CREDENTIALS),
    (answered("301 Moved Permanently", "PermanentRedirect"), ELSEWHERE),
    (answered("400 Bad Request", "AuthorizationHeaderMalformed", "the region 'eu' is wrong; expecting 'us'"), ELSEWHERE),
    (
        "Generic S3 error: Received redirect without LOCATION, this normally indicates an incorrectly configured region",
        ELSEWHERE,
    ),
    (answered("403 Forbidden", "AccessDenied"), FORBIDDEN),
    (answered("403 Forbidden", "AuthorizationPermissionMismatch", store="MicrosoftAzure"), FORBIDDEN),
    (answered("403 Forbidden", "x", store="GCS"), FORBIDDEN),
    (answered("501 Not Implemented", "NotImplemented", "A header you provided implies functionality"), LACKS),
    (answered("503 Service Unavailable", "SlowDown"), SLOWER),
    (answered("503 Service Unavailable", "ServerBusy", store="MicrosoftAzure"), SLOWER),
    (answered("429 Too Many Requests", "x", store="GCS"), SLOWER),
    (answered("500 Internal Server Error", "InternalError"), ITS_OWN),
    (answered("500 Internal Server Error", "OperationTimedOut", store="MicrosoftAzure"), ITS_OWN),
    (answered("502 Bad Gateway", "x", store="GCS"), ITS_OWN),
    (unsent("http://169.254.169.254/latest/api/token", "tcp connect error"), NONE_GIVEN),
    ("Generic GCS error: Error performing token request: no credentials found", NONE_GIVEN),
    (unsent("http://one:9000/lake", "tcp connect error: Connection refused (os error 111)"), SILENT),
    (unsent("http://one:9000/lake", "dns error: failed to lookup address information"), SILENT),
    ("Generic S3 error: Error performing GET http://one:9000/lake in 30s - HTTP error: operation timed out", SILENT),
    ("Generic S3 error: HTTP error: request or response body error", SILENT),
]
PLACE = "s3://lake/calls/raw"


@pytest.mark.parametrize(("text", "meaning"), SAID, ids=lambda value: value[:90] if value.startswith("Generic") else "")
@pytest.mark.parametrize(
    "error", [GenericError, PermissionDeniedError, OSError, DeltaError, RuntimeError], ids=lambda kind: kind.__name__
)
def test_what_a_store_says_is_told_with_its_remedy(text, meaning, error):
    problem = raised_by(error(f"{text}{DEBUG}"), PLACE)
    assert str(problem).startswith(f"the store of {PLACE} cannot be used: {meaning}: ")
    assert str(problem).endswith("; completed steps are kept; the next run resumes")
    assert type(problem) is (JobProblem if meaning in PASSING else NeedsOperator)


@pytest.mark.parametrize(("text", "meaning"), SAID, ids=lambda value: value[:90] if value.startswith("Generic") else "")
def test_what_a_store_says_in_a_worker_is_told_with_the_table_that_it_worked_on(text, meaning):
    told = OSError(errno.EIO, " ".join(text.split()), PLACE)
    problem = raised_by(RuntimeError(IN_WORKER.format(f"OSError: {told}")), "s3://lake/calls")
    assert str(problem).startswith(f"the store of {PLACE} cannot be used: {meaning}: ")


@pytest.mark.parametrize(
    ("executor", "asked"), [("1", " (asked by executor host 10.0.0.7)"), ("driver", "")], ids=["cluster", "local"]
)
def test_an_executor_that_a_store_refuses_is_named(executor, asked):
    told = OSError(errno.EIO, answered("403 Forbidden", "AccessDenied").replace("\n", " "), PLACE)
    failed = f"Lost task 0.3 in stage 0.0 (TID 3) (10.0.0.7 executor {executor}): {IN_WORKER.format(f'OSError: {told}')}"
    problem = raised_by(RuntimeError(failed), "s3://lake/calls")
    assert str(problem).startswith(f"the store of {PLACE} cannot be used: {FORBIDDEN}{asked}: the user needs the rights")


def test_every_sign_that_is_known_is_tried():
    assert {said.meaning for said in faults._STORE_ERRORS} == {meaning for _, meaning in SAID}
    assert {said.meaning for said in faults._STORE_ERRORS if said.passes} == PASSING


@pytest.mark.parametrize(
    "error",
    [
        # Others say the same of Kafka.
        RuntimeError("confluent_kafka: one:9092: Connection refused"),
        RuntimeError("Generic S3 error: something new"),
        OSError(errno.EIO, "Generic S3 error: something new", PLACE),
    ],
)
def test_what_nobody_knows_of_a_store_passes(error):
    with pytest.raises(type(error)) as raised, translate_file_errors("s3://lake/calls"):
        raise error
    assert raised.value is error


def test_what_nobody_knows_of_the_client_is_one_line():
    problem = raised_by(GenericError(f"Generic MicrosoftAzure error: Account must be specified{DEBUG}"), "az://box/calls")
    assert str(problem) == (
        "az://box/calls cannot be used: Generic MicrosoftAzure error: Account must be specified; completed steps are kept; the next run resumes"
    )


def test_damage_is_told_by_the_file():
    file = log_file("s3://lake/calls/raw", 17)
    assert file == "s3://lake/calls/raw/_delta_log/00000000000000000017.json"
    assert (
        str(damaged(file, "is empty"))
        == f"{file} is empty: the table is damaged, put all tables of the pipeline back from one backup"
    )


def test_java_line():
    assert java_line(WRAPPED) == "SparkException: [TASK_WRITE_FAILED] Task failed."
    assert java_line("nothing of the kind") is None
