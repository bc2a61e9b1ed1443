"""Looks at the running servers every ten seconds, prints a line, and keeps what it saw."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from include.local.airflow_client import AirflowError
from include.local.machine import say
from tests.load.beside import Beside, runs
from tests.load.heartbeat import EVERY_S
from tests.load.samples import WORKERS, Meter, Sample, rate_of, sent
from tests.load.seen import Seen
from tests.load.servers import PIPELINE, Servers

_RUNS_EVERY_S = 30.0
_LEAST_FREE_GB = 2.0


class LoadFailed(Exception):
    """The load cannot go on; the text is one line that names the remedy."""


class Watch(Seen):
    """Sees the servers from now on."""

    def __init__(self, running: Servers, beside: Beside) -> None:
        super().__init__(PIPELINE)
        self.running, self.starting = running, beside
        self.meter = Meter(running)
        self.began = datetime.now(UTC)
        self.client = running.client
        self._runs_at = float("-inf")

    @property
    def now(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self.meter.began

    def during(self, seconds: float, until: Callable[[Sample], bool] = lambda _: False) -> bool:
        """Looks again and again for so long, or until `until` is true of a sample; whether it was."""
        end = self.now + seconds
        while self.now < end:
            begin = time.monotonic()
            if until(self.look()):
                return True
            time.sleep(max(0.0, min(EVERY_S - (time.monotonic() - begin), end - self.now)))
        return False

    def look(self) -> Sample:
        """Takes a sample, prints a line and starts what is due beside. Raises LoadFailed when the disk is nearly full."""
        if what := self.starting.start_what_is_due():
            self.beside.append((self.now, what))
            say(f"beside: {what}")
        if self.now - self._runs_at > _RUNS_EVERY_S:
            self._runs_at = self.now
            # The next look asks again.
            with suppress(AirflowError):
                self.runs |= runs(self.client, self.began)
        sample = self.meter.take()
        self.samples.append(sample)
        say(self._line(sample))
        free = shutil.disk_usage(self.running.broker.folder).free / 1e9
        if free < _LEAST_FREE_GB:
            raise LoadFailed(f"{free:.1f} GB of disk left: free some, set TMPDIR to another disk, or lower HOURS or RATE")
        return sample

    def _line(self, sample: Sample) -> str:
        rate = rate_of(sent(self.since(sample.at - 60)))
        ended = [run for run in self.live_runs() if run.seconds is not None]
        last = f"{ended[-1].seconds:.0f} s ({ended[-1].state})" if ended else "none yet"
        memory = {role: size.memory / 1e6 for role, size in sample.sizes.items()}
        unread = "broker away" if sample.unread is None else f"{self.minutes(sample):.2f} min, {sample.unread:,} unread"
        return (
            f"{sample.at / 60:5.1f} min  lag {unread}; {rate:,.0f}/s; last run {last}; MB: Spark {memory['Spark server']:,.0f}"
            f" + {sample.sizes[WORKERS].processes} × Python {memory[WORKERS]:,.0f}, broker {memory['broker']:,.0f};"
            f" GB: tables {sample.warehouse / 1e9:.2f}, broker {sample.broker / 1e9:.2f}"
        )
