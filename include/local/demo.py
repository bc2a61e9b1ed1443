"""`make demo`: starts broker, Spark and Airflow, sends sample calls, runs the DAG by Airflow's scheduler, and checks the result.

Everything stays up. Each demo sends new calls. It checks the truth of all demos together (.local/demo), because a demo publishes what the one
before left open. With EXAMPLE the traffic and the pipelines are those of an example of the gallery; a pipeline that reads the compounds of another
one runs after it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from include.config.pipeline import Pipeline, PipelineError
from include.config.store import OPTIONS_VARIABLE
from include.local import airflow as local_airflow
from include.local import broker as local_broker
from include.local import registry as local_registry
from include.local import spark as local_spark
from include.local import store as local_store
from include.local.airflow import LocalAirflow, demo_airflow
from include.local.airflow_client import AirflowClient, AirflowError
from include.local.broker import LocalBroker, create_topics
from include.local.cluster import DEFAULT_PORT, LocalCluster
from include.local.machine import ROOT, SetupError, demo_example, demo_folder, is_on_cluster, say
from include.local.process import LocalServer, port_setting
from include.local.registry import LocalRegistry
from include.local.spark import LocalSpark
from include.local.store import LocalStore
from include.local.watch import start_watch
from include.sample import outcome as sample_outcome
from include.sample import truth as sample_truth
from include.sample.calls import SampleError, send
from include.sample.examples import EXAMPLES, Example
from include.sample.truth import Verdict

TRUTH = demo_folder("demo")
CALLS = 2_000
PARTITIONS = 4
# A run of the schedule may appear for so long after unpausing; then the demo triggers one by hand.
SCHEDULED_WITHIN_S = 3.0
DAG_WITHIN_S = 180.0
RUN_WITHIN_S = 600.0
PROGRESS_EVERY_S = 5.0


class DemoFailed(Exception):
    """The demo ran and something failed; the text says what, in a few lines."""


def demo() -> None:
    """The whole demo; raises DemoFailed, SetupError, AirflowError, SampleError or PipelineError."""
    example = EXAMPLES[demo_example()]
    pipelines = example.pipelines
    servers = demo_servers()
    broker, airflow = servers.broker, servers.airflow
    start_cluster(servers.cluster)
    start_store(servers.store)
    start_registry(servers.registry)
    start_servers(broker, servers.spark, airflow)
    start_watch()
    # No retention: the check reads the output topic from the first demo on.
    topics = dict.fromkeys((topic for each in pipelines for topic in (*each.input_topics, *each.output_topics)), PARTITIONS)
    create_topics(broker.bootstrap, topics, {"retention.ms": "-1"})
    say(f"topics {', '.join(topics)} with {PARTITIONS} partitions each")
    client, kafka = airflow.client(), {"bootstrap.servers": broker.bootstrap}
    for pipeline in pipelines:
        client.wait_for_dag(pipeline.name, DAG_WITHIN_S)
        pause_when_idle(client, pipeline.name)
    try:
        send_calls(example, pipelines, servers.registry, kafka, airflow.warehouse)
        for pipeline in pipelines:
            run_dag(client, pipeline.name)
            pause_when_idle(client, pipeline.name)
        verdicts = check(pipelines, kafka, airflow.warehouse)
    finally:
        for pipeline in pipelines:
            client.pause(pipeline.name, False)
    summarise(verdicts, airflow, example)


class DemoServers(NamedTuple):
    """What a demo starts. No `cluster`: Spark works in one process; no `store`: the tables are in a folder; no `registry`: all is JSON."""

    cluster: LocalCluster | None
    store: LocalStore | None
    registry: LocalRegistry | None
    broker: LocalBroker
    spark: LocalSpark
    airflow: LocalAirflow

    def in_order(self) -> list[LocalServer]:
        """All, each before those that need it."""
        return [server for server in self if server is not None]


def demo_servers() -> DemoServers:
    """Those that STORE, SPARK, EXAMPLE and the ports in the environment ask for. Raises SetupError."""
    cluster = LocalCluster(demo_folder("cluster"), port("CLUSTER_PORT", DEFAULT_PORT)) if is_on_cluster() else None
    store = local_store.local_store(port("STORE_PORT", local_store.DEFAULT_PORT))
    broker = LocalBroker(local_broker.FOLDER, port("KAFKA_PORT", local_broker.DEFAULT_PORT))
    master = cluster.master if cluster else local_spark.LOCAL_MASTER
    spark = LocalSpark(local_spark.FOLDER, port("SPARK_PORT", local_spark.DEFAULT_PORT), master)
    registry = local_registry.local_registry(port("REGISTRY_PORT", local_registry.DEFAULT_PORT))
    ui = port("AIRFLOW_PORT", local_airflow.DEFAULT_PORT)
    airflow = demo_airflow(ui, broker.bootstrap, spark.url, store, registry)
    return DemoServers(cluster, store, registry, broker, spark, airflow)


def start_cluster(cluster: LocalCluster | None) -> None:
    """Starts the Spark cluster, if the demo has one."""
    if cluster is not None:
        say(f"the Spark cluster {'is up' if cluster.start() else 'was up'} {cluster.where()}")


def start_store(store: LocalStore | None) -> None:
    """Starts the object store, if the demo has one, and sets its options for this process."""
    if store is not None:
        started = store.start()
        say(f"the {store.name} store {'is up' if started else 'was up'} {store.where()}")
        os.environ[OPTIONS_VARIABLE] = json.dumps(store.options)


def start_registry(registry: LocalRegistry | None) -> None:
    """Starts the schema registry, if the demo has one, and registers the schemas."""
    if registry is not None:
        say(f"the schema registry {'is up' if registry.start() else 'was up'} {registry.where()}")


def port(variable: str, default: int) -> int:
    """The port that the environment sets, or the default."""
    return port_setting(os.environ.get(variable), default, variable)


def start_servers(broker: LocalBroker, spark: LocalSpark, airflow: LocalAirflow) -> None:
    """Starts all at the same time, after checking that each one can start. Airflow's scheduler starts when all others answer."""
    servers: dict[str, LocalBroker | LocalSpark | LocalAirflow] = {"Kafka": broker, "Spark": spark, "Airflow": airflow}
    for server in servers.values():
        server.check()
    say("Kafka, Spark and Airflow ...")
    started: dict[str, bool] = {}

    def start(name: str, begin: Callable[[], bool]) -> None:
        started[name] = begin() or started.get(name, False)
        if begin != airflow.prepare:
            say(f"{name} {'is up' if started[name] else 'was up'} {servers[name].where()}")

    with ThreadPoolExecutor(len(servers)) as pool:
        first = {"Kafka": broker.start, "Spark": spark.start, "Airflow": airflow.prepare}
        _wait_for({pool.submit(start, *named): named[0] for named in first.items()}, airflow)
        then: dict[Future[None], str] = {pool.submit(start, "Airflow", airflow.start): "Airflow"}
        if started["Spark"]:
            say("Spark warms up, so that the first run is as fast as later ones")
            then[pool.submit(spark.warm_up)] = "Spark"
        _wait_for(then, airflow)


def _wait_for(waiting: dict[Future[None], str], airflow: LocalAirflow) -> None:
    """Returns when all have ended; says every few seconds what is not there yet. Raises what one of them raises."""
    while waiting:
        done, _ = wait(waiting, timeout=PROGRESS_EVERY_S, return_when=FIRST_COMPLETED)
        for ended in done:
            del waiting[ended]
            ended.result()
        if not done:
            say(f"waiting for {', '.join(waiting.values())}{airflow.missing()}")


def pause_when_idle(client: AirflowClient, dag_id: str) -> None:
    """Pauses the DAG when none of its runs is active, so that the tables do not change afterwards.

    A run of a paused DAG would never end, so the DAG is unpaused until its runs have ended.
    """
    while True:
        client.pause(dag_id, True)
        active = client.active_runs(dag_id)
        if not active:
            return
        say(f"waiting for {', '.join(active)}")
        client.pause(dag_id, False)
        for run in active:
            client.wait_for_run(dag_id, run, RUN_WITHIN_S)


def send_calls(
    example: Example, pipelines: list[Pipeline], registry: LocalRegistry | None, kafka: Mapping[str, str], warehouse: str
) -> None:
    """Sends new calls and writes their truth beside that of earlier demos."""
    number = len(truth_files()) + 1
    now_ms = time.time_ns() // 1_000_000
    late_before = sample_outcome.last_clock(warehouse, pipelines[0])
    samples = example.samples(CALLS, number, now_ms, late_before, registry.ids if registry else ())
    # The first pipeline's last: it is the one that counts the demos.
    for step, sample in reversed([*enumerate(samples)]):
        sample.write_truth(TRUTH / f"{_truth(step)}-{number:04}.jsonl")
    sent = sum(send(sample.records, kafka) for sample in samples)
    unit = f"{CALLS:,} {example.unit}"
    say(f"sent {sent:,} sample events of {unit}, with orphans, duplicates, broken and future ones among them")


def _truth(step: int) -> str:
    """How the truth files of a pipeline begin, given its place among those of the demo."""
    return f"step-{step + 1}" if step else "truth"


def truth_files(step: int = 0) -> list[Path]:
    """One for each demo, oldest first."""
    return sorted(TRUTH.glob(f"{_truth(step)}-*.jsonl"))


def run_dag(client: AirflowClient, dag_id: str) -> None:
    """Unpauses the DAG and waits for a new run, of the schedule or else triggered by hand. Raises DemoFailed."""
    before = {run["dag_run_id"] for run in client.runs(dag_id)}
    started = time.monotonic()
    client.pause(dag_id, False)
    new: set[str] = set()
    while not new and time.monotonic() - started < SCHEDULED_WITHIN_S:
        time.sleep(0.2)
        new = {run["dag_run_id"] for run in client.runs(dag_id)} - before
    run = new.pop() if new else client.trigger(dag_id)
    started = time.monotonic()
    say(f"DAG {dag_id}, run {run}")

    def show(task: str, state: str) -> None:
        if state not in ("scheduled", "queued"):
            say(f"  {task}: {state}")
        if state in ("failed", "up_for_retry"):
            print("\n".join(f"            {line}" for line in errors(client.task_log(dag_id, run, task))), flush=True)

    if client.wait_for_run(dag_id, run, RUN_WITHIN_S, show) != "success":
        raise DemoFailed(f"the run failed, see the task's error above and {client.url}/dags/{dag_id}/runs/{run}")
    say(f"the run took {time.monotonic() - started:.0f} s")


def errors(log: list[str]) -> list[str]:
    """The last two lines of a task's log that name an error, or the last two."""
    matching = [line for line in log if re.search(r"error|exception", line, re.IGNORECASE)]
    return [line.strip()[:400] for line in (matching or log)[-2:]]


def check(pipelines: list[Pipeline], kafka: Mapping[str, str], warehouse: str) -> list[Verdict]:
    """Compares what an independent consumer reads with the truth of all demos, for each pipeline."""
    verdicts: list[Verdict] = []
    for step, pipeline in enumerate(pipelines):
        clock = sample_truth.ledger_clock(warehouse, pipeline)
        before = verdicts[-1].clock if verdicts else None
        verdicts.append(sample_truth.check(truth_files(step), pipeline, kafka, warehouse, clock, before))
    return verdicts


def summarise(verdicts: list[Verdict], airflow: LocalAirflow, example: Example) -> None:
    """Prints the results and where to look; raises DemoFailed if a result differs from the truth."""
    say("done; read back from the output topic by an independent consumer, over all demos so far:")
    names = [file.stem for file in example.files]
    for name, verdict in zip(names, verdicts, strict=True):
        print(f"\n  {name}" if len(names) > 1 else "")
        shown = replace(verdict, differences=verdict.besides)
        print("\n".join(f"  {line}" for line in shown.lines()))
        if verdict.others:
            print(f"  besides:   {verdict.others:,} compounds and events of other traffic on these topics")
        if demo_example():
            print("\n".join(f"  one {kind}: {value}" for kind, value in sorted(verdict.first.items())))
    print(f"\n  Airflow         {airflow.url}/dags/{names[-1]}   user admin, password {airflow.password()}")
    for name in names:
        print(f"  quality report  {airflow.url}/quality/{name}/")
    print("  stop            make stop\n", flush=True)
    for file, verdict in zip(example.files, verdicts, strict=True):
        if verdict.besides:
            raise DemoFailed(
                "NOT EQUAL TO THE TRUTH, see the lines above. What is wrong in tables and topics, if anything:"
                f" .venv/bin/python -m spark_jobs.reconcile --pipeline {file.relative_to(ROOT)}"
            )


def main() -> int:
    """The command; returns its exit status: 0 if the result equals the truth, else 1 (130: interrupted)."""
    try:
        demo()
    except (DemoFailed, SetupError, AirflowError, SampleError, PipelineError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; what was started still runs: make stop", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
