"""The Spark session of a job. What differs between machines (master, jars, memory) comes from the submit, not from here.

With PAIRING_SPARK_REMOTE=sc://host:port the job uses a running Spark Connect server. That spares the start of a JVM that has compiled
nothing yet: a small batch takes a third of the time.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from include.config.project import REMOTE_VARIABLE
from include.config.store import hide_cloud_variables
from spark_jobs.faults.problems import JobProblem
from spark_jobs.spark.shipping import ship_code

_DEFAULT_PORT = 15002
# local, local[4], local[*], and the last two with a number of failures.
_LOCAL = re.compile(r"local(\[((?P<cores>\d{1,4})|(?P<all>\*))(, ?\d{1,9})?\])?")
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")

# Otherwise PySpark looks up the caller of each function of a column, and tells Spark: half the time in which a report builds its plans.
_NO_CALL_SITES = ("spark.python.sql.dataFrameDebugging.enabled", "false")
# Of the rows that Spark hands over to Python in one piece.
BYTES_TO_PYTHON = 16_000_000
# Rows of one table. From here on compiling a plan, or 0.1 s to look for a faster way, takes less time than it saves.
MANY_ROWS = 100_000
# How long the end of a job may wait for a server to end the job's work there.
_INTERRUPTED_WITHIN_S = 2.0
# What gRPC says of a server that is gone, in an error of Spark's client.
_GONE = re.compile(r'StatusCode\.UNAVAILABLE(?:\s+details = "(?P<why>.{0,300})")?')
# The writer's session on a server, while it has one.
_writing: list[SparkSession] = []


class NoSparkServer(JobProblem):
    """Neither a server nor a master answers at the address."""


class LazySession:
    """A writer's session, which starts when it is first asked for: most jobs with workers of their own need none."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start, self._lock, self._session = start, threading.Lock(), list[SparkSession]()

    def __call__(self) -> SparkSession:
        # A job may ask from several threads.
        with self._lock:
            if not self._session:
                self._session.append(self._start())
        return self._session[0]

    @property
    def is_started(self) -> bool:
        return bool(self._session)


def cores_here() -> int:
    """How many cores of this machine Spark would use, as far as can be seen without asking a server; 0 if it works elsewhere."""
    cores = os.cpu_count() or 1
    if server := os.environ.get(REMOTE_VARIABLE):
        return cores if urlsplit(server).hostname in _THIS_MACHINE else 0
    # spark-submit sets it. What a session that starts by itself would be told in this variable is not looked into.
    master = os.environ.get("MASTER") or ("" if "PYSPARK_SUBMIT_ARGS" in os.environ else _default_master())
    local = _LOCAL.fullmatch(master)
    return 0 if not local else int(local["cores"]) if local["cores"] else cores if local["all"] else 1


def _default_master() -> str:
    """The one that Spark's file of defaults names, by which a session starts without spark-submit."""
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", "/"), "conf")
    with suppress(OSError), open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8") as file:
        for line in file:
            name, *value = line.replace("=", " ", 1).split(maxsplit=1)[:2] or [""]
            if name == "spark.master" and value:
                return value[0].strip()
    return "local[*]"


def spark_session(job: str, pipeline: str) -> SparkSession:
    """A session of a writer; times are UTC whatever the machine's zone is.

    Only the pipeline's writer may call this; it ends the session with `end_session`. Raises NoSparkServer.
    """
    if server := os.environ.get(REMOTE_VARIABLE):
        _writing[:] = [_attach(server, pipeline, takes_over=True)]
        return _writing[0]
    return _start(job, pipeline)


def reading_session(job: str, pipeline: str) -> SparkSession:
    """A session for a job that only reads, beside the pipeline's writer; it ends with `end_session`. Raises NoSparkServer."""
    server = os.environ.get(REMOTE_VARIABLE)
    return _attach(server, f"{pipeline} reads", takes_over=False) if server else _start(job, pipeline)


def end_session(spark: SparkSession) -> None:
    """Ends the session of a job; a session on a server stays for the pipeline's next job of the kind."""
    _writing.clear()
    if os.environ.get(REMOTE_VARIABLE):
        spark.client.close()
    else:
        spark.stop()


def interrupt_work() -> None:
    """Ends what this process has the server do for a writer, if there is a server and it answers soon; the next writer ends it in any case."""
    for spark in _writing[:]:
        asks = threading.Thread(target=spark.interruptAll, daemon=True)
        asks.start()
        asks.join(_INTERRUPTED_WITHIN_S)


def _start(job: str, pipeline: str) -> SparkSession:
    hide_cloud_variables(os.environ)
    try:
        builder = SparkSession.builder.appName(f"{pipeline}.{job}").config(*_NO_CALL_SITES)
        spark = _prepared(builder.getOrCreate())
    except Exception as error:
        # What Spark says when it has given up a master that did not answer for a minute.
        if "stopped SparkContext" in str(error):
            master = os.environ.get("MASTER")
            raise NoSparkServer(f"no Spark master answers at {master}: start it, or correct spark_default") from None
        raise
    # The first query loads classes and starts Python for a second, while the job still asks the tables and the broker.
    threading.Thread(target=_first_query, args=(spark,), daemon=True).start()
    return spark


def _first_query(spark: SparkSession) -> None:
    # The job may end the session meanwhile; its own queries report real problems.
    with suppress(Exception):
        spark.range(1, numPartitions=1).mapInArrow(iter, "id BIGINT").toArrow()


def _attach(server: str, name: str, takes_over: bool) -> SparkSession:
    """The session of this name; `takes_over`: nobody else may use it now."""
    _check_it_answers(server)
    # Jobs share a session: its Python workers stay warm, and the next writer finds the work of a killed one. A session of its own for each
    # job would leave a Python process on the server for ever.
    spark = _session_on(server, uuid.uuid5(uuid.NAMESPACE_URL, name))
    try:
        if takes_over:
            # The work of a killed job still runs on the server, without the lock that this job holds now.
            spark.interruptAll()
        return _prepared(spark)
    except PySparkException as error:
        spark.client.close()
        if "SESSION_CLOSED" not in str(error):
            raise
    # The server has closed the session, after a long silence say; its id can never be used again.
    return _prepared(_session_on(server, uuid.uuid4()))


def _session_on(server: str, session_id: uuid.UUID) -> SparkSession:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # spark-submit sets MASTER, and PySpark accepts only one of the two.
    os.environ.pop("MASTER", None)
    separator = ";" if urlsplit(server).path else "/;"
    spark = SparkSession.builder.remote(f"{server}{separator}session_id={session_id}").create()
    # The client's default waits ten minutes for a dead server; Airflow's retry is the better wait.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=6, max_backoff=2_000)])
    return spark


def _prepared(spark: SparkSession) -> SparkSession:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    # Cached rows are read three times at most: compressing them costs more than the disk it saves.
    spark.conf.set("spark.sql.inMemoryColumnarStorage.compressed", "false")
    # Limits pieces of large rows; a piece on its way to Python takes several times its size, outside the heap.
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(BYTES_TO_PYTHON))
    _compile_plans(spark, False)
    ship_code(spark)
    return spark


def _check_it_answers(server: str) -> None:
    parts = urlsplit(server)
    try:
        if parts.scheme != "sc" or not parts.hostname:
            raise ValueError("it is not of the form sc://host:port")
        socket.create_connection((parts.hostname, parts.port or _DEFAULT_PORT), timeout=10).close()
    except (OSError, ValueError) as error:
        # Spark's client would try for minutes.
        raise NoSparkServer(
            f"no Spark server answers at {_address(server)} ({error}): start it, or correct spark_default (by hand: {REMOTE_VARIABLE})"
        ) from None


def _address(server: str) -> str:
    """Without the part behind it, which may be a token."""
    return server.partition(";")[0].rstrip("/")


def server_problem(error: Exception) -> NoSparkServer | None:
    """The problem if the error of a query says that the server went away while the job used it."""
    server = os.environ.get(REMOTE_VARIABLE)
    if not server or not isinstance(error, PySparkException) or not (gone := _GONE.search(str(error))):
        return None
    why = f" ({gone['why']})" if gone["why"] else ""
    return NoSparkServer(
        f"the Spark server at {_address(server)} went away during the job{why}: start it; the next try goes on from there"
    )


@contextmanager
def override_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The settings hold during the block: the session on a server is the next job's, too."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def tune_for_row_count(spark: SparkSession, rows: int) -> None:
    """Has Spark compile its plans, for the rest of the job, if a table that it reads has many rows. Results are the same.

    Plans of a new session are interpreted: compiling one takes longer than running it on a few thousand rows.
    """
    if rows >= MANY_ROWS:
        _compile_plans(spark, True)


def _compile_plans(spark: SparkSession, wanted: bool) -> None:
    spark.conf.set("spark.sql.codegen.wholeStage", wanted)
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if wanted else "NO_CODEGEN")
    spark.conf.set("spark.sql.adaptive.enabled", wanted)
