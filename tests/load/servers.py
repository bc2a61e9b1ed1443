"""What runs under load: a broker, a Spark server and an Airflow as `make demo` starts them, of their own, in one folder and on free ports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from include.config.pipeline import MAINTENANCE_SUFFIX, REPLAY_SUFFIX, Pipeline
from include.config.pipeline_file import load_pipeline
from include.local.airflow import LocalAirflow
from include.local.airflow_client import AirflowClient
from include.local.broker import LocalBroker, create_topics
from include.local.demo import PARTITIONS, start_servers
from include.local.process import LocalServer, free_port, processes_of
from include.local.spark import LocalSpark
from tests.helpers.copied_project import AirflowOf, copied

PIPELINE = "calls"
# The shipped pipeline, but for these: a run every minute, replays of short intervals, and lag that the broker knows.
CHANGED = {
    'schedule: "*/5 * * * *"': 'schedule: "* * * * *"\nreplay_schedule: "*/5 * * * *"\nconsumer_group: calls.landed',
}


@dataclass
class Servers:
    """All that runs, with the pipeline that is under load."""

    broker: LocalBroker
    spark: LocalSpark
    airflow: LocalAirflow
    file: Path
    pipeline: Pipeline

    @property
    def client(self) -> AirflowClient:
        """A client of Airflow, logged in anew when it is first used."""
        return self.airflow.client()

    @property
    def warehouse(self) -> str:
        """Where the tables are."""
        return self.airflow.warehouse

    @property
    def all(self) -> tuple[LocalServer, ...]:
        """The three servers."""
        return self.broker, self.spark, self.airflow

    def processes(self) -> list[psutil.Process]:
        """Every process of theirs that is alive."""
        return [process for server in self.all for process in processes_of(server.folder)]


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """All servers run inside the block, with topics and unpaused DAGs; then none does, whatever happened. Raises SetupError, AirflowError."""
    temporary = folder / "tmp"
    temporary.mkdir()
    # A JVM or job that is killed leaves its temporary files, which must not outlive the folder.
    os.environ |= {"TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
    file = copied_pipeline(folder / "project")
    broker = LocalBroker(folder / "broker", free_port())
    spark = LocalSpark(folder / "spark", free_port())
    airflow = AirflowOf(
        folder / "project",
        "",
        folder / "airflow",
        free_port(),
        broker.bootstrap,
        str(folder / "warehouse"),
        spark=spark.url,
    )
    running = Servers(broker, spark, airflow, file, load_pipeline(file))
    with ExitStack() as stack:
        for server in running.all:
            stack.callback(server.stop)
        start_servers(broker, spark, airflow)
        topics = (*running.pipeline.input_topics, *running.pipeline.output_topics)
        create_topics(broker.bootstrap, dict.fromkeys(topics, PARTITIONS), {"retention.ms": "-1"})
        for dag_id in (PIPELINE, f"{PIPELINE}{REPLAY_SUFFIX}", f"{PIPELINE}{MAINTENANCE_SUFFIX}"):
            running.client.wait_for_dag(dag_id, 90)
        yield running


def copied_pipeline(folder: Path) -> Path:
    """A copy of the project with the changed pipeline; returns the pipeline's file."""
    file = copied(folder) / "include" / "pipelines" / f"{PIPELINE}.yaml"
    text = file.read_text()
    for old, new in CHANGED.items():
        assert old in text, f"{file.name} lacks {old}"
        text = text.replace(old, new)
    file.write_text(text)
    return file
