"""Other systems beside ours: commands that read the same topics and say what they did.

{bootstrap}, {left} and {right} in a command become the broker's address and the topics, {check} `true` in the first round and `false` later. Its last
line is JSON with `events_per_s`. `seconds_from_start` and `process_cpu_s` count instead of what is measured of its process, whose end may have
other work. Its answers are `right_pairs`, `mixed` or `halves_of_different_calls`, `halves` (events in its output) or `calls_not_in_output`,
`repeated` or `repeated_outputs`, also one level deeper.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from include.local.broker import LocalBroker
from include.local.process import running_program
from tests.benches.chains import Answers
from tests.benches.usage import Cost, Usage


class Run(NamedTuple):
    """Of one system, once."""

    seconds: float  # from its start to its end
    rate: float  # events/s
    cost: Cost
    broker: Cost  # by the broker meanwhile
    answers: Answers | None = None

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.rate:,.0f} events/s, {self.cost.cpu_s:.1f} s of CPU, {self.answers or 'answers not judged'}"


class Peer(NamedTuple):
    """Another system. Of an option `--peer NAME=COMMAND`."""

    name: str
    command: str

    @classmethod
    def parse(cls, given: str) -> Peer:
        name, equals, command = given.partition("=")
        if not (name and equals and command) or " " in name:
            raise argparse.ArgumentTypeError(f"not NAME=COMMAND: {given!r}")
        return cls(name, command)

    def run(self, broker: LocalBroker, pipeline: Pipeline, events: int, folder: Path, check: bool) -> Run:
        """Runs it once on the pipeline's topics, which hold so many events. Ends the program if it fails."""
        filled = {"bootstrap": broker.bootstrap, "left": pipeline.left.topic, "right": pipeline.right.topic}
        given = shlex.split(self.command.format(**filled, check=str(check).lower()))
        with Usage(pid_of(broker.folder, "kafka")) as of_broker, Usage() as own:
            begin = time.perf_counter()
            status, printed = run_followed(given, own, folder / f"{self.name}.log")
            seconds = time.perf_counter() - begin
        try:
            line = json.loads(printed.strip().splitlines()[-1])
            rate = float(line["events_per_s"])
        except (ValueError, LookupError, TypeError):
            status = status or 1
        if status:
            sys.exit(f"the peer {self.name} failed; its last line has to be JSON with events_per_s: {printed[-2000:]}")
        cost = own.cost._replace(cpu_s=float(line.get("process_cpu_s", own.cost.cpu_s)))
        return Run(float(line.get("seconds_from_start", seconds)), rate, cost, of_broker.cost, stated_answers(line, events))


def stated_answers(line: dict[str, Any], events: int) -> Answers | None:
    """What a peer says of its answers, None if it says nothing.

    >>> stated_answers({"events_per_s": 9, "right_pairs": 4, "mixed": 1, "halves": 10, "repeated": 0}, 12)
    Answers(right_pairs=4, mixed=1, missing=2, repeated=0)
    >>> stated_answers({"check": {"right_pairs": 4, "halves_of_different_calls": 1, "calls_not_in_output": 3, "repeated_outputs": 0}}, 12)
    Answers(right_pairs=4, mixed=1, missing=3, repeated=0)
    >>> stated_answers({"events_per_s": 9}, 12)
    """
    found = line | {name: value for part in line.values() if isinstance(part, dict) for name, value in part.items()}
    if "right_pairs" not in found:
        return None
    mixed = found.get("mixed", found.get("halves_of_different_calls", 0))
    missing = events - found["halves"] if "halves" in found else found.get("calls_not_in_output", 0)
    return Answers(found["right_pairs"], mixed, missing, found.get("repeated", found.get("repeated_outputs", 0)))


def run_followed(command: list[str], own: Usage, log: Path, **options: Any) -> tuple[int, str]:
    """Runs a command whose process is watched; its status, and what it printed (its errors, if it failed). `log`: for the latter."""
    with log.open("w+") as output, log.with_suffix(".err").open("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, **options)
        own.follow(process.pid)
        status = process.wait()
        told = errors if status else output
        told.seek(0)
        return status, told.read()


def pid_of(folder: Path, program: str) -> int:
    """The process of a server of ours, which runs."""
    process = running_program(folder, program)
    assert process is not None, f"{program} of {folder} does not run"
    return process.pid
