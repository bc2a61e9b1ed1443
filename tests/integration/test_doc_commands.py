"""The commands of the documents run as they stand there, one after the other, as an operator would copy them.

They run in a copy of the project with a broker, a Spark server and tables of its own. Only the names of the shipped topics, the broker's
address and what a reader has to fill in are replaced. kcat does not come with the project: a small program with its options stands in for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from include.config.project import REMOTE_VARIABLE
from include.local.machine import JARS, SPARK_CONF, VENV, project_environment
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.conftest import yaml_of
from tests.helpers.doc_blocks import block_with
from tests.helpers.timeline import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.long]

KCAT = """#!{python}
import argparse, json
from confluent_kafka import Consumer, TopicPartition
parser = argparse.ArgumentParser()
for option in ("-C", "-e", "-J"):
    parser.add_argument(option, action="store_true", required=True)
parser.add_argument("-b", required=True)
parser.add_argument("-t", required=True)
parser.add_argument("-o", action="append", type=lambda text: int(text[2:]))
given = parser.parse_args()
with Consumer({{"bootstrap.servers": given.b, "group.id": "kcat", "enable.auto.commit": False}}) as consumer:
    for number in consumer.list_topics(given.t).topics[given.t].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(given.t, number))
        consumer.assign([TopicPartition(given.t, number, low)])
        for _ in range(low, high):
            record = consumer.poll(20)
            at = record.timestamp()[1]
            if given.o[0] <= at < given.o[1]:
                print(json.dumps({{"topic": given.t, "partition": number, "offset": record.offset(), "ts": at, "payload": record.value().decode()}}))
"""


@pytest.fixture
def project(tmp_path, pipeline):
    """A copy of what the commands need, with the shipped file on topics of the test: every second call has one side only."""
    folder = tmp_path / "project"
    for name in ("include", "spark_jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").symlink_to(VENV)
    (folder / ".local").mkdir()
    for place in (JARS, SPARK_CONF):
        (folder / ".local" / place.name).symlink_to(place)
    mine = replace(pipeline, name="calls", tolerance_ms=50, gap_ms=50, grace_ms=100)
    file = yaml_of(mine, folder / "include" / "pipelines")
    file.write_text(file.read_text() + "quality: {max_orphan_ratio: 0.1}\n")
    (folder / "kcat").write_text(KCAT.format(python=sys.executable))
    (folder / "kcat").chmod(0o755)
    return folder


@pytest.fixture
def run(project, pipeline, broker, tmp_path):
    """run(page, words, WORD=…): the block of the page that has these words; gives what it printed."""
    with LocalSpark(tmp_path / "spark-server", free_port()) as server:
        environment = {name: text for name, text in project_environment().items() if not name.startswith("PAIRING_")}
        environment |= {REMOTE_VARIABLE: server.url, "PAIRING_KAFKA": json.dumps({"bootstrap.servers": broker.bootstrap})}
        environment |= {"PATH": f"{project}{os.pathsep}{environment['PATH']}", "PYTHONPATH": str(project)}

        def run_block(page, words, status=0, **filled):
            names = {"analyticsTopic": pipeline.left.topic, "metricsTopic": pipeline.right.topic, **filled}
            names |= {"127.0.0.1:9092": broker.bootstrap, "localhost:9092": broker.bootstrap}
            script = re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], block_with(ROOT / page, words))
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=project,
                env=environment,
                capture_output=True,
                text=True,
                timeout=400,
            )
            assert done.returncode == status, done.stdout + done.stderr
            return done.stdout

        yield run_block


def rows(project, table):
    return DeltaTable(str(project / ".local" / "warehouse" / "calls" / table)).to_pyarrow_table().to_pylist()


def test_the_commands_of_the_documents_run(project, run, pipeline, broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    began = time.time_ns() // 1_000_000
    for number, (user1, user2) in enumerate((("ann", "bob"), ("cat", "dan"))):
        for side in pipeline.sides[number:]:
            body = {"user1": user1, "user2": user2, "timestamp": began, side.payload: "x"}
            producer.produce(side.topic, key=f"{user1}-{user2}", value=json.dumps(body))
    assert producer.flush(20) == 0
    time.sleep(1)
    sent = time.time_ns() // 1_000_000

    run("README.md", "for job in")
    assert sorted(row["kind"] for row in rows(project, "compound_events")) == ["pair", "right_only"]
    assert [row["step"] for row in rows(project, "batch_ledger")].count("published") == 1
    assert "orphan_ratio" in run("docs/quality.md", "spark_jobs.acknowledge")
    assert "have exactly one outcome" in run("docs/checking.md", "spark_jobs.reconcile")
    assert "ann, bob" in run("docs/checking.md", "spark_jobs.explain_pair")
    assert "nothing" in run("docs/upgrading.md", "include.check_pipelines")
    run("docs/replays.md", "spark_jobs.heal_schemas")
    run("docs/maintenance.md", "spark_jobs/maintain_tables.py")

    played = run("docs/formats.md", "--from-topics").splitlines()
    assert json.loads(played[-1])["landed"] == 3
    # Three records say too little of what their fields are.
    for number in range(200):
        for side in pipeline.sides:
            body = {
                "user1": f"a{number}",
                "user2": f"b{number}",
                "timestamp": began + 60_000 + number * 500,
                side.payload: "x",
            }
            producer.produce(side.topic, json.dumps(body))
    assert producer.flush(20) == 0
    run(
        "docs/formats.md",
        "include.init_pipeline",
        **{"call-ended": pipeline.left.topic, "media-metrics": pipeline.right.topic},
    )
    assert (project / "calls.yaml").is_file()
    run("docs/pairing.md", "kcat -C", **{"s@1767225600000": f"s@{began - 1000}", "e@1767229200000": f"e@{sent}"})
    assert len((project / "dump.jsonl").read_text().splitlines()) == 3

    # Whole seconds, as in the guide; the interval is over when the last batch's clock is past it.
    between = {"2026-01-31T13:00:00Z": str(began - 1000), "2026-01-31T14:00:00Z": str(began + 200)}
    run("docs/replays.md", "spark_jobs/replay_interval.py", **between)
    run("docs/erasure.md", "spark_jobs.erase_key")
    assert {row["user1"] for row in rows(project, "compound_events")} == {None, "cat"}
