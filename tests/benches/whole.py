"""The whole way from two Kafka topics to the output topic, beside other systems on the same topics (`make bench-whole`).

    python -m tests.benches.whole [--traffic slots|chains] [--events 2000000 10000000] [--rounds 3] [--peer 'NAME=COMMAND' ...]

Ours runs twice a round. Cold: one process, with its start and the tables' creation. Warm: the jobs one after the other, each a process of
its own on a Spark server as the DAG runs them, which has done the same once before. Both pair and publish exactly once.

The peers (`tests/benches/peers.py`) take turns with ours. Without one, the other system is what Kafka Streams once did on two cores. The answers on
the traffic `chains` are compared with what was sent; a system's bytes are those of its files, the broker's are listed beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from include.config.pipeline import Pipeline
from include.local.broker import LocalBroker, create_topics
from include.local.machine import ROOT, project_environment
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.benches.chains import Chains, read_answers
from tests.benches.landing import PARTITIONS, bench_topics, delete_named, delete_topics
from tests.benches.measuring import Times, scratch, show_ratio
from tests.benches.peers import Peer, Run, pid_of, run_followed
from tests.benches.traffic import send, slots
from tests.benches.usage import Cost, Usage
from tests.conftest import yaml_of
from tests.helpers.job_processes import JOBS, Jobs

# Kafka Streams 3.9.2 with the original topology (outer join, session window, reduce, suppress), exactly once, RocksDB, two
# threads, on two cores with the broker beside it, 1.96 million events, its JVM's start not counted; median of two runs.
KAFKA_STREAMS_EVENTS_PER_S = 56_900
TARGETS = {2_000_000: 1.0, 10_000_000: 2.0}
COLD, WARM = "ours, cold", "ours, warm"
_WITHIN_S = 3_600.0


class Bench(NamedTuple):
    """Events on topics, and where they are worked on. `judged`: their payloads have the ids by which answers are judged."""

    broker: LocalBroker
    server: LocalSpark
    folder: Path
    pipeline: Pipeline
    events: int
    judged: bool

    def cold(self, number: int) -> Run:
        """All in one application, in a process that has imported nothing yet."""
        return self._run(f"cold{number}", Usage(), self._in_one_process)

    def warm(self, number: int) -> Run:
        """Job by job, on the server."""
        return self._run(f"warm{number}", Usage(pid_of(self.server.folder, "server")), self._do_jobs)

    def _run(self, name: str, own: Usage, work: Callable[[Pipeline, Path, Usage], None]) -> Run:
        # A name of its own gives each run its own tables, and its own position on an output topic of its own.
        output, bootstrap, folder = f"{self.pipeline.output_topic}-{name}", self.broker.bootstrap, self.folder / name
        mine = replace(self.pipeline, name=f"{self.pipeline.name}{name}", output_topic=output)
        create_topics(bootstrap, {output: PARTITIONS}, {"retention.ms": "-1"})
        folder.mkdir(parents=True)
        with Usage(pid_of(self.broker.folder, "kafka")) as broker, own:
            begin = time.perf_counter()
            work(mine, folder, own)
            seconds = time.perf_counter() - begin
        payloads = mine.left.payload, mine.right.payload
        answers = read_answers(bootstrap, output, payloads, self.events) if self.judged else None
        delete_named(bootstrap, output)
        shutil.rmtree(folder)
        return Run(seconds, self.events / seconds, own.cost, broker.cost, answers)

    def _in_one_process(self, mine: Pipeline, folder: Path, own: Usage) -> None:
        environment = project_environment() | {
            "PAIRING_KAFKA": os.environ["PAIRING_KAFKA"],
            "PAIRING_WAREHOUSE": str(folder / "warehouse"),
        }
        program = [sys.executable, "-m", "tests.benches.one_application", "--pipeline", str(yaml_of(mine, folder))]
        status, printed = run_followed(program, own, folder / "application.log", cwd=ROOT, env=environment)
        if status:
            sys.exit(f"the application failed: {printed[-2000:]}")

    def _do_jobs(self, mine: Pipeline, folder: Path, own: Usage) -> None:
        jobs = Jobs(yaml_of(mine, folder), mine, self.broker.bootstrap, self.server.url, folder / "warehouse")
        outcome = folder / "outcome.json"
        jobs.environment["PAIRING_OUTCOME"] = str(outcome)
        backlog = 1
        while backlog:
            for job in JOBS[:3]:
                running = jobs.start(job)
                own.follow(running.process.pid)
                if running.wait(_WITHIN_S):
                    sys.exit(f"{job} failed: {running.told()[-2000:]}")
                if job == JOBS[0]:
                    backlog = json.loads(outcome.read_text())["counts"]["backlog"]


def topics_with(broker: LocalBroker, traffic: str, events: int) -> Pipeline:
    """The shipped pipeline on topics of its own, which hold so many events of this traffic."""
    pipeline, now = bench_topics(broker), time.time_ns() // 1_000_000
    if traffic == "slots":
        send(broker.bootstrap, pipeline, slots(events, now))
    else:
        made = Chains.make(events, now)
        send(broker.bootstrap, pipeline, made.tables())
        chained = made.in_chains(pipeline.gap_ms)
        print(
            f"{made.pairs:,} calls with both sides, {events - 2 * made.pairs:,} with one; {chained:.0%} in chains",
            flush=True,
        )
    return pipeline


def measure(bench: Bench, rounds: int, peers: Sequence[Peer]) -> dict[str, list[Run]]:
    """All systems in turn, the runs of each."""
    runs: dict[str, list[Run]] = {}
    bench.warm(rounds)
    for number in range(rounds):
        turn = {COLD: partial(bench.cold, number), WARM: partial(bench.warm, number)}
        turn |= {
            peer.name: partial(peer.run, bench.broker, bench.pipeline, bench.events, bench.folder, not number)
            for peer in peers
        }
        for name, run in turn.items():
            # A peer does not know whether the traffic has ids.
            found = run() if bench.judged else run()._replace(answers=None)
            runs.setdefault(name, []).append(found)
            print(f"    {name}: {runs[name][-1]}", flush=True)
    return runs


def show(runs: dict[str, list[Run]], events: int) -> None:
    """Medians of all systems; the answers are those of the first round."""
    times = {name: Times([run.seconds for run in mine]) for name, mine in runs.items()}
    titles = "events/s, CPU s, MB, MB written, broker CPU s, MB written, right pairs, mixed, missing, repeated".split(", ")
    print(f"  {'':14}{'s from start':>28}" + "".join(f"{title:>14}" for title in titles))
    for name, mine in runs.items():
        own, broker = Cost.median([run.cost for run in mine]), Cost.median([run.broker for run in mine])
        figures = f"{own.cpu_s:14.1f}{own.memory_mb:14,.0f}{own.written_mb:14,.0f}"
        figures += f"{broker.cpu_s:14.1f}{broker.written_mb:14,.0f}"
        answers = "".join(f"{each:14,}" for each in mine[0].answers or ())
        print(f"  {name:14}{times[name]!s:>28}{median(run.rate for run in mine):14,.0f}{figures}{answers}", flush=True)
    for other in [name for name in runs if name not in (COLD, WARM)]:
        for ours in (COLD, WARM):
            show_ratio(times, ours, other)
    if len(runs) == 2:
        ratio = median(run.rate for run in runs[COLD]) / KAFKA_STREAMS_EVENTS_PER_S
        wanted = TARGETS.get(events)
        verdict = "" if wanted is None else f"; at least {wanted:.1f}: {'met' if ratio >= wanted else 'MISSED'}"
        print(f"  {COLD} / {KAFKA_STREAMS_EVENTS_PER_S:,} events/s (known): {ratio:.2f}{verdict}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.whole", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--traffic", choices=("slots", "chains"), default="slots")
    arguments.add_argument("--events", type=int, nargs="+", default=list(TARGETS))
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--peer", type=Peer.parse, action="append", default=[], metavar="NAME=COMMAND")
    given = arguments.parse_args()
    os.environ["PATH"] = project_environment()["PATH"]
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalSpark(folder / "spark", free_port()) as server,
    ):
        server.warm_up()
        for events in given.events:
            print(f"{events:,} events, traffic {given.traffic}, Kafka to Kafka", flush=True)
            pipeline = topics_with(broker, given.traffic, events)
            bench = Bench(broker, server, folder / f"{events}", pipeline, events, given.traffic == "chains")
            show(measure(bench, given.rounds, given.peer), events)
            delete_topics(broker, pipeline)


if __name__ == "__main__":
    main()
