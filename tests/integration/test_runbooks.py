"""Every runbook's remedy: the line is provoked, the page's block is run as it stands there, and the pipeline goes on.

A test is named after its page. Words in capitals, and the names of the shipped topics, are filled in; nothing else is changed. Commands
run in a copy of the project, so that its files and its warehouse may be changed. Kafka's own scripts do not come with the
jars of a broker: small programs with the same options stand in for them, kafka-configs.sh is the real one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, Field

from include.airflow.overdue import overdue
from include.airflow.pages import runbook
from include.config.health import HEALTHY, read_state
from include.config.pipeline import BEFORE_PUBLISH, Maintenance, Quality, Side
from include.config.pipeline_file import load_pipeline
from include.config.project import REMOTE_VARIABLE
from include.config.store import Store, read_text
from include.local.broker import create_topics
from include.local.cluster import LocalCluster
from include.local.machine import JARS, SPARK_CONF, VENV, java, project_environment
from include.local.process import free_port, stop_programs
from include.local.spark import LocalSpark
from spark_jobs import maintain_tables, pair_events, publish_compounds, reconcile, replay_interval, report_quality
from spark_jobs.corrections.rewind import dry_run
from spark_jobs.faults.problems import JobProblem
from spark_jobs.formats import registry_client
from spark_jobs.formats.registry import VARIABLE as REGISTRY
from spark_jobs.job.run import errors_in_one_line
from spark_jobs.kafka import offsets
from spark_jobs.kafka.output_topic import output_topic
from spark_jobs.kafka.positions import Position
from spark_jobs.kafka.ranges import lost_range
from spark_jobs.kafka.settings import VARIABLE, kafka_settings
from spark_jobs.maintenance import upkeep
from spark_jobs.quality.reconcile import fail_if_any
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.spark.executors import WITHIN_VARIABLE
from spark_jobs.stages import report
from spark_jobs.tables import delta_log
from spark_jobs.tables import one_writer as probe
from spark_jobs.tables.diagnose import damaged, log_file, translate_file_errors
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED
from spark_jobs.tables.one_writer import writer_lock
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS, yaml_of
from tests.helpers import secured_broker
from tests.helpers.all_stages import land, run_all
from tests.helpers.cut_logs import cut_log
from tests.helpers.job_processes import Jobs, wait_for
from tests.helpers.kafka_rights import documented, grant
from tests.helpers.pages import pages_folder, pages_in
from tests.helpers.reading import consume, table_rows
from tests.helpers.secured_broker import SecuredBroker
from tests.helpers.timeline import CALLS, ROOT
from tests.integration.test_publishing import alter_topic, publish_only
from tests.integration.test_storage_faults import SmallDisk

pytestmark = pytest.mark.integration

PAGES = ROOT / "docs" / "runbooks"
BLOCK = re.compile(r"^ *```bash mend\n(.*?)^ *```$", re.M | re.S)
SHIPPED = ("analyticsTopic", "metricsTopic", "outputTopic")

TOPICS = """#!{python}
import argparse
from confluent_kafka.admin import AdminClient, NewTopic
parser = argparse.ArgumentParser()
parser.add_argument("--create", action="store_true", required=True)
for option in ("--bootstrap-server", "--topic", "--partitions"):
    parser.add_argument(option, required=True)
given = parser.parse_args()
new = NewTopic(given.topic, int(given.partitions))
admin = AdminClient({{"bootstrap.servers": given.bootstrap_server}})
admin.create_topics([new])[given.topic].result(timeout=20)
"""
GROUPS = """#!{python}
import argparse
from confluent_kafka.admin import AdminClient
parser = argparse.ArgumentParser()
parser.add_argument("--delete", action="store_true", required=True)
for option in ("--bootstrap-server", "--group"):
    parser.add_argument(option, required=True)
given = parser.parse_args()
admin = AdminClient({{"bootstrap.servers": given.bootstrap_server}})
admin.delete_consumer_groups([given.group])[given.group].result(timeout=20)
"""
ACLS = """#!{python}
import sys
sys.path.insert(0, "{root}")
from tests.helpers.kafka_rights import add
add(sys.argv[1:])
"""
TRANSACTIONS = """#!{python}
import argparse
from pathlib import Path
import pyspark
from py4j.java_gateway import JavaGateway, GatewayParameters, launch_gateway
parser = argparse.ArgumentParser()
parser.add_argument("--bootstrap-server", required=True)
abort = parser.add_subparsers(required=True).add_parser("abort")
for option in ("--topic", "--partition", "--start-offset"):
    abort.add_argument(option, required=True)
given = parser.parse_args()
(py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
port = launch_gateway(jarpath=str(py4j), classpath="{jars}/*", java_path="{java}", die_on_exit=True)
java = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True)).jvm
client = java.org.apache.kafka.clients.admin
admin = client.Admin.create({{"bootstrap.servers": given.bootstrap_server}})
place = java.org.apache.kafka.common.TopicPartition(given.topic, int(given.partition))
states = admin.describeProducers([place]).partitionResult(place).get().activeProducers()
(open_one,) = (each for each in states if each.currentTransactionStartOffset().orElse(-1) == int(given.start_offset))
spec = client.AbortTransactionSpec(place, open_one.producerId(), open_one.producerEpoch(), max(open_one.coordinatorEpoch().orElse(0), 0))
admin.abortTransaction(spec).all().get()
"""
CONFIGS = """#!/bin/sh
exec {java} -cp '{jars}/*' kafka.admin.ConfigCommand "$@"
"""


def page_of(request):
    return request.node.originalname.removeprefix("test_").replace("_", "-")


def block_of(page):
    (block,) = BLOCK.findall((PAGES / f"{page}.md").read_text())
    return block


def test_every_page_has_a_test_that_runs_its_one_block():
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert all(len(BLOCK.findall((PAGES / f"{page}.md").read_text())) == 1 for page in pages)
    tests = {name for name, value in globals().items() if name.startswith("test_") and "mend" in value.__code__.co_varnames}
    assert {name.removeprefix("test_").replace("_", "-") for name in tests} == pages


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with LocalSpark(tmp_path_factory.mktemp("spark-server"), free_port()) as running:
        yield running


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    words = {"python": sys.executable, "java": java(), "jars": JARS / "broker", "root": ROOT}
    texts = {"topics": TOPICS, "consumer-groups": GROUPS, "configs": CONFIGS, "acls": ACLS, "transactions": TRANSACTIONS}
    for name, text in texts.items():
        (folder / f"kafka-{name}.sh").write_text(text.format(**words))
        (folder / f"kafka-{name}.sh").chmod(0o755)
    return folder


@pytest.fixture
def project(tmp_path):
    """A copy of what the commands need, with a warehouse of its own."""
    folder = tmp_path / "project"
    for name in ("include", "spark_jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").symlink_to(VENV)
    (folder / ".local").mkdir()
    (folder / ".local" / "jars").symlink_to(JARS)
    return folder


@pytest.fixture
def pipeline(broker, request, project, monkeypatch):
    """The shipped pipeline, with topics of its own in the place of the shipped ones."""
    name = page_of(request)
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap}))
    left, right, output = (f"{name}.{topic}" for topic in SHIPPED)
    mine = replace(CALLS, left=Side(left, "analytics"), right=Side(right, "metrics"), output_topic=output)
    # Sessions that are over in no time.
    mine = replace(mine, tolerance_ms=50, gap_ms=50, grace_ms=100)
    create_topics(broker.bootstrap, dict.fromkeys((left, right, output), PARTITIONS), {"retention.ms": "-1"})
    yaml_of(mine, project / "include" / "pipelines")
    return mine


@pytest.fixture
def warehouse(spark, pipeline, project, empty_tables):
    root = project / ".local" / "warehouse"
    shutil.copytree(empty_tables, root / pipeline.name)
    return Warehouse(str(root), pipeline, spark)


@pytest.fixture
def mend(request, project, pipeline, broker, scripts):
    """mend(WORD=…) runs the block of the page, and gives the environment after it. It has to be called."""
    page, ran = page_of(request), []

    def run(succeeds=True, **words):
        block = block_of(page)
        filled = {"ADDRESS": broker.bootstrap, **words}
        filled |= dict(zip(SHIPPED, (pipeline.left.topic, pipeline.right.topic, pipeline.output_topic), strict=True))
        for word in words:
            assert word in block, f"the block of {page} has no {word}"
        # In one go: a value may hold another word.
        block = re.sub(rf"\b({'|'.join(filled)})\b", lambda found: str(filled[found[1]]), block)
        environment = project_environment() | {
            "PYTHONPATH": str(project),
            "SPARK_CONF_DIR": str(SPARK_CONF),
            "PAIRING_WAREHOUSE": str(project / ".local" / "warehouse"),
            VARIABLE: os.environ.get(VARIABLE, ""),
        }
        environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
        if "spark-submit" in block or "spark_jobs." in block:
            environment[REMOTE_VARIABLE] = request.getfixturevalue("server").url
        marked = f"set -euo pipefail\n{block}\necho after the block; env -0"
        done = subprocess.run(
            ["bash", "-c", marked], cwd=project, env=environment, capture_output=True, check=False, timeout=240
        )
        assert (done.returncode == 0) == succeeds, done.stdout.decode() + done.stderr.decode()
        ran.append(succeeds)
        variables = done.stdout.decode().partition("after the block\n")[2].split("\0")
        return dict(variable.split("=", 1) for variable in variables if variable)

    yield run
    assert True in ran


@pytest.fixture
def alarm(request, capsys):
    """alarm(work): the work fails by a line that the index of the runbooks leads from to the page."""
    page = page_of(request)
    rows = [
        re.match(r"\| `(.+?)`.* \| \[.*\]\((.*)\.md\) \|", line) for line in (PAGES / "README.md").read_text().splitlines()
    ]
    starts = [".*".join(map(re.escape, row[1].split("…"))) for row in rows if row and row[2] == page]

    def provoke(work, place="warehouse"):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended, errors_in_one_line(), translate_file_errors(place):
            work()
        assert ended.value.code == 1
        line = capsys.readouterr().err.splitlines()[-1].removeprefix("error: ")
        assert any(re.match(start, line) for start in starts), line
        return line

    return provoke


@pytest.fixture
def submit(server, project):
    """submit(job): what a job says that ends badly, run as a process on a Spark server: its last line, status 1."""

    def run(job):
        environment = project_environment() | {
            "PYTHONPATH": str(project),
            "PAIRING_WAREHOUSE": str(project / ".local" / "warehouse"),
            VARIABLE: os.environ[VARIABLE],
            REMOTE_VARIABLE: server.url,
        }
        command = [sys.executable, f"spark_jobs/{job}.py", "--pipeline", "include/pipelines/calls.yaml"]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        # Before it, delta-rs may print a panic of its own.
        line = done.stderr.splitlines()[-1]
        assert done.returncode == 1 and line.startswith("error: "), done.stdout + done.stderr
        return line.removeprefix("error: ")

    return run


@pytest.fixture
def send(pipeline):
    """send(calls, payload): both sides of so many calls, over when they are landed."""

    def send_calls(calls=3, payload="x"):
        producer = Producer(kafka_settings() | {"partitioner": "murmur2_random"})
        now = time.time_ns() // 1_000_000
        for number in range(calls):
            for side in pipeline.sides:
                body = {"user1": f"u{number}", "user2": "v", "timestamp": now, side.payload: payload}
                producer.produce(side.topic, key=f"u{number}-v", value=json.dumps(body))
        assert producer.flush(20) == 0
        time.sleep(0.3)

    return send_calls


def version(warehouse, table):
    return DeltaTable(warehouse.path(table)).version()


def delete_by_hand(warehouse, table, condition="user1 = 'u0'"):
    DeltaTable(warehouse.path(table)).delete(condition)


def assert_on_topic(warehouse, broker, times=1):
    """All compounds, and each so many times at most."""
    published = Counter(message["pair-id"] for message in consume(broker.bootstrap, warehouse.pipeline.output_topic))
    assert published.keys() == {row["pair_id"] for row in table_rows(warehouse, "compound_events")}
    assert max(published.values()) <= times


def admin_of(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def delete(broker, topic):
    admin = admin_of(broker)
    admin.delete_topics([topic])[topic].result(timeout=20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.1)


def recreate(broker, topic):
    delete(broker, topic)
    create_topics(broker.bootstrap, {topic: PARTITIONS}, {"retention.ms": "-1"})


@pytest.mark.long
def test_compound_too_large(alarm, mend, warehouse, pipeline, broker, send):
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, pipeline.output_topic, incremental_configs=[entry])
    admin = admin_of(broker)
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)
    send(1, "x" * 3000)
    land(warehouse)
    pair_events.main(warehouse)
    alarm(lambda: publish_compounds.main(warehouse))
    mend()
    send(2, "x" * 3000)
    land(warehouse)
    pair_events.main(warehouse)
    assert publish_compounds.main(warehouse)["sent"] == 2


@pytest.mark.long
def test_rejected_topic_compacted(alarm, mend, warehouse, pipeline, broker, send):
    topic = f"{pipeline.output_topic}-rejected"
    create_topics(broker.bootstrap, {topic: 1}, {"cleanup.policy": "compact"})
    settings = replace(warehouse, pipeline=replace(pipeline, output_rejected_topic=topic))
    send(1, "x")
    land(settings)
    pair_events.main(settings)
    alarm(lambda: publish_compounds.main(settings))
    mend(TOPIC=topic)
    assert publish_compounds.main(settings)["dead_letters"] == 0


def test_configuration_refused(alarm, mend, project):
    file = project / "include" / "pipelines" / "calls.yaml"
    right = file.read_text()
    file.write_text(right.replace("grace: ", "grice: "))
    alarm(lambda: load_pipeline(file))
    mend(succeeds=False)
    file.write_text(right)
    mend()
    assert load_pipeline(file).grace_ms == 100


@pytest.mark.long
def test_conservation_broken(alarm, mend, warehouse, send):
    send()
    land(warehouse)
    before = version(warehouse, "raw_analytics")
    delete_by_hand(warehouse, "raw_analytics")
    alarm(lambda: pair_events.main(warehouse))
    mend(TABLE="raw_analytics", VERSION=before)
    assert pair_events.main(warehouse)["pair"] == 3


@pytest.mark.long
def test_counts_do_not_add_up(alarm, mend, warehouse, send):
    send()
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    before = version(warehouse, "raw_metrics")
    delete_by_hand(warehouse, "raw_metrics")
    alarm(lambda: report_quality.main(warehouse))
    mend(TABLE="raw_metrics", VERSION=before)
    send()
    assert run_all(warehouse)["pair"] == 3


@pytest.mark.long
def test_not_published(alarm, mend, warehouse, pipeline, project, broker, send):
    with (project / "include" / "pipelines" / "calls.yaml").open("a") as file:
        file.write("quality: {gate: before_publish}\n")
    gated = Warehouse(warehouse.root, replace(pipeline, quality=Quality(gate=BEFORE_PUBLISH)), warehouse.spark)
    send()
    land(gated)
    pair_events.main(gated)
    alarm(lambda: publish_compounds.main(gated))
    before = version(gated, "raw_metrics")
    delete_by_hand(gated, "raw_metrics")
    with pytest.raises(report.BrokenBatch):
        report_quality.main(gated)
    alarm(lambda: publish_compounds.main(gated))
    DeltaTable(gated.path("raw_metrics")).restore(before)
    assert consume(broker.bootstrap, pipeline.output_topic) == []
    mend(BATCH=1)
    assert_on_topic(gated, broker)


@pytest.mark.long
def test_does_not_add_up(alarm, mend, warehouse, pipeline, send):
    send()
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    before = version(warehouse, "compound_events")
    delete_by_hand(warehouse, "compound_events")
    alarm(lambda: fail_if_any(pipeline.name, reconcile.main(warehouse).offenders))
    mend(TABLE="compound_events", VERSION=before)
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_executors_missing(alarm, mend, warehouse, pipeline, project, broker, send, tmp_path, monkeypatch):
    """The folder is that of all: master, worker and driver are on one machine."""
    with (
        LocalCluster(tmp_path / "cluster", free_port(), ("127.0.0.1",)) as cluster,
        LocalSpark(tmp_path / "first", free_port(), cluster.master) as holder,
        LocalSpark(tmp_path / "second", free_port(), cluster.master) as server,
    ):
        # The first has the one core for as long as it lives.
        file = project / "include" / "pipelines" / f"{pipeline.name}.yaml"
        jobs = Jobs(file, pipeline, broker.bootstrap, server.url, warehouse.root, by_spark=True)
        jobs.environment[WITHIN_VARIABLE] = "3"
        send()

        def land_on_the_cluster():
            running = jobs.start("land_events")
            assert running.wait() == 1, running.told()
            raise JobProblem(running.told().splitlines()[-1].removeprefix("error: "))

        alarm(land_on_the_cluster)
        jobs.environment[WITHIN_VARIABLE] = mend()[WITHIN_VARIABLE]
        waiting = jobs.start("land_events")
        wait_for(lambda: "waiting for an executor" in waiting.told(), "the job to wait")
        holder.stop()
        assert waiting.wait() == 0, waiting.told()
        assert [len(table_rows(warehouse, table)) for table in ("raw_analytics", "raw_metrics")] == [3, 3]


@pytest.mark.long
def test_kafka_not_reachable(alarm, mend, warehouse, pipeline, project, monkeypatch, send):
    port = free_port()
    monkeypatch.setenv("KAFKA_PORT", str(port))
    monkeypatch.setenv(VARIABLE, json.dumps({"bootstrap.servers": f"127.0.0.1:{port}"}))
    monkeypatch.setattr(offsets, "ANSWER_WITHIN_S", 2.0)
    alarm(lambda: land(warehouse))
    try:
        mend()
        create_topics(f"127.0.0.1:{port}", dict.fromkeys((side.topic for side in pipeline.sides), 1))
        send()
        assert land(warehouse)["landed"] == 6
    finally:
        stop_programs(project / ".local" / "broker")


@pytest.mark.long
def test_kafka_rights_missing(alarm, mend, warehouse, pipeline, tmp_path_factory, monkeypatch):
    certificates = secured_broker.make_certificates(tmp_path_factory.mktemp("certificates"))
    with SecuredBroker(tmp_path_factory.mktemp("secured"), certificates) as guarded:
        rights = documented(pipeline)
        create_topics(guarded.bootstrap, dict.fromkeys((side.topic for side in pipeline.sides), 1))
        grant(guarded.bootstrap, "User:pairing", rights[1:])
        authority = {"ssl.ca.location": str(certificates / "authority.pem")}
        monkeypatch.setenv(VARIABLE, json.dumps(secured_broker.login(guarded) | authority | {"sasl.mechanism": "PLAIN"}))
        assert alarm(lambda: land(warehouse)).endswith(rights[0])
        mend(ADDRESS=guarded.bootstrap)
        assert land(warehouse)["batch_id"] == 1


def test_kafka_settings_missing(alarm, mend, warehouse, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    alarm(lambda: land(warehouse))
    monkeypatch.setenv(VARIABLE, mend()[VARIABLE])
    assert land(warehouse)["batch_id"] == 1


def test_schema_registry(alarm, mend, warehouse, pipeline, apicurio, monkeypatch):
    schema = {
        "type": "record",
        "name": "Call",
        "fields": [{"name": "user1", "type": "string"}, {"name": "user2", "type": "string"}],
    }
    framed = Warehouse(warehouse.root, replace(pipeline, left=replace(pipeline.left, format="avro")), warehouse.spark)
    key = apicurio.register("calls-value", "AVRO", json.dumps(schema))
    producer = Producer(kafka_settings())
    producer.produce(pipeline.left.topic, value=b"\x00" + key.to_bytes(4, "big") + b"\x06ann\x06bob")
    assert producer.flush(20) == 0
    monkeypatch.setenv(REGISTRY, json.dumps({"url": f"http://127.0.0.1:{free_port()}"}))
    monkeypatch.setattr(registry_client, "PATIENCE_S", 0.5)
    alarm(lambda: land(framed))
    monkeypatch.setenv(REGISTRY, mend(ADDRESS=apicurio.url)[REGISTRY])
    land(framed)
    assert [row["problem"] for row in table_rows(framed, "raw_analytics")] == [None]


def test_kafka_settings_refused(alarm, mend, project, broker, monkeypatch):
    def use(key):
        files = {"ssl.certificate.location": str(project / "cert.pem"), "ssl.key.location": str(project / key)}
        monkeypatch.setenv(
            VARIABLE, json.dumps({"bootstrap.servers": broker.bootstrap, "security.protocol": "ssl", **files})
        )

    for command in (
        "openssl req -x509 -nodes -newkey rsa:2048 -keyout made.pem -subj /CN=client -out cert.pem",
        "openssl pkey -in made.pem -outform DER -out key.der",
    ):
        subprocess.run(command.split(), cwd=project, check=True, capture_output=True)
    use("key.der")
    alarm(kafka_settings)
    mend()
    use("key.pem")
    assert kafka_settings()["ssl.key.location"].endswith("key.pem")


@pytest.mark.long
def test_lost_range(alarm, mend, warehouse, pipeline, broker, send):
    send()
    land(warehouse)
    send()
    topic = pipeline.left.topic
    ends = offsets.ask_broker(kafka_settings(), [topic]).end
    admin = admin_of(broker)
    for deleted in admin.delete_records([TopicPartition(*place, end) for place, end in ends.items()]).values():
        deleted.result(timeout=20)
    line = alarm(lambda: land(warehouse))
    mend(RANGES=line.partition("accept_lost_range = ")[2])
    landed = [dict(row["counts"]) for row in table_rows(warehouse, "batch_ledger") if row["step"] == "landed"]
    assert sorted(counts["lost"] for counts in landed) == [0, 3]
    land(warehouse)


@pytest.mark.long
def test_log_cut(alarm, mend, warehouse, pipeline, broker, send):
    send()
    run_all(warehouse)
    before = offsets.ask_broker(kafka_settings(), [pipeline.left.topic]).end
    send()
    run_all(warehouse)
    after = offsets.ask_broker(kafka_settings(), [pipeline.left.topic]).end
    place = next(place for place in before if before[place] < after[place])
    cut_log(broker, *place, before[place])
    # By now the log is longer than it was.
    send(6)
    line = alarm(lambda: land(warehouse))
    lost = lost_range(*place, before[place], after[place])
    mend(BATCH=re.search(r"rewind to batch (\d+)", line)[1], RANGES=lost)
    landed = [dict(row["counts"]) for row in table_rows(warehouse, "batch_ledger") if row["step"] == "landed"]
    assert sorted(counts["lost"] for counts in landed) == [0, 0, after[place] - before[place]]
    run_all(warehouse)
    assert reconcile.main(warehouse).offenders == []
    assert_on_topic(warehouse, broker, times=3)


def test_offset_gaps(alarm, mend, warehouse, pipeline, project):
    file = project / "include" / "pipelines" / "calls.yaml"
    file.write_text(file.read_text() + "offset_gaps: fail\n")
    producer = Producer(kafka_settings() | {"transactional.id": pipeline.left.topic})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(pipeline.left.topic, b"{}")
    producer.commit_transaction(20)
    alarm(lambda: land(replace(warehouse, pipeline=load_pipeline(file))))
    mend()
    assert land(replace(warehouse, pipeline=load_pipeline(file)))["batch_id"] == 2
    landed = [dict(row["counts"]) for row in table_rows(warehouse, "batch_ledger") if row["step"] == "landed"]
    assert max(counts["offset_gaps"] for counts in landed) == 1


@pytest.mark.long
def test_open_transaction(alarm, mend, warehouse, pipeline, send):
    stranger = Producer(kafka_settings() | {"transactional.id": pipeline.output_topic})
    stranger.init_transactions(20)
    stranger.begin_transaction()
    stranger.produce(pipeline.output_topic, b"{}", partition=1)
    stranger.flush(20)
    send()
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    line = alarm(lambda: report_quality.main(warehouse))
    partition, offset = re.search(r"--partition (\d+) --start-offset (\d+)$", line).groups()
    mend(PARTITION=partition, OFFSET=offset)
    assert report_quality.main(warehouse)["pair"] == 3


@pytest.mark.long
def test_output_topic_changed(alarm, mend, warehouse, pipeline, broker, send):
    send()
    run_all(warehouse)
    recreate(broker, pipeline.output_topic)
    send()
    land(warehouse)
    pair_events.main(warehouse)
    line = alarm(lambda: publish_compounds.main(warehouse))
    mend(TOPIC_ID=line.split()[-1])
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == 3
    send()
    assert run_all(warehouse)["pair"] == 3


def test_position_disagrees(alarm, mend, warehouse, pipeline, broker, send):
    send()
    land(warehouse)
    pair_events.main(warehouse)
    stranger = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{pipeline.name}.publisher"})
    topic = output_topic(kafka_settings(), pipeline.output_topic)
    position = Position(7, warehouse.table_id("compound_events"), topic.partitions, topic.topic_id)
    ahead = TopicPartition(pipeline.output_topic, 0, position.batch_id, metadata=position.metadata())
    stranger.commit(offsets=[ahead], asynchronous=False)
    stranger.close()
    alarm(lambda: publish_compounds.main(warehouse))
    mend()
    assert publish_compounds.main(warehouse)["sent"] == 3
    assert_on_topic(warehouse, broker)


@pytest.mark.long
def test_positions_lost(alarm, mend, warehouse, pipeline, broker, send):
    send()
    land(warehouse)
    pair_events.main(warehouse)
    publish_only(warehouse, 0, 1)
    admin, group = admin_of(broker), f"{pipeline.name}.publisher"
    admin.delete_consumer_groups([group])[group].result(timeout=20)
    alter_topic(admin, pipeline, "cleanup.policy", "compact")
    assert "the topic is compacted" in alarm(lambda: publish_compounds.main(warehouse))
    mend()
    assert_on_topic(warehouse, broker, times=2)
    send()
    land(warehouse)
    pair_events.main(warehouse)
    assert publish_compounds.main(warehouse)["sent"] == 3


@pytest.mark.long
def test_published_count_differs(alarm, mend, warehouse, broker, send):
    send()
    land(warehouse)
    pair_events.main(warehouse)
    before = version(warehouse, "compound_events")
    delete_by_hand(warehouse, "compound_events")
    alarm(lambda: publish_compounds.main(warehouse))
    mend(VERSION=before)
    assert publish_compounds.main(warehouse)["sent"] == 3
    assert_on_topic(warehouse, broker)


@pytest.mark.long
def test_topic_silent(mend, warehouse, broker, pipeline):
    """The producer has kept back its side of three calls, and sends it when they were published one-sided."""
    impatient = Warehouse(warehouse.root, replace(pipeline, quality=Quality(silence_ms=100)), warehouse.spark)
    producer, now = Producer(kafka_settings() | {"partitioner": "murmur2_random"}), time.time_ns() // 1_000_000

    def send_side(side, users, later=0):
        for user in users:
            body = {"user1": user, "user2": "v", "timestamp": now + later, side.payload: "x"}
            producer.produce(side.topic, key=f"{user}-v", value=json.dumps(body), timestamp=now + later)
        assert producer.flush(20) == 0

    for later, user in ((0, "u0"), (60, "u1"), (120, "u2")):
        send_side(pipeline.right, [user], later)
    time.sleep(0.5)
    said = run_all(impatient)["says"]
    assert said.startswith(
        f"{pipeline.left.topic} has not had one accepted record, while {pipeline.right.topic} sends since"
    )
    assert runbook(said) == "docs/runbooks/topic-silent.md"
    for later, user in ((0, "u0"), (60, "u1"), (120, "u2")):
        send_side(pipeline.left, [user], later)
    said = run_all(impatient)["says"]
    ended, lasting = said.split("; ")
    assert ended.startswith(f"{pipeline.left.topic} sends again: it was silent since")
    assert ended.endswith("with 3 right_only")
    assert lasting == "warning since batch 2: late events of the last 7 days that a replay would pair: 3"
    assert runbook(said) == "docs/runbooks/topic-silent.md"
    mend(BEGIN=now - 1_000, END=now + 121)
    compounds = Counter((row["op"], row["kind"]) for row in table_rows(warehouse, "compound_events"))
    assert compounds == {("upsert", "right_only"): 3, ("retract", "right_only"): 3, ("upsert", "pair"): 3}


@pytest.mark.long
def test_orphans(mend, warehouse, broker, pipeline):
    """Somebody takes the problem over while the producer of one side is mended; then both send again."""
    strict = Warehouse(warehouse.root, replace(pipeline, quality=Quality(max_orphan_ratio=0.5)), warehouse.spark)
    pages = pages_in(pages_folder(warehouse.root, pipeline.name))
    send_sides(pipeline.sides[:1], 12)
    run_all(strict)
    (problem,) = read_state(pages).problems
    assert runbook(problem.text) == "docs/runbooks/orphans.md" == problem.runbook
    mend(PROBLEM=problem.name, PERSON="ann", NOTE="the producer is being mended")
    assert (read_state(pages).verdict, read_state(pages).problems[0].acknowledged.by) == (HEALTHY, "ann")
    send_sides(pipeline.sides, 12)
    run_all(strict)
    assert read_state(pages).problems == ()


@pytest.mark.long
def test_late_events(mend, warehouse, broker, pipeline):
    pages, (left, right) = pages_in(pages_folder(warehouse.root, pipeline.name)), pipeline.sides
    # Of a minute that is over.
    at = send_sides([left], 3, time.time_ns() // 1_000_000 - 120_000)
    run_all(warehouse)
    run_all(warehouse)
    send_sides([right], 3, at)
    run_all(warehouse)
    # Those that came first were published as orphans.
    _, problem = read_state(pages).problems
    assert problem.text == "late events of the last 7 days that a replay would pair: 3"
    assert runbook(problem.text) == "docs/runbooks/late-events.md" == problem.runbook
    # No more of the minute than they need.
    mend(BEGIN=at, END=at + 1)
    state = read_state(pages)
    assert "late_healable" not in {each.name for each in state.problems} and state.news == (f"over: {problem.text}",)


@pytest.mark.long
def test_pipeline_stands_still(mend, warehouse, broker, pipeline, send):
    """No run comes for two hours, while records do."""
    pages, schedule = pages_in(pages_folder(warehouse.root, pipeline.name)), "*/5 * * * *"
    send()
    run_all(warehouse)
    problem = overdue(read_state(pages), schedule, time.time() + 7_200)
    assert runbook(problem.text) == "docs/runbooks/pipeline-stands-still.md" == problem.runbook
    send()
    mend()
    state = read_state(pages)
    assert (state.batch, overdue(state, schedule, time.time())) == (problem.batch + 1, None)
    assert len(table_rows(warehouse, "compound_events")) == 6
    assert_on_topic(warehouse, broker)


def send_sides(sides, calls, at=None):
    """An event of each side for so many calls, over when they are landed; and their timestamp."""
    producer, at = Producer(kafka_settings() | {"partitioner": "murmur2_random"}), at or time.time_ns() // 1_000_000
    for side in sides:
        for number in range(calls):
            body = {"user1": f"u{number}", "user2": "v", "timestamp": at, side.payload: "x"}
            producer.produce(side.topic, key=f"u{number}-v", value=json.dumps(body))
    assert producer.flush(20) == 0
    time.sleep(0.3)
    return at


@pytest.mark.long
def test_replay(alarm, mend, warehouse, broker, send):
    send()
    run_all(warehouse)
    clock = Ledger(warehouse).last_batch()[PAIRED].clock
    window = Window(clock - 3_600_000, clock)
    alarm(lambda: replay_interval.main(warehouse, window))
    mend()
    assert replay_interval.main(warehouse, window)["unchanged"] == 3
    assert_on_topic(warehouse, broker)


@pytest.mark.long
def test_rewind(alarm, mend, warehouse, broker, send):
    send()
    run_all(warehouse)
    send()
    # It can never be paired: the records that it landed are not those that were planned.
    land(warehouse)
    delete_by_hand(warehouse, "raw_metrics", "batch_id = 2")
    with pytest.raises(BrokenInvariant):
        pair_events.main(warehouse)
    line = alarm(lambda: dry_run(warehouse, 2))
    mend(BATCH=re.search(r"name batch (\d+)", line)[1])
    assert run_all(warehouse)["pair"] == 3
    assert reconcile.main(warehouse).offenders == []
    assert_on_topic(warehouse, broker)


@pytest.mark.long
def test_table_damaged(alarm, mend, warehouse, broker, send, tmp_path):
    send()
    run_all(warehouse)
    folder = Path(warehouse.root, warehouse.pipeline.name)
    shutil.copytree(folder, tmp_path / "backup")

    def land_anew():
        # As a new process does, which has read no table yet.
        delta_log._cache.clear()
        land(warehouse)

    first = log_file(warehouse.path("compound_events"), 0)
    Path(first).unlink()
    assert alarm(land_anew) == str(damaged(first, "is missing"))
    # Nobody reads what is older than the newest checkpoint.
    cut = Path(log_file(warehouse.path("batch_ledger"), version(warehouse, "batch_ledger")))
    cut.write_bytes(cut.read_bytes()[:100])
    assert alarm(land_anew) == str(damaged(str(cut), "is cut off or overwritten"))
    shutil.rmtree(warehouse.path("rejected_events"))
    alarm(land_anew)
    mend(BACKUP=tmp_path / "backup")
    send()
    assert run_all(warehouse)["pair"] == 3
    assert_on_topic(warehouse, broker)


def test_table_changed(alarm, mend, warehouse, broker, send, tmp_path):
    send()
    run_all(warehouse)
    folder = Path(warehouse.root, warehouse.pipeline.name)
    shutil.copytree(folder, tmp_path / "backup")
    DeltaTable(warehouse.path("raw_analytics")).alter.add_columns([Field("note", "string")])
    send()
    assert "other columns than the pipeline's (note)" in alarm(lambda: land(warehouse))
    newer = {"eventPairing.format": "3", "eventPairing.version": "2.0.0"}
    DeltaTable(warehouse.path("batch_ledger")).alter.set_table_properties(newer, raise_if_not_exists=False)
    assert "has format 3, written by version 2.0.0" in alarm(lambda: land(warehouse))
    mend(BACKUP=tmp_path / "backup")
    assert run_all(warehouse)["pair"] == 3
    assert_on_topic(warehouse, broker)


def test_store_refused(alarm, mend, warehouse, monkeypatch):
    place = Store(warehouse.root).at(warehouse.pipeline.name)
    with monkeypatch.context() as careless:
        careless.setattr(probe, "_put", lambda *_: True)
        assert "let 9 of 9 writers create the same object" in alarm(lambda: probe.check_store(place))
    probe.check_store(place)
    mend()
    assert read_text(place, probe.PROBE_RESULT) is None
    probe.check_store(place)
    assert "refused" in read_text(place, probe.PROBE_RESULT)


def test_topic_missing(alarm, mend, warehouse, pipeline, broker):
    delete(broker, pipeline.right.topic)
    alarm(lambda: land(warehouse))
    mend()
    land(warehouse)
    (planned,) = (row for row in table_rows(warehouse, "batch_ledger") if row["step"] == "planned")
    assert Counter(part["topic"] for part in planned["offsets"])[pipeline.right.topic] == 4


@pytest.mark.long
def test_topic_recreated(alarm, mend, warehouse, pipeline, broker, project, send, spark):
    send()
    land(warehouse)
    recreate(broker, pipeline.left.topic)
    alarm(lambda: land(warehouse))
    mend()
    send()
    successor = load_pipeline(project / "include" / "pipelines" / "calls_2.yaml")
    assert run_all(Warehouse(warehouse.root, successor, spark))["landed"] == 9


HOLD = """
import sys, time
from spark_jobs.tables.one_writer import writer_lock
with writer_lock(sys.argv[1], "calls", "pair_events", 1):
    print("locked", flush=True)
    time.sleep(600)
"""


def test_writer_lock_held(alarm, mend, warehouse):
    command = [sys.executable, "-c", HOLD, warehouse.root]
    holder = subprocess.Popen(command, cwd=ROOT, env=project_environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "locked\n"

        def write():
            with writer_lock(warehouse.root, "calls", "land_events", 0.3):
                pytest.fail("two writers at once")

        line = alarm(write)
        mend(PID=re.search(r"\(process (\d+)", line)[1])
        holder.wait(timeout=20)
        with writer_lock(warehouse.root, "calls", "land_events", 1):
            pass
    finally:
        holder.kill()


@pytest.fixture
def disk(project):
    small = SmallDisk(project / ".local" / "warehouse")
    small.mounted_or_skipped()
    yield small
    small.unmount()


@pytest.mark.long
def test_archive_not_writable(alarm, mend, warehouse, send, tmp_path, monkeypatch):
    send()
    run_all(warehouse)
    archive, day = tmp_path / "not there", 86_400_000
    care = Maintenance(None, raw_retention_ms=day, time_travel_ms=day, archive=str(archive))
    mine = replace(warehouse, pipeline=replace(warehouse.pipeline, maintenance=care))
    monkeypatch.setattr(upkeep, "_now", lambda: int(time.time() * 1000) + 2 * day)
    alarm(lambda: maintain_tables.main(mine))
    assert [len(table_rows(mine, f"raw_{side}")) for side in ("analytics", "metrics")] == [3, 3]
    mend(ARCHIVE=archive)
    assert maintain_tables.main(mine)["removed_raw"] == 6
    assert len(list(archive.rglob("*.parquet"))) == 2


def test_warehouse_not_writable(disk, alarm, mend, submit, warehouse, send, broker):
    send()
    # Jobs have been here before.
    probe.check_store(Store(warehouse.root).at(warehouse.pipeline.name))
    disk.fill()
    line = alarm(lambda: land(warehouse))
    assert line.startswith(f"{warehouse.path('batch_ledger')} cannot be written (No space left on device)")
    # The lock file says who holds it, for which there is no room either.
    assert submit("land_events").startswith(f"{warehouse.root}/calls cannot be written (No space left on device)")
    disk.mend()
    (Path(warehouse.root) / "calls" / "writer.lock").write_text("x" * 200)
    disk.fill()
    assert submit("land_events") == line
    mend(succeeds=False)
    disk.mend()
    mend()
    run_all(warehouse)
    assert_on_topic(warehouse, broker)
