"""Kills jobs at random moments under continuous traffic, and proves in the end that nothing is lost and nothing there twice.

    python -m tests.soak [--store s3] [--kills 200] [--minutes N] [--rate 20] [--seed 1]

Sample calls are sent all the while; the jobs run in the DAG's order, again and again, and most of them meet a kill -9 somewhere. Then
the traffic ends, what is left is run without kills, and everything is compared: with the truth of the sample calls, message by message,
and by reconcile. Exit status 1 and what differs if it is not as it has to be. Starts a broker and a Spark server of its own, and
an object store, if the tables are to be on one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from include.config.pipeline import Pipeline
from include.local.broker import LocalBroker, create_topics
from include.local.machine import ROOT, SetupError, say
from include.local.process import free_port
from include.local.spark import LocalSpark
from include.sample import truth as sample_truth
from tests.benches.measuring import scratch
from tests.conftest import yaml_of
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.timeline import CALLS
from tests.helpers.warehouse_place import store_argument, warehouse_on
from tests.soak.attack import Attack, JobFailed
from tests.soak.traffic import TrafficFailed, traffic

# Short, so that the end need not be waited for long; the grace is more than a stopped machine needs to catch its breath.
SOAKED = replace(CALLS, name="soaked", tolerance_ms=2_000, gap_ms=2_000, grace_ms=60_000)
PARTITIONS = 4


def drain(jobs: Jobs, pipeline: Pipeline) -> None:
    """Runs the DAG's order without kills until every session is closed and all is published."""
    over_after_s = (pipeline.gap_ms + pipeline.grace_ms) / 1000 + 1
    say(f"no kills any more; one run now, and one when the last session is over, in {over_after_s:.0f} s")
    over = time.monotonic() + over_after_s
    for wait_s in (0.0, over_after_s):
        time.sleep(max(0.0, over - time.monotonic()) if wait_s else 0)
        for job in JOBS:
            running = jobs.start(job)
            if running.wait():
                raise JobFailed(f"{job} failed without a kill: {running.told()}")


def compare(jobs: Jobs, pipeline: Pipeline, bootstrap: str, truth: Path) -> bool:
    """Prints what came out, and whether it is what had to come out."""
    clock = sample_truth.ledger_clock(jobs.warehouse, pipeline)
    verdict = sample_truth.check([truth], pipeline, {"bootstrap.servers": bootstrap}, jobs.warehouse, clock)
    print("\n".join(f"  {line}" for line in verdict.lines()), flush=True)
    command = [sys.executable, "-m", "spark_jobs.reconcile", "--pipeline", str(jobs.file)]
    reconciled = subprocess.run(command, cwd=ROOT, env=jobs.environment, stdin=subprocess.DEVNULL, check=False)
    return not verdict.differences and not verdict.open and not reconciled.returncode


def soak(folder: Path, store: str | None, kills: float, minutes: float, rate: float, seed: int) -> bool:
    """Whether everything was as it had to be."""
    with (
        warehouse_on(store, folder) as warehouse,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalSpark(folder / "spark", free_port()) as server,
    ):
        topics = [side.topic for side in SOAKED.sides] + [SOAKED.output_topic]
        create_topics(broker.bootstrap, dict.fromkeys(topics, PARTITIONS))
        file, truth = yaml_of(SOAKED, folder), folder / "truth.jsonl"
        jobs = Jobs(file, SOAKED, broker.bootstrap, server.url, warehouse)
        attack = Attack(jobs, Random(seed), say)
        with traffic(file, broker.bootstrap, rate, seed, truth):
            attack.run(kills, minutes * 60)
        say(f"{attack}")
        drain(jobs, SOAKED)
        return compare(jobs, SOAKED, broker.bootstrap, truth)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    store_argument(parser)
    parser.add_argument("--kills", type=int, help="end after so many; default 200, with --minutes: no end")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="end after so many; default: when all are killed"
    )
    parser.add_argument("--rate", type=float, default=20, help="calls a second")
    parser.add_argument("--seed", type=int, default=1, help="of traffic and kills")
    given = parser.parse_args()
    kills = given.kills or (200 if given.minutes == float("inf") else float("inf"))
    with scratch() as folder:
        try:
            good = soak(folder, given.store, kills, given.minutes, given.rate, given.seed)
        except (JobFailed, TrafficFailed, SetupError, sample_truth.SampleError) as error:
            print(error, file=sys.stderr)
            good = False
    say("everything is there, once" if good else "NOT as it has to be, see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
