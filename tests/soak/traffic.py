"""Sample calls from a process of their own, sent for as long as a block lasts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.local.machine import ROOT, say

_END_WITHIN_S = 150.0
# So long a broker may be away.
_OUTAGE_MS = 120_000


class TrafficFailed(Exception):
    """The sender ended with an error; its own line is printed before."""


class Traffic:
    """What was sent; `records` is known when the block has ended."""

    records = 0


@contextmanager
def traffic(file: Path, bootstrap: str, rate: float, seed: int, truth: Path) -> Iterator[Traffic]:
    """`rate` calls a second are sent inside the block. What was sent when it ends is in the truth, and nothing else.

    Raises TrafficFailed at the end of the block.
    """
    command = [sys.executable, "-m", "include.sample.calls", "--pipeline", str(file)]
    command += ["--rate", str(rate), "--seed", str(seed), "--truth", str(truth)]
    settings = {"bootstrap.servers": bootstrap, "message.timeout.ms": _OUTAGE_MS}
    sent = Traffic()
    with (truth.parent / "traffic.log").open("w+") as log:
        environment = os.environ | {"PAIRING_KAFKA": json.dumps(settings)}
        sender = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield sent
        finally:
            status = _ended(sender)
            log.seek(0)
            last = (log.read().strip().splitlines() or ["it said nothing"])[-1]
            say(f"traffic: {last}")
    found = re.match(r"([\d,]+) records to ", last)
    if status or not found:
        raise TrafficFailed("the traffic failed, see the line above")
    sent.records = int(found[1].replace(",", ""))


def _ended(sender: subprocess.Popen[bytes]) -> int:
    """Asks the sender to end after what it sends just now; its exit status."""
    sender.send_signal(signal.SIGINT)
    try:
        return sender.wait(_END_WITHIN_S)
    except BaseException:
        sender.kill()
        sender.wait()
        raise
