"""Starts two jobs of one pipeline at the same moment, again and again, and proves in the end that nothing is lost and nothing there twice.

    python -m tests.soak.races [--store s3] [--races 200] [--kinds land/land …]

Each job works on a Spark server of its own, as on two machines, and nothing keeps the two apart: on a folder the lock is taken away. The
loser may find that all is done, or say in one line that somebody else was faster and that it has to run again. A second pipeline reads the same
topics and makes the same batches one after the other; in the end the tables, commits and messages of the two are compared, and reconcile is
asked. Exit status 1 and what differs if they are not equal.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from include.config.store import local_folder
from include.local.broker import LocalBroker
from include.local.machine import ROOT, SetupError, say
from include.local.process import free_port
from include.local.spark import LocalSpark
from spark_jobs.tables.ledger_rows import PLANNED
from spark_jobs.tables.schemas import LEDGER
from tests.benches.measuring import scratch
from tests.helpers.comparing import differences
from tests.helpers.job_processes import JOBS, Jobs
from tests.helpers.stores import table_of
from tests.helpers.timeless_traffic import MINUTE, START, Portions, timeless
from tests.helpers.warehouse_place import store_argument, warehouse_on

LAND, PAIR, PUBLISH, REPORT = JOBS
MAINTAIN = "maintain_tables"
# The time from which the late events of all portions come.
REPLAY = ("replay_interval", f"--window-start={START - 3 * 60 * MINUTE}", f"--window-end={START - 60 * MINUTE}")

Command = tuple[str, ...]
# Who races, and which jobs of the round come before.
KINDS: Mapping[str, tuple[tuple[Command, Command], tuple[str, ...]]] = {
    "land/land": (((LAND,), (LAND,)), ()),
    "pair/pair": (((PAIR,), (PAIR,)), (LAND,)),
    "publish/publish": (((PUBLISH,), (PUBLISH,)), (LAND, PAIR)),
    "land/replay": (((LAND,), REPLAY), ()),
    "maintain/land": (((MAINTAIN,), (LAND,)), ()),
    "maintain/maintain": (((MAINTAIN,), (MAINTAIN,)), (LAND,)),
}
# What a loser may say, besides nothing.
_LOST = ("run this again", "the next run resumes", "fenced", "nobody else", "was planned by another job")
_SAY_EVERY = 10


class RaceFailed(Exception):
    """A job ended as it must not; the text is what it said."""


class Racing:
    """One kind of race: the pipeline that is raced on, by its jobs on two servers, and the calm one."""

    def __init__(
        self, kind: str, folder: Path, broker: LocalBroker, servers: tuple[LocalSpark, LocalSpark], warehouse: str
    ) -> None:
        self.kind, self.bootstrap = kind, broker.bootstrap
        name = kind.replace("/", "_")
        (raced, file), (calm, calm_file) = (
            timeless(f"{name}_{which}", name, folder / "jobs") for which in ("raced", "calm")
        )
        self.both = [Jobs(file, raced, broker.bootstrap, server.url, warehouse) for server in servers]
        self.calm = Jobs(calm_file, calm, broker.bootstrap, servers[1].url, warehouse)
        self.portions = Portions(broker, raced, calm)
        self.batches = 0
        self.ended: Counter[str] = Counter()

    def one_round(self) -> None:
        """A portion, a race, and the same batches for the calm pipeline."""
        commands, before = KINDS[self.kind]
        self.portions.send()
        if not self.batches:
            # Of what is not there yet nothing can be replayed or maintained.
            alone(self.both[0], LAND)
            self._calm_batches()
            self.portions.send()
        for job in before:
            alone(self.both[0], job)
        self._race(commands)
        self._calm_batches()

    def _race(self, commands: tuple[Command, Command]) -> None:
        jobs = self.both[0]
        if (folder := local_folder(str(jobs.warehouse))) is not None:
            (folder / jobs.pipeline.name / "writer.lock").unlink(missing_ok=True)
        running = [jobs.start(*command) for jobs, command in zip(self.both, commands, strict=True)]
        ends = [each.wait(900) for each in running]
        for command, each, status in zip(commands, running, ends, strict=True):
            if status:
                self._note_loser(command[0], each.told())
                alone(jobs, *command)
            else:
                self.ended["well"] += 1

    def _note_loser(self, job: str, told: str) -> None:
        line = told.strip().splitlines()[-1] if told.strip() else ""
        if not line.startswith("error: ") or not any(words in line for words in _LOST):
            raise RaceFailed(f"{job} ended with: {told}")
        self.ended[f"{job}: {line[:160]}"] += 1

    def _calm_batches(self) -> None:
        """Makes the batches that the race has made, in their order: who comes first is open."""
        rows = table_of(self.both[0].warehouse, self.both[0].pipeline, LEDGER).to_pyarrow_table(
            columns=["batch_id", "step", "kind"]
        )
        kinds = {row["batch_id"]: row["kind"] for row in rows.to_pylist() if row["step"] == PLANNED}
        for batch_id in sorted(kinds)[self.batches :]:
            alone(self.calm, *(REPLAY if kinds[batch_id] == "replay" else (LAND,)))
        self.batches = len(kinds)

    def differences(self) -> list[str]:
        """What differs when all is paired, published and reported. Only the raced pipeline was maintained."""
        for jobs in (self.both[0], self.calm):
            for job in (PAIR, PUBLISH, REPORT):
                alone(jobs, job)
        one, calm, maintained = self.both[0], self.calm, MAINTAIN in str(KINDS[self.kind])
        # Maintenance makes commits of its own, and so other versions of the tables.
        found = differences(
            self.bootstrap, one.warehouse, one.pipeline, calm.pipeline, without=("versions",) if maintained else ()
        )
        return [line for line in found if not maintained or not line.startswith("commits of")]


def alone(jobs: Jobs, *command: str) -> None:
    """Runs a job that nobody races with."""
    running = jobs.start(*command)
    # Beside others it takes long.
    if running.wait(900):
        raise RaceFailed(f"{command[0]} of {jobs.pipeline.name} failed alone: {running.told()}")


def reconciles(jobs: Jobs) -> bool:
    command = [sys.executable, "-m", "spark_jobs.reconcile", "--pipeline", str(jobs.file)]
    return not subprocess.run(command, cwd=ROOT, env=jobs.environment, stdin=subprocess.DEVNULL, check=False).returncode


def run_kind(racing: Racing, races: int) -> bool:
    """Whether all is equal after so many races."""
    for number in range(1, races + 1):
        racing.one_round()
        if number % _SAY_EVERY == 0:
            say(f"{racing.kind}: {number} races")
    found = racing.differences()
    print("\n".join(f"  {line[:1000]}" for line in found), flush=True)
    ends = ", ".join(f"{count} ended {how}" for how, count in racing.ended.items())
    good = not found and reconciles(racing.both[0])
    say(f"{racing.kind}: {races} races, {racing.batches} batches, {ends}: {'all equal' if good else 'DIFFERENT'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.races", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    store_argument(parser)
    parser.add_argument("--races", type=int, default=200, help="of each kind")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help="default: " + ", ".join(KINDS)
    )
    given = parser.parse_args()
    with scratch() as folder:
        try:
            with (
                warehouse_on(given.store, folder) as warehouse,
                LocalBroker(folder / "broker", free_port()) as broker,
                LocalSpark(folder / "one", free_port()) as one,
                LocalSpark(folder / "other", free_port()) as other,
            ):
                kinds = [Racing(kind, folder, broker, (one, other), warehouse) for kind in given.kinds]
                good = all([run_kind(kind, given.races) for kind in kinds])
        except (RaceFailed, SetupError) as error:
            print(error, file=sys.stderr)
            good = False
    say("as if one had run" if good else "NOT as it has to be, see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
