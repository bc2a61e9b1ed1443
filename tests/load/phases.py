"""What happens one after the other: the search for the rate, the run, the kills, and the end of all that is open."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from include.local.machine import say
from tests.load.heartbeat import heartbeat
from tests.load.kills import kill, order
from tests.load.samples import Sample, disk, lag, rate_of, sent
from tests.load.search import NEAR_ENOUGH, confirmed, highest_rate
from tests.load.seen import Kill
from tests.load.servers import Servers
from tests.load.watch import LoadFailed, Watch
from tests.soak.traffic import traffic

# Of the sample traffic with its orphans, duplicates and broken records.
RECORDS_A_CALL = 1.958
# Minutes of traffic that may be unread: in a step of the search at any time, at its best moment, and in the run.
SEARCH_LAG, SEARCH_BEST, RUN_LAG = 2.0, 0.5, 3.0
# Of the records that are to be sent: a sender that has no time is a rate that does not hold.
LEAST_SENT = 0.97
# Longer than gap and grace, until as many events wait as ever will, and than each kind takes that runs beside.
CONFIRM_S = 720.0
CATCH_UP_S, RECOVER_S = 1_800.0, 600.0


class Phases:
    """The phases of one load, with what they leave for the verdict."""

    def __init__(self, running: Servers, watch: Watch, folder: Path, seed: int) -> None:
        self.running, self.watch, self.folder, self.random = running, watch, folder, Random(seed)
        self.truths: list[Path] = []
        self.sent = 0

    @contextmanager
    def sending(self, calls: float) -> Iterator[None]:
        """Sends so many calls a second inside the block."""
        truth = self.folder / f"truth-{len(self.truths) + 1:02}.jsonl"
        self.truths.append(truth)
        self.watch.rate = calls * RECORDS_A_CALL
        with traffic(self.running.file, self.running.broker.bootstrap, calls, len(self.truths), truth) as traffic_sent:
            yield
        self.sent += traffic_sent.records

    def search(self, first: float, window_s: float) -> float:
        """The highest rate that holds, in calls a second. Raises LoadFailed."""
        say(
            f"search: windows of {window_s:.0f} s; a rate holds if never more than {SEARCH_LAG:g} minutes of its traffic are unread, at the best"
            f" moment of the second half at most {SEARCH_BEST:g}, and all is sent; doubling or halving, then bisection to {NEAR_ENOUGH:g}"
        )
        found = highest_rate(lambda calls: self._holds(calls, window_s), first)
        if found is not None:
            say(f"search: {found:,.0f} calls/s has to hold for {CONFIRM_S:.0f} s, too, or is lowered")
            found = confirmed(lambda calls: self._holds(calls, CONFIRM_S), found)
        if found is None:
            raise LoadFailed("no rate holds, see the lines above: is the machine busy with something else?")
        return found

    def _holds(self, calls: float, window_s: float) -> bool:
        records, begin = calls * RECORDS_A_CALL, self.watch.now
        say(f"search: {records:,.0f} records/s ...")
        with self.sending(calls):
            self.watch.during(window_s, lambda sample: self.watch.minutes(sample) > SEARCH_LAG)
        against = objection(self.watch.since(begin), records)
        say(f"search: {records:,.0f} records/s: {against or 'holds'}")
        if against:
            self._catch_up()
        return not against

    def _catch_up(self) -> None:
        """Waits until nothing is unread; nothing is started beside. Raises LoadFailed."""
        self.watch.starting.stop()
        if not self.watch.during(CATCH_UP_S, lambda sample: sample.unread == 0):
            raise LoadFailed(
                f"nothing was sent for {CATCH_UP_S:.0f} s, and still records are unread: set RATE to less than what held"
            )
        self.watch.starting.resume()

    def check_disk(self, seconds: float) -> None:
        """Raises LoadFailed if the run will not fit on the disk, by what the search has written."""
        places = [series for series in disk(self.watch.samples).values() if len(series) > 1]
        if not places or not self.sent:
            return
        each = sum(rate_of(series) for series in places)
        truth = sum(path.stat().st_size for path in self.truths) / self.sent
        # Compaction keeps old files beside the new ones for hours.
        needed = 1.3 * (each + truth) * self.watch.rate * seconds / 1e9
        free = shutil.disk_usage(self.folder).free / 1e9
        say(
            f"disk: {each:.0f} bytes a record so far, and {truth:.0f} of truth; the run needs about {needed:.0f} GB of {free:.0f} GB"
        )
        if needed > free:
            raise LoadFailed("the disk is too small: free some, set TMPDIR to another disk, or lower HOURS or RATE")

    def attack(self, kills: int) -> None:
        """Kills at random moments, each when the pipeline has recovered from the one before."""
        for kind in order(kills, self.random):
            self.watch.during(self.random.uniform(5, 40))
            at = self.watch.now
            with heartbeat(f"kill -9 of {kind}"):
                what = kill(kind, self.running, self.random)
            say(f"kill -9: {what}")
            recovered = self.watch.during(RECOVER_S, lambda _, at=at: self.watch.succeeded_since(at))
            self.watch.kills.append(Kill(at, what, self.watch.now - at if recovered else None))
        say(f"{len(self.watch.kills)} kills; nothing is killed any more")
        self.watch.came_back = self.watch.during(
            RECOVER_S, lambda sample: sample.unread is not None and self.watch.minutes(sample) <= SEARCH_BEST
        )

    def drain(self) -> None:
        """Lets the schedule go on until every session is closed and all is published, then ends Airflow."""
        self.watch.starting.stop()
        over_after = (self.running.pipeline.gap_ms + self.running.pipeline.grace_ms) / 1000 + 1
        over = self.watch.now + over_after
        say(
            f"no traffic any more; the last session is over in {over_after:.0f} s, and a run that begins then has to succeed"
        )
        if not self.watch.during(
            over_after + CATCH_UP_S, lambda sample: sample.unread == 0 and self.watch.succeeded_since(over)
        ):
            raise LoadFailed(
                f"the pipeline did not come to its end within {CATCH_UP_S:.0f} s: see the runs in Airflow's logs"
            )
        # Its runs find nothing any more, and would only take time from what compares.
        with heartbeat("Airflow ends"):
            self.running.airflow.stop()


def objection(samples: list[Sample], rate: float) -> str:
    """Why a rate (records a second) does not hold, by the samples of its window; empty if it holds."""
    unread, records = lag(samples, rate), sent(samples)
    if len(records) < 2:
        return "the broker did not answer"
    if (worst := max(minutes for _, minutes in unread)) > SEARCH_LAG:
        return f"{worst:.1f} minutes of traffic are unread"
    middle = (records[0][0] + records[-1][0]) / 2
    if (best := min(minutes for at, minutes in unread if at >= middle)) > SEARCH_BEST:
        return f"never under {best:.1f} minutes of unread traffic"
    # The sender needs a moment to start.
    begun = [(at, count) for at, count in records if count > records[0][1]]
    found = rate_of(begun)
    return "" if found >= LEAST_SENT * rate else f"only {found:,.0f} records/s were sent"
