"""The section of a batch's page about its late events: of which intervals, how to replay them, and which replay has healed them.

A page is written once. So a replay, or its report, writes this section anew in the pages of the batches whose late events it has healed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from include.config.pipeline import REPLAY_SUFFIX, Pipeline
from include.config.store import Store, read_text, write_text
from include.config.time_text import utc
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.late_intervals import HEALABLE, HEALED, LATE, LateInterval, Look, late_intervals
from spark_jobs.quality.numbers import SIDES, Breakdown, rows_of
from spark_jobs.quality.rendering import render
from spark_jobs.tables.records import Window

# Around the section in a page.
_BEGIN, _END = '<section id="late">', "</section><!-- late -->"


class Replay(NamedTuple):
    """A replay to start: `window` covers the sessions of the late events of some intervals, of which there are so many."""

    window: Window
    intervals: list[LateInterval]

    @property
    def late(self) -> int:
        return sum(each.late for each in self.intervals)

    @property
    def healable(self) -> int:
        return sum(each.healable for each in self.intervals)

    @property
    def waiting(self) -> int:
        """How many late events it would still pair."""
        return sum(each.waiting for each in self.intervals)

    @property
    def healed_by(self) -> list[int]:
        """The replays that have healed late events of its intervals, those without a batch as 0."""
        return sorted({look.replay or 0 for each in self.intervals for look in each.by})

    @property
    def conf(self) -> str:
        """The parameters of a run, as JSON."""
        return json.dumps({"window_start": _short(self.window.start), "window_end": _short(self.window.end)})

    @property
    def times(self) -> str:
        """From the first to the last minute with late events."""
        return _both_ends(Window(self.intervals[0].window.start, self.intervals[-1].window.end))

    @property
    def replayed(self) -> str:
        """Both ends of the window."""
        return _both_ends(self.window)


def _short(ms: int) -> str:
    """The time without seconds that are 0."""
    return utc(ms).replace(":00.000Z", "Z").replace(".000Z", "Z")


def _both_ends(window: Window) -> str:
    return f"{_short(window.start)} to {_short(window.end)}"


def late_section(pipeline: Pipeline, batch: Batch, clock: int | None, looks: Sequence[Look] = ()) -> Markup:
    """The section of a live batch; empty without late events. `clock`: of the newest batch; `looks`: what replays have looked at."""
    metrics = batch.metrics
    late = sum(metrics.get(f"late_{side}", 0.0) for side in SIDES)
    if not late:
        return Markup("")
    listed = replays(pipeline, late_intervals(batch, looks))
    section = render(
        "late.html",
        late=late,
        healable=metrics.get(HEALABLE, 0.0),
        replays=listed,
        far=sum(row.number for row in rows_of(batch.breakdowns, LATE) if row.bucket is None),
        healed_by=sorted({number for replay in listed for number in replay.healed_by}),
        waiting=sum(replay.waiting for replay in listed),
        closed=None if clock is None else clock - pipeline.gap_ms - pipeline.grace_ms,
        dag_id=f"{pipeline.name}{REPLAY_SUFFIX}",
        by_itself=pipeline.late == "replay",
    )
    return section.rstrip()


def replays(pipeline: Pipeline, intervals: Iterable[LateInterval]) -> list[Replay]:
    """The replays that pair the late events, by time: of intervals whose sessions may touch each other only one."""
    # A session with a late event, and what is near enough to be paired with it, reaches so far.
    reach = max(pipeline.max_session_ms, pipeline.tolerance_ms)
    found: list[Replay] = []
    for each in intervals:
        window = Window(max(each.window.start - reach, 0), each.window.end + reach)
        if found and window.start <= found[-1].window.end:
            before = found.pop()
            found.append(Replay(Window(before.window.start, window.end), [*before.intervals, each]))
        else:
            found.append(Replay(window, [each]))
    return [replay for replay in found if replay.healable]


def healed_lines(breakdowns: Sequence[Breakdown]) -> list[str]:
    """What a replay covered, for its own page: a line for each batch of late events."""
    rows = sorted((row.bucket or 0, row.number) for row in rows_of(breakdowns, HEALED))
    return [
        f"{sum(number for _, number in mine):,} late events of batch {batch_id} that had an unpaired partner lay in its interval"
        for batch_id, mine in groupby(rows, key=lambda row: row[0])
    ]


def rewrite_section(pages: Store, name: str, section: Markup) -> None:
    """Writes the section in place of the one in the page of that name; nothing if there is no such page, or none of this form."""
    page = read_text(pages, name) or ""
    begin, end = page.find(_BEGIN), page.find(_END)
    if 0 <= begin < end:
        # Not by +, which would escape the page.
        write_text(pages, name, f"{page[:begin]}{section}{page[end + len(_END) :]}")
