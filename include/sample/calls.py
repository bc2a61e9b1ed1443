"""Sample traffic for a pipeline, good and bad, and the truth: what the pipeline must make of it.

    python -m include.sample.calls --calls 2000 --truth truth.jsonl         # at once, the calls of the last hour
    python -m include.sample.calls --rate 20 --truth truth.jsonl            # live, until Ctrl-C
    python -m include.sample.calls --calls 500 --dry-run > records.jsonl    # for the rehearsal, nothing is sent

It has jitter, silence, orphans, chains of calls, duplicates, look-alikes, null timestamps and keys, and events that are out of order, late,
malformed or from the future. `python -m include.sample.truth` compares the pipeline's output with the truth.
The truth of traffic that is sent at once holds if one batch lands all of it: plan no batch meanwhile. Batches may cut live traffic.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import IO

from include.config.pipeline import MS_PER_UNIT, Pipeline, PipelineError, Side
from include.config.pipeline_file import load_pipeline
from include.config.store import warehouse_root
from include.sample.outcome import last_clock
from include.sample.records import Record, Sample, complete_file
from include.sample.sending import DEFAULT_BOOTSTRAP, SampleError, Sender, kcat_lines, send, settings_of
from include.sample.traffic import Shares, Traffic, Window, generate, pieces

__all__ = ["Record", "Sample", "SampleError", "Shares", "generate", "send", "send_at_once", "send_live"]

DEFAULT_PIPELINE = "include/pipelines/calls.yaml"
DEFAULT_CALLS = 2_000
TICK_S = 0.25
REPORT_EVERY_S = 2.0
# Live events must reach the broker within the grace; this much of it is for the way.
ON_THE_WAY_MS = 5 * MS_PER_UNIT["s"]


class Progress:
    """A line on standard error every two seconds."""

    def __init__(self) -> None:
        self.started = self.reported = time.monotonic()

    def report(self, text: str) -> None:
        if time.monotonic() - self.reported >= REPORT_EVERY_S:
            self.reported = time.monotonic()
            print(f"{self.reported - self.started:6.1f} s  {text}", file=sys.stderr, flush=True)


def send_at_once(traffic: Traffic, calls: int, now_ms: int, truth: Path | None, sender: Sender | None) -> int:
    """Sends the calls of the last hour (no sender: prints them), then renames the truth file; returns the number of records."""
    progress = Progress()
    with ExitStack() as stack:
        # There are no reference cycles here, and searching millions of records for them takes a third of the time.
        stack.callback(gc.enable)
        gc.disable()
        lines: IO[str] | None = None if truth is None else stack.enter_context(complete_file(truth))

        def records() -> Iterator[Record]:
            made = 0
            for piece in pieces(traffic, calls, now_ms):
                if lines is not None:
                    lines.writelines(f"{line}\n" for line in piece.truth)
                yield from piece.records
                made += len(piece.records)
                progress.report(f"{made:,} records, {traffic.drawn:,} of {calls:,} calls")

        if sender is not None:
            return sender.send(records())
        return sum(sys.stdout.buffer.write(line) > 0 for line in kcat_lines(records()))


def send_live(
    pipeline: Pipeline,
    seed: int,
    rate: float,
    shares: Shares,
    truth: Path | None,
    sender: Sender,
    seconds: float,
    calls: float,
) -> int:
    """Sends `rate` calls a second as they end, up to `seconds`, `calls` or Ctrl-C, and appends their truth; returns the number of records."""
    traffic = live_traffic(pipeline, seed, _now_ms(), shares)
    stopped = _stop_signal()
    progress, sent = Progress(), 0
    with ExitStack() as stack:
        if truth is not None:
            truth.parent.mkdir(parents=True, exist_ok=True)
        lines = None if truth is None else stack.enter_context(truth.open("a", encoding="utf-8"))
        while not stopped and traffic.drawn < calls and time.monotonic() - progress.started < seconds:
            time.sleep(min(TICK_S, 1 / rate))
            due = min(calls, rate * (time.monotonic() - progress.started))
            sample = live(traffic, int(due) - traffic.drawn, _now_ms())
            sent += sender.send(sample.records)
            if lines is not None:
                lines.writelines(f"{line}\n" for line in sample.truth)
                lines.flush()
            progress.report(f"{sent:,} records, {traffic.drawn:,} calls")
    return sent


def live_traffic(pipeline: Pipeline, seed: int, now_ms: int, shares: Shares) -> Traffic:
    """The traffic from which `live` draws; raises SampleError if the grace is too short for a certain truth."""
    room = (pipeline.grace_ms - ON_THE_WAY_MS) // 2
    if room < 0:
        raise SampleError(
            f"{pipeline.name}: live events could be late with a grace under {ON_THE_WAY_MS} ms: leave out --rate"
        )
    return Traffic(pipeline, seed, now_ms, None, shares, room=room, near_future=False)


def live(traffic: Traffic, calls: int, now_ms: int) -> Sample:
    """`calls` calls that have just ended, in random order, with events as old as the grace allows; to be sent now."""
    out = traffic.draw(calls, Window(now_ms - traffic.timing.room, now_ms, now_ms))
    records = [record for _, record in out.records]
    traffic.rng.shuffle(records)
    return Sample(records, out.truth)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _stop_signal() -> list[int]:
    """A list that is filled on SIGINT or SIGTERM: the caller then finishes what it sends, so that the truth holds."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return received


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m include.sample.calls", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pipeline", default=DEFAULT_PIPELINE, help=f"whose topics and durations; default {DEFAULT_PIPELINE}"
    )
    parser.add_argument("--calls", type=_count, help=f"default {DEFAULT_CALLS}, with --rate: no end")
    parser.add_argument("--seed", type=_count, default=1, help="the same seed and --now give the same bytes; default 1")
    parser.add_argument(
        "--now", type=_count, metavar="MS", help="the moment it is, for a repeatable --dry-run; default: now"
    )
    parser.add_argument("--bootstrap", help=f"broker; default: PAIRING_KAFKA, else {DEFAULT_BOOTSTRAP}")
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="JSON lines of what must come out; with --rate: appended to"
    )
    parser.add_argument(
        "--late-before",
        metavar="MS|none",
        help="clock of the last batch, before which late events are set (none: no batch yet);"
        " default: what the ledger in PAIRING_WAREHOUSE says, with --dry-run none",
    )
    parser.add_argument("--rate", type=float, metavar="N", help="live: N calls a second")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="S", help="end of --rate; default: Ctrl-C")
    parser.add_argument("--dry-run", action="store_true", help="print the records as kcat -J does instead of sending them")
    for share in ("orphans", "duplicates", "broken", "late"):
        default = getattr(Shares, share)
        parser.add_argument(
            f"--{share}", type=_share, default=default, metavar="SHARE", help=f"of the calls; default {default}"
        )
    arguments = parser.parse_args()
    if arguments.rate is not None and not 0 < arguments.rate < float("inf"):
        parser.error("--rate must be above 0")
    if arguments.rate is not None and (arguments.dry_run or arguments.now is not None or arguments.late_before is not None):
        parser.error("--rate is live: neither --dry-run nor --now nor --late-before goes with it")
    if arguments.late_before not in (None, "none") and not arguments.late_before.isdecimal():
        parser.error("--late-before is epoch ms, or the word none")
    return arguments


def _late_before(arguments: argparse.Namespace, pipeline: Pipeline) -> int | None:
    if arguments.late_before is not None:
        return None if arguments.late_before == "none" else int(arguments.late_before)
    return None if arguments.dry_run else last_clock(warehouse_root(), pipeline)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _share(text: str) -> float:
    share = float(text)
    if not 0 <= share <= 0.4:
        raise argparse.ArgumentTypeError(f"{text} is not a share from 0 to 0.4")
    return share


def _check_layout(pipeline: Pipeline) -> None:
    """Raises SampleError if the pipeline reads or pairs something else than what is sent: JSON with all fields in the body, times in epoch ms."""
    others = (pipeline.timestamp_format, pipeline.timestamp_zone, pipeline.key_text)
    if any(side.topic is None or side.named_topics != (side.topic,) for side in pipeline.sides):
        raise SampleError(f"{pipeline.name}: sample traffic is sent to one topic a side, and this pipeline reads several")
    if any(others) or any(side != Side(side.topic, side.payload) for side in pipeline.sides):
        raise SampleError(
            f"{pipeline.name}: sample traffic is JSON with every field in the body and times in epoch ms, and this pipeline reads other records"
        )


def _run(arguments: argparse.Namespace) -> str:
    """Sends what the arguments ask for; returns a line about it."""
    started = time.monotonic()
    shares = Shares(arguments.orphans, arguments.duplicates, arguments.broken, late=arguments.late)
    pipeline = load_pipeline(arguments.pipeline)
    _check_layout(pipeline)
    topics = [side.single_topic for side in pipeline.sides]
    calls, truth = arguments.calls, arguments.truth
    sender = None if arguments.dry_run else Sender(settings_of(arguments.bootstrap), topics)
    if sender is not None and arguments.rate is not None:
        most = float("inf") if calls is None else calls
        sent = send_live(pipeline, arguments.seed, arguments.rate, shares, truth, sender, arguments.seconds, most)
    else:
        now = _now_ms() if arguments.now is None else arguments.now
        traffic = Traffic(pipeline, arguments.seed, now, _late_before(arguments, pipeline), shares)
        sent = send_at_once(traffic, DEFAULT_CALLS if calls is None else calls, now, truth, sender)
    where = "standard output" if sender is None else " and ".join(topics)
    beside = "" if truth is None else f"; the truth is in {truth}"
    return f"{sent:,} records to {where} in {time.monotonic() - started:.1f} s{beside}"


def main() -> int:
    """The command; returns its exit status: 0 if all was sent, 1 with one line if not, 2 for wrong arguments or a wrong pipeline."""
    arguments = _arguments()
    try:
        print(_run(arguments), file=sys.stderr)
        return 0
    except (PipelineError, SampleError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, PipelineError) else 1
    except BrokenPipeError:
        # The reader of the dry run has closed the pipe; the interpreter would report that again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"the truth cannot be written ({error}): choose another --truth FILE", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: what was sent is in no truth file", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
