"""The whole way from two Kafka topics to the output topic, in one application from a cold start (`make bench-whole`).

    python -m tests.benches.whole [--events 2000000 10000000] [--rounds 3] [--peer COMMAND]

Measured is the wall time of one spark-submit: the JVM's start, the tables' creation, landing, pairing, publishing exactly once.
COMMAND runs another system over the same topics, in turn with ours; {bootstrap}, {left} and {right} in it are replaced, and it
prints a line of JSON with `events_per_s`. Without it the other system is what Kafka Streams once did on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from include.config.pipeline import Pipeline
from include.local.broker import LocalBroker
from include.local.machine import ROOT, project_environment
from include.local.process import free_port
from tests.benches.landing import on_topics
from tests.benches.measuring import HEAP, JAVA, scratch
from tests.conftest import yaml_of

# Kafka Streams 3.9.2 with the original topology (outer join, session window, reduce, suppress), exactly once, RocksDB, two
# threads, on two cores with the broker beside it, 1.96 million events, its JVM's start not counted; median of two runs.
KAFKA_STREAMS_EVENTS_PER_S = 56_900
TARGETS = {2_000_000: 1.0, 10_000_000: 2.0}


def submit(pipeline: Pipeline, folder: Path) -> float:
    """Runs the application cold and gives its seconds; its counts must be those of everything."""
    outcome, log = folder / "outcome.json", folder / "one_application.log"
    environment = project_environment() | {
        "PAIRING_KAFKA": os.environ["PAIRING_KAFKA"],
        "PAIRING_WAREHOUSE": str(folder / "warehouse"),
        "PAIRING_OUTCOME": str(outcome),
    }
    options = ["--master", "local[2]", "--driver-memory", HEAP, "--conf", f"spark.local.dir={folder / 'spark'}"]
    options += ["--conf", f"spark.driver.extraJavaOptions={JAVA}"]
    program = ["spark-submit", *options, "tests/benches/one_application.py", "--pipeline", str(yaml_of(pipeline, folder))]
    with log.open("wb") as output:
        begin = time.perf_counter()
        done = subprocess.run(program, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"the application failed: {log.read_text()[-2000:]}")
    print(f"    {seconds:.1f} s, {json.loads(outcome.read_text())['counts']}", flush=True)
    return seconds


def peer_rate(command: str, bootstrap: str, pipeline: Pipeline) -> float:
    """Events per second that the other system says it did."""
    given = shlex.split(command.format(bootstrap=bootstrap, left=pipeline.left.topic, right=pipeline.right.topic))
    printed = subprocess.run(given, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    rate = float(json.loads(printed.strip().splitlines()[-1])["events_per_s"])
    print(f"    peer {rate:,.0f} events/s", flush=True)
    return rate


def measure(broker: LocalBroker, folder: Path, events: int, rounds: int, peer: str | None) -> None:
    """Prints the rate of the whole way and its ratio to the peer's."""
    pipeline = on_topics(broker, events)
    print(f"{events:,} events, Kafka to Kafka, cold", flush=True)
    seconds, peers = [], []
    for number in range(rounds):
        # A name of its own gives each run its own tables and its own position on the output topic.
        mine = folder / f"{events}-{number}"
        mine.mkdir()
        seconds.append(submit(replace(pipeline, name=f"{pipeline.name}r{number}"), mine))
        shutil.rmtree(mine)
        peers += [peer_rate(peer, broker.bootstrap, pipeline)] if peer else []
    rate, other = events / statistics.median(seconds), statistics.median(peers or [KAFKA_STREAMS_EVENTS_PER_S])
    measured = "beside it" if peers else "known"
    wanted = TARGETS.get(events)
    verdict = "" if wanted is None else f"; at least {wanted:.1f}: {'met' if rate >= wanted * other else 'MISSED'}"
    spread = f"{events / max(seconds):,.0f} to {events / min(seconds):,.0f}"
    print(f"  {rate:,.0f} events/s ({spread}) / {other:,.0f} ({measured}): {rate / other:.2f}{verdict}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.whole", description=__doc__)
    arguments.add_argument("--events", type=int, nargs="+", default=list(TARGETS))
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--peer", metavar="COMMAND")
    given = arguments.parse_args()
    with scratch() as folder, LocalBroker(folder / "broker", free_port()) as broker:
        for events in given.events:
            measure(broker, folder, events, given.rounds, given.peer)


if __name__ == "__main__":
    main()
