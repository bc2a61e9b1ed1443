"""Which settings would have paired an event that has no partner: proposed from the distances, then played with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from include.config.setting_types import LONGEST_MS
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome
from spark_jobs.rules.reasons import Reason
from spark_jobs.story.history import Batch, Fate
from spark_jobs.story.play import PlayedBatch, fates, play

Settings = dict[str, int]
"""Names of durations as in the pipeline's file -> ms."""

_IN_TIME = (*COMPOUNDS, Outcome.OPEN, Outcome.COLLAPSED)
_LONG_AFTER = 2**62


class Remedy(NamedTuple):
    """Settings with which the event was played again, and its fate with them once its session is closed."""

    settings: Settings
    fate: Fate

    @property
    def pairs(self) -> bool:
        """Whether the event is in a pair with these settings."""
        return self.fate.verdict == Outcome.PAIR


def nearest_miss(event: Fate, others: list[Fate]) -> Fate | None:
    """The closest event of the other side, None if there is none. Duplicates are left out: what they repeat has the same time."""
    opposite = [other for other in others if other.side != event.side and other.verdict != Outcome.DUPLICATE]
    times = {other: abs(event.ts - other.ts) for other in opposite if event.ts is not None and other.ts is not None}
    return min(times, key=times.__getitem__, default=None)


def _longer(pipeline: Pipeline, settings: Settings) -> Pipeline:
    """The pipeline with these settings; a setting that is longer already stays."""
    durations: dict[str, Any] = {
        f"{name}_ms": max(value, getattr(pipeline, f"{name}_ms")) for name, value in settings.items()
    }
    return replace(pipeline, **durations)


class Remedies:
    """Plays one key's batches again with other settings."""

    def __init__(self, batches: list[Batch], played: dict[int, PlayedBatch], known: list[Fate]) -> None:
        self.batches, self.played, self.fates = batches, played, known
        self.settings = {batch.batch_id: batch.pipeline for batch in batches}

    def to_pair(self, event: Fate, other: Fate) -> Remedy | None:
        """The fewest of the changes that bring the two together that put the event into a pair, be it with a third one.

        Returns all of the changes if even they leave it unpaired; None if none is needed, or one is longer than allowed.
        """
        found = self._play(event, self.needed(event, other))
        if found and found.pairs:
            for name in found.settings:
                fewer = {each: value for each, value in found.settings.items() if each != name}
                again = self._play(event, fewer)
                found = again if again and again.pairs else found
        return found

    def to_accept(self, event: Fate) -> Remedy | None:
        """The setting that accepts a late or a future event; None if no allowed one does."""
        settings = self._max_future(event) if event.verdict == Reason.FUTURE else self._grace(event, event.batch)
        found = self._play(event, settings)
        return found if found and found.fate.verdict in _IN_TIME else None

    def _play(self, event: Fate, settings: Settings) -> Remedy | None:
        if not settings or max(settings.values()) > LONGEST_MS:
            return None
        changed = [batch._replace(pipeline=_longer(batch.pipeline, settings)) for batch in self.batches]
        # Longer settings keep sessions open for longer, so a batch without records closes them all.
        last = Batch(changed[-1].batch_id + 1, [], _LONG_AFTER, _LONG_AFTER, changed[-1].pipeline)
        again = fates(play([*changed, last]))
        return Remedy(settings, next(fate for fate in again if fate.source == event.source))

    def needed(self, event: Fate, other: Fate) -> Settings:
        """The settings that keep the two apart, each at the smallest value that is enough; empty if none does."""
        assert event.ts is not None and other.ts is not None
        early, late = sorted((event.ts, other.ts))
        ts = sorted(
            {fate.ts for fate in self.fates if fate.ts is not None and fate.verdict in (*_IN_TIME, Outcome.LATE)}
            | {early, late}
        )
        between = [at for at in ts if early <= at <= late]
        silence = max((after - before for before, after in pairwise(between)), default=0)
        needed: Settings = {"tolerance": late - early, "gap": silence}
        # The batch that decided on the event is the one that needed other settings.
        pipeline = self.settings[event.batch]
        gap = max(pipeline.gap_ms, silence)
        needed["max_session"] = max(late - self._chain_start(ts, early, gap), gap)
        first, second = sorted((event, other), key=lambda fate: fate.landed)
        graces = [self._grace(fate, fate.batch, gap) for fate in (event, other) if fate.verdict == Outcome.LATE]
        if second.landed > first.landed:
            graces.append(self._grace(first, second.landed, gap))
        needed["grace"] = max((grace["grace"] for grace in graces if grace), default=0)
        for fate in (event, other):
            if fate.verdict == Reason.FUTURE:
                needed |= self._max_future(fate)
        now = {name: getattr(pipeline, f"{name}_ms") for name in needed}
        return {name: value for name, value in needed.items() if value > now[name]}

    def _chain_start(self, ts: list[int], at: int, gap: int) -> int:
        """First timestamp of the chain around `at` that has no silence longer than `gap`."""
        start = at
        for before in reversed([each for each in ts if each < at]):
            if start - before > gap:
                break
            start = before
        return start

    def _grace(self, event: Fate, landed: int, gap: int | None = None) -> Settings:
        """The grace with which the event's session was not over before batch `landed`; `gap`: another one than the pipeline's."""
        previous = self.played[landed].rules.previous_clock
        if previous is None or event.session is None:
            return {}
        return {"grace": previous - event.session.end - (self.settings[landed].gap_ms if gap is None else gap)}

    def _max_future(self, event: Fate) -> Settings:
        assert event.ts is not None
        return {"max_future": event.ts - self.played[event.landed].batch.wall_time}
