"""Time to recover after a kill -9 in each stage, beside an undisturbed run and an empty one (`make bench-recovery`).

    python -m tests.benches.recovery [--calls 5000] [--rounds 3]

In every round each job of one run of the DAG is killed once, just before it records what it has done, so that as much as can be is done
twice; then it is tried again at once. Measured is the time from the kill to the end of that second try, which Airflow begins about
half a minute later. Jobs are started by spark-submit and work on a Spark server, as in `make demo`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from include.local.broker import LocalBroker, create_topics
from include.local.machine import ROOT
from include.local.process import free_port
from include.local.spark import LocalSpark
from include.sample.calls import generate, send
from include.sample.outcome import last_clock
from tests.benches.measuring import scratch
from tests.conftest import yaml_of
from tests.helpers.job_processes import Faults, Jobs, wait_for
from tests.helpers.timeline import CALLS

KILLED_AT = {
    "land_events": "before_landed",
    "pair_events": "before_paired",
    "publish_compounds": "transaction_offsets_sent",
    "report_quality": "before_reported",
}
PARTITIONS = 4


def submit(jobs: Jobs, job: str) -> subprocess.Popen[bytes]:
    """Starts a job by spark-submit."""
    command = ["spark-submit", f"spark_jobs/{job}.py", "--pipeline", str(jobs.file)]
    with (jobs.file.parent / "job.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=jobs.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def run(jobs: Jobs, job: str) -> float:
    """Seconds of a job from its start to its end."""
    begin = time.perf_counter()
    if submit(jobs, job).wait():
        sys.exit(f"{job} failed: {(jobs.file.parent / 'job.log').read_text()[-2000:]}")
    return time.perf_counter() - begin


def kill(jobs: Jobs, job: str, faults: Faults) -> None:
    """Starts a job and kills it at its point."""
    point = KILLED_AT[job]
    faults.arm(point)
    process = submit(jobs, job)
    wait_for(lambda: faults.is_reached(point), f"{job} to come to {point}")
    os.killpg(process.pid, signal.SIGKILL)
    faults.disarm(point)


def one_round(jobs: Jobs, faults: Faults | None, calls: int, seed: int, bootstrap: str) -> dict[str, float]:
    """Job -> seconds of its run; with `faults`, of the second try, counted from the kill. Of a batch of so many new calls."""
    if calls:
        now, late_before = time.time_ns() // 1_000_000, last_clock(jobs.warehouse, jobs.pipeline)
        send(generate(jobs.pipeline, calls, seed, now, late_before).records, {"bootstrap.servers": bootstrap})
    seconds = {}
    for job in KILLED_AT:
        if faults:
            kill(jobs, job, faults)
        seconds[job] = run(jobs, job)
    return seconds


def measure(folder: Path, calls: int, rounds: int) -> None:
    """Takes turns: a round undisturbed, one with kills, one without a record to land; prints the medians."""
    faults = Faults(folder / "faults")
    faults.folder.mkdir()
    # The publisher stands still in a worker of the server.
    os.environ["PAIRING_FAULT_DIR"] = str(faults.folder)
    with LocalBroker(folder / "broker", free_port()) as broker, LocalSpark(folder / "spark", free_port()) as server:
        server.warm_up()
        pipeline = replace(CALLS, name="recovering")
        topics = [side.topic for side in pipeline.sides] + [pipeline.output_topic]
        create_topics(broker.bootstrap, dict.fromkeys(topics, PARTITIONS))
        jobs = Jobs(yaml_of(pipeline, folder), pipeline, broker.bootstrap, server.url, folder / "warehouse", faults)
        kinds: dict[str, tuple[Faults | None, int]] = {
            "undisturbed": (None, calls),
            "next try after a kill": (faults, calls),
            "empty batch": (None, 0),
        }
        measured: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        # The first is not measured.
        one_round(jobs, None, calls, 1, broker.bootstrap)
        for number in range(rounds):
            for place, (kind, (stopped_by, new)) in enumerate(kinds.items()):
                seed = 2 + len(kinds) * number + place
                measured[kind].append(one_round(jobs, stopped_by, new, seed, broker.bootstrap))
    print(f"{calls:,} calls a batch, median of {rounds} (smallest to largest)")
    print(" " * 20 + "".join(kind.ljust(25) for kind in kinds))
    for job in (*KILLED_AT, "all four"):
        found = ([seconds.get(job) or sum(seconds.values()) for seconds in measured[kind]] for kind in kinds)
        print(f"{job:18}  {'  '.join(map(_told, found))}", flush=True)


def _told(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):5.1f} s ({min(seconds):.1f} to {max(seconds):.1f})".ljust(23)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--calls", type=int, default=5_000, help="of a batch; two events each")
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with scratch() as folder:
        measure(folder, given.calls, given.rounds)


if __name__ == "__main__":
    main()
