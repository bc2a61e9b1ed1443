"""One pair's story from real tables and a real topic: each event, each rejection, each revision and where it is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, TopicPartition

from include.config.time_text import moment
from spark_jobs import land_events, publish_compounds, replay_interval
from spark_jobs.tables.records import Window
from tests.conftest import yaml_of
from tests.helpers import stream_clock
from tests.helpers.story_lines import about
from tests.helpers.stream_clock import run, stories
from tests.helpers.timeline import ROOT

pytestmark = pytest.mark.integration

pipeline, send, begun = stream_clock.pipeline, stream_clock.send, stream_clock.begun


def places(broker, topic):
    """(pair_id, revision) -> (partition, offset), by a consumer that knows nothing of ledgers."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "places",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found, at_end = {}, 0
    while at_end < 2:
        message = consumer.poll(20)
        if message.error():
            at_end += 1
            continue
        headers = {name: value.decode() for name, value in message.headers()}
        found[headers["pair-id"], headers["revision"]] = (message.partition(), message.offset())
    consumer.close()
    return found


def test_what_became_of_every_event(warehouse, broker, send, begun, tmp_path, monkeypatch):
    left, right, topic = (warehouse.pipeline.left.topic, warehouse.pipeline.right.topic, warehouse.pipeline.output_topic)
    send("a0:x m50:x a0:x a300:y a:y a4500000:y a2000:tick m2000:tick")
    run(warehouse)
    publish_compounds.main(warehouse)
    send("m350:y a3900:open a4000:tick m4000:tick")
    run(warehouse)
    publish_compounds.main(warehouse)
    replay_interval.main(warehouse, Window(begun, begun + 700))
    publish_compounds.main(warehouse)
    send("m3950:open")
    land_events.main(warehouse, 1_000, ())

    def at(ms):
        return moment(begun + ms)

    told = stories(warehouse)
    replay = f"batch 3, a replay of {at(0)} to {at(700)}"
    y = told["y"]
    assert y[0].startswith("y, v: 3 messages in 2 batches, ")
    assert y[1:3] == [f"batch 1: 2 messages read, clock {at(2000)}", f"batch 2: 1 message read, clock {at(4000)}"]
    assert about(y, f"{left}-0-2 (analytics), {at(300)}, read in batch 1") == [
        "in a session of its own",
        f"closed in batch 1: end + gap + grace = {at(1000)}, and the clock is 1s past that",
        f"alone (left_only): the nearest of the other side is {right}-0-2, 50ms later, rejected in batch 2 as late",
        f"with `grace: 1500ms` it would be paired with {right}-0-2, 50ms later",
        f"{replay}: paired with {right}-0-2, 50ms later",
    ]
    assert about(y, f"{right}-0-2 (metrics), {at(350)}, read in batch 2")[1] == (
        f"rejected in batch 2 as late: end + gap + grace = {at(1050)}, and the clock of batch 1 was 950ms past that already"
    )
    assert about(y, f"{left}-0-4 ")[0].startswith("rejected in batch 1 as future: ")
    assert about(y, f"{left}-0-3 (analytics), no readable key, read in batch 1") == [
        "rejected in batch 1 as malformed_json: the value is not exactly one JSON object in UTF-8",
        "of this pair by its Kafka key only",
    ]
    assert about(told["x"], f"{left}-0-1 ") == [
        f"rejected in batch 1 as duplicate of {left}-0-0: same side, key, timestamp and payload"
    ]
    assert about(told["open"], f"{right}-0-4 ") == ["the batch is not paired yet"]
    assert about(told["open"], f"{left}-0-6 ")[1].startswith("open after batch 2: ")

    on = places(broker, topic)
    (first, at_first), (second, at_second) = (on[f"{left}-0-2", revision] for revision in "01")
    assert about(y, f"compound {left}-0-2") == [
        f"revision 0, left_only, by batch 1: on {topic}-{first} at offset {at_first}",
        f"revision 1, pair, by {replay}: on {topic}-{second} at offset {at_second}",
    ]

    page = by_the_command(warehouse, tmp_path, y)
    assert all(line.strip() in page for line in about(y, f"{right}-0-2 ") if "`" not in line)


def by_the_command(warehouse, tmp_path, lines):
    """What people call: the same lines; and the page that it writes."""
    file = tmp_path / "y.html"
    text = yaml_of(warehouse.pipeline, tmp_path)
    with text.open("a") as settings:
        settings.write("clock: stream_time\n")
    command = [sys.executable, "-m", "spark_jobs.explain_pair", "--pipeline", text, "--warehouse", warehouse.root]

    def call(*arguments):
        return subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    done = call("y", "v", "--html", file)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines() == lines
    nobody = call("nobody", "v")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert nobody.stderr == f"error: no message of nobody, v in 2 batches of pipeline {warehouse.pipeline.name}\n"
    assert call("y").returncode == 2
    return re.sub(r"</?code>", "", file.read_text())
