"""One real broker and one Spark session for all tests that need them; topics and tables of its own for each test."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.config.pipeline import Pipeline, Side
from include.local.broker import LocalBroker, create_topics
from include.local.machine import project_environment
from include.local.process import free_port
from include.local.store import LocalStore
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.schema_registry import LocalRegistry, running_registry
from tests.helpers.stores import running_store
from tests.helpers.timeline import CALLS

PARTITIONS = 2


def pytest_configure(config):
    """Not when this is imported: a broker of a bench is compiled in full."""
    # None of a test lives long enough for that to pay: a start takes two thirds of the processor time without.
    LocalBroker.options += ("-XX:TieredStopAtLevel=1",)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """The first of several workers compiles the files of the tests, half of the work there; the others wait, and load them."""
    worker = getattr(session.config, "workerinput", {}).get("workerid")
    compiled = Path(session.config.getoption("basetemp")).parent / "compiled" if worker else None
    if compiled and worker != "gw0":
        deadline = time.monotonic() + 120
        while not compiled.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
    # What is made here stays until the end; later collections of garbage need not look at it, either.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        if compiled and worker == "gw0":
            compiled.touch()


@pytest.fixture(scope="session")
def broker(tmp_path_factory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("broker"), free_port()) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    environment = project_environment()
    os.environ.update({name: environment[name] for name in ("PATH", "SPARK_CONF_DIR", "PYTHONPATH")})
    from spark_jobs.spark.session import spark_session

    session = spark_session("tests", "tests")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def fresh_pipeline(node: pytest.Item, **settings: Any) -> Pipeline:
    """The shipped pipeline with topics of its own, named after the test."""
    name = f"t{abs(hash(node.nodeid)):x}"[:12]
    left, right = Side(f"{name}-analytics", "analytics"), Side(f"{name}-metrics", "metrics")
    return replace(CALLS, name=name, left=left, right=right, output_topic=f"{name}-output", **settings)


@pytest.fixture
def pipeline(broker, request, monkeypatch) -> Pipeline:
    """The shipped pipeline on fresh topics, its name that of the test."""
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": broker.bootstrap}))
    mine = fresh_pipeline(request.node)
    topics = dict.fromkeys((mine.left.topic, mine.right.topic, mine.output_topic), PARTITIONS)
    # For ever, and whatever time a producer stamps on a record.
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)})
    return mine


@pytest.fixture(scope="session")
def empty_tables(spark, tmp_path_factory) -> Path:
    """The folder of a pipeline of which nothing was landed; made once, since making it takes seconds."""
    warehouse = Warehouse(str(tmp_path_factory.mktemp("empty")), CALLS, spark)
    create_missing(warehouse)
    return Path(warehouse.root) / CALLS.name


@pytest.fixture
def warehouse(spark, pipeline, tmp_path, empty_tables) -> Warehouse:
    """With the pipeline's tables, all empty; their ids are the same in every test."""
    root = tmp_path / "warehouse"
    shutil.copytree(empty_tables, root / pipeline.name)
    return Warehouse(str(root), pipeline, spark)


@pytest.fixture
def send(broker, pipeline) -> Callable[..., None]:
    """send("a", user, ts, payload) or send("m", value=b"…", key=…, timestamp=…): one record, to the side's topic."""
    from confluent_kafka import KafkaError, Message, Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})

    def check(error: KafkaError | None, _: Message) -> None:
        assert error is None, error

    def send_one(
        side: str, user: str = "", ts: int = 0, payload: Any = None, value: bytes | None = None, **options: Any
    ) -> None:
        of = pipeline.left if side == "a" else pipeline.right
        if user:
            body = {"user1": user, "user2": "v", "timestamp": ts, of.payload: payload}
            value, options = json.dumps(body).encode(), {"key": f"{user}-v", **options}
        producer.produce(of.topic, value=value, on_delivery=check, **options)
        assert producer.flush(20) == 0

    return send_one


@pytest.fixture(scope="session")
def s3(tmp_path_factory) -> Iterator[LocalStore]:
    """A real S3 server."""
    with running_store("s3", tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def azure(tmp_path_factory) -> Iterator[LocalStore]:
    """A real server of Azure blobs."""
    with running_store("azure", tmp_path_factory.mktemp("azure")) as store:
        yield store


@pytest.fixture(scope="session")
def gs(tmp_path_factory) -> Iterator[LocalStore]:
    """A server for `gs://`: Google's names in front of a real S3 server."""
    with running_store("gs", tmp_path_factory.mktemp("gs")) as store:
        yield store


@pytest.fixture(scope="session")
def started_registry(tmp_path_factory) -> Iterator[LocalRegistry]:
    """For `apicurio`: its start takes seconds."""
    with running_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def apicurio(started_registry) -> LocalRegistry:
    """A real schema registry, started again if a test has killed it. It may have schemas of other tests."""
    started_registry.start()
    return started_registry


def yaml_of(pipeline: Pipeline, folder: Path) -> Path:
    """The pipeline as a file, for jobs that run as processes."""
    path = folder / f"{pipeline.name}.yaml"
    side = "{{topic: {0.topic}, payload: {0.payload}}}"
    path.write_text(
        f"left: {side.format(pipeline.left)}\nright: {side.format(pipeline.right)}\noutput: {{topic: {pipeline.output_topic}}}\n"
        f"key: [{', '.join(pipeline.key)}]\ntolerance: {pipeline.tolerance_ms}ms\ngap: {pipeline.gap_ms}ms\n"
        f"grace: {pipeline.grace_ms}ms\nmax_future: {pipeline.max_future_ms}ms\nmax_session: {pipeline.max_session_ms}ms\n"
        f"max_records_per_batch: {pipeline.max_records_per_batch}\n"
    )
    return path
