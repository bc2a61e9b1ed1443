"""Load for hours: traffic at the highest rate that the machine holds, the scheduler every minute, and proof of what held.

    python -m tests.load [--hours 1] [--rate CALLS] [--kills 6] [--picture docs/images/load.svg]

A broker, a Spark server and an Airflow of its own, as `make demo` starts them, on free ports and in a folder that is deleted. First the
rate is searched for, unless `--rate` says it. Then the run: sample calls all the while, the live DAG every minute, and a replay, a
backfill or maintenance every few minutes. Then a job, the Spark server and the broker are killed at random moments. In the end the
traffic stops, what is open is closed, and everything is counted. Prints a table of laws and draws a picture. Exit status 1 if a law does
not hold, 130 after Ctrl-C, which ends all servers.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from include.local.airflow_client import AirflowError
from include.local.machine import ROOT, SetupError, say
from include.sample.sending import SampleError
from include.sample.truth import ledger_clock
from tests.benches.measuring import scratch
from tests.helpers.job_processes import Jobs
from tests.load import counts
from tests.load.beside import MAINTENANCE, Beside
from tests.load.heartbeat import heartbeat
from tests.load.laws import Law, table
from tests.load.phases import RECORDS_A_CALL, Phases
from tests.load.servers import PIPELINE, Servers, servers
from tests.load.verdict import counted, drawn, judged, laws
from tests.load.watch import LoadFailed, Watch
from tests.soak.traffic import TrafficFailed

PICTURE = ROOT / "docs" / "images" / "load.svg"
BESIDE_EVERY_S = 180.0
FIRST_RATE = 2_000.0


class Given(NamedTuple):
    """What the command line asks for. `rate`, `first`: calls a second; no rate: it is searched for."""

    hours: float
    rate: float | None
    first: float
    window: float
    kills: int
    seed: int
    picture: Path


def load(folder: Path, running: Servers, given: Given) -> tuple[list[Law], str]:
    """All phases on running servers; the laws and the picture. Raises LoadFailed, TrafficFailed, SampleError, SetupError, AirflowError."""
    beside = Beside(running.client, BESIDE_EVERY_S)
    watch = Watch(running, beside)
    phases = Phases(running, watch, folder, given.seed)
    for dag_id in (PIPELINE, MAINTENANCE):
        watch.client.pause(dag_id, False)
    calls = given.rate or phases.search(given.first, given.window)
    seconds = 3600 * given.hours
    say(f"the run: {calls * RECORDS_A_CALL:,.0f} records/s ({calls:,.0f} calls) for {seconds / 60:.0f} min")
    watch.rate = calls * RECORDS_A_CALL
    phases.check_disk(seconds)
    with phases.sending(calls):
        begin = watch.now
        watch.during(seconds)
        run = judged(watch, begin, watch.now)
        phases.attack(given.kills)
    phases.drain()
    svg = drawn(watch, run, begin)
    return [*laws(run, watch), *count(running, phases)], svg


def count(running: Servers, phases: Phases) -> list[Law]:
    """Compares all that came out with all that was sent."""
    clock = ledger_clock(running.warehouse, running.pipeline)
    kafka = {"bootstrap.servers": running.broker.bootstrap}
    with heartbeat("comparing with the truth"):
        found = counts.compare(phases.truths, running.pipeline, kafka, running.warehouse, clock)
    print("\n".join(f"  {line}" for line in found.differences), flush=True)
    jobs = Jobs(running.file, running.pipeline, running.broker.bootstrap, running.spark.url, running.warehouse)
    command = [sys.executable, "-m", "spark_jobs.reconcile", "--pipeline", str(running.file)]
    with heartbeat("reconcile"):
        status = subprocess.run(command, cwd=ROOT, env=jobs.environment, stdin=subprocess.DEVNULL, check=False).returncode
    landed = counts.landed_rows(running.warehouse, running.pipeline)
    return [
        *counted(phases.sent, landed, found.compounds, found.published, len(found.differences)),
        Law("every event in one compound or rejected, by reconcile", "status 0", f"status {status}", status == 0),
    ]


def on_signals() -> None:
    """The first signal to end is a KeyboardInterrupt; while servers are ended for it, others are ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        say("interrupted: ending all servers ...")
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


def arguments() -> Given:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=1.0, help="of the run, fractions too; default 1")
    parser.add_argument("--rate", type=float, help="calls a second, about two records each; default: searched for")
    parser.add_argument(
        "--first", type=float, default=FIRST_RATE, help=f"rate at which the search begins; default {FIRST_RATE:g}"
    )
    parser.add_argument("--window", type=float, default=180.0, help="seconds of a step of the search; default 180")
    parser.add_argument("--kills", type=int, default=6, help="kill -9 after the run; default 6")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="default docs/images/load.svg")
    return Given(**vars(parser.parse_args()))


def main() -> int:
    """The command; returns its exit status."""
    given = arguments()
    on_signals()
    try:
        with scratch() as folder:
            with servers(folder) as running:
                found, svg = load(folder, running, given)
            left = running.processes()
    except (LoadFailed, TrafficFailed, SampleError, SetupError, AirflowError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: all servers are ended, nothing is left", file=sys.stderr)
        return 130
    found.append(
        Law(
            "left behind",
            "nothing",
            f"{len(left)} processes, {int(folder.exists())} folders",
            not left and not folder.exists(),
        )
    )
    given.picture.write_text(svg, encoding="utf-8")
    say(f"the picture is {given.picture}")
    print("\n".join(["", *table(found), ""]), flush=True)
    broken = [law.name for law in found if law.held is False]
    say(f"NOT HELD: {', '.join(broken)}" if broken else "every law that could be judged holds")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
