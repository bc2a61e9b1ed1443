"""What there is to say about each message of one key: when its session was closed and why, its partner, or why it has none."""

from __future__ import annotations

from collections.abc import Iterator

from include.config.pipeline import Pipeline
from include.config.time_text import away, count, duration, moment, setting, utc
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import Reason
from spark_jobs.story.fates import Batches, Fate, KeyBatch, Session, fates, play
from spark_jobs.story.played_batches import Played
from spark_jobs.story.remedies import Remedies, Remedy, nearest_miss


class Story:
    """Sentences about the fates of one key's messages."""

    def __init__(self, pipeline: Pipeline, own: Batches, played: list[Played]) -> None:
        self.pipeline, self.own, self.played = pipeline, own, {batch.batch_id: batch for batch in played}
        self.told = fates(pipeline, played)
        self.by_source = {fate.source: fate for fate in self.told}
        self.remedies = Remedies(pipeline, own, self.played, self.told)

    def event(self, fate: Fate) -> Iterator[str]:
        """A headline, and what there is to say about it, indented."""
        at = "no readable time" if fate.ts is None else moment(fate.ts)
        yield f"{fate.source} ({self.pipeline.sides[fate.side].payload}), {at}, read in batch {fate.landed}"
        yield from (f"  {sentence}" for sentence in self._sentences(fate))

    def _sentences(self, fate: Fate) -> Iterator[str]:
        if fate.session:
            yield _span(fate.session)
        if fate.verdict == Outcome.OPEN:
            yield from self._open(fate)
        elif fate.verdict == Outcome.LATE:
            yield from self._late(fate)
        elif fate.verdict == Reason.FUTURE:
            yield from self._future(fate)
        elif fate.verdict == Outcome.DUPLICATE:
            yield f"rejected in batch {fate.batch} as duplicate of {fate.partner}: same side, key, timestamp and payload"
        elif fate.verdict in (Reason.BAD_TIMESTAMP, Reason.BAD_HEADER):
            yield f"rejected in batch {fate.batch} as {fate.verdict}: {Reason(fate.verdict).sentence}"
        else:
            yield self._closed(fate)
            yield from (
                self._alone(fate)
                if fate.verdict in (Outcome.LEFT_ONLY, Outcome.RIGHT_ONLY)
                else [self._met(fate, self.by_source)]
            )

    def _over_at(self, fate: Fate) -> int:
        assert fate.session is not None
        rules = self.played[fate.batch].rules
        return fate.session.end + rules.gap_ms + rules.grace_ms

    def _closed(self, fate: Fate) -> str:
        over, clock = self._over_at(fate), self.played[fate.batch].rules.clock
        assert clock is not None
        return f"closed in batch {fate.batch}: end + gap + grace = {moment(over)}, and the clock is {duration(clock - over)} past that"

    def _met(self, fate: Fate, others: dict[str, Fate]) -> str:
        """What became of an event, for those whose session is over."""
        if fate.verdict == Outcome.PAIR:
            assert fate.partner is not None
            return f"paired with {fate.partner}, {_away(fate, others[fate.partner])}"
        if fate.verdict == Outcome.COLLAPSED:
            return f"collapsed: {fate.partner} comes first on this side of the session"
        return f"alone ({fate.verdict})"

    def _open(self, fate: Fate) -> Iterator[str]:
        over = self._over_at(fate)
        yield f"open after batch {fate.batch}: the first batch with a clock past {moment(over)} closes it"
        last = self.own[-1]
        later = play([*self.own, KeyBatch(last.batch_id + 1, [], over + 1, over + 1, last.pipeline)])
        others = {each.source: each for each in fates(self.pipeline, later)}
        yield f"if nothing more comes until then: {self._met(others[fate.source], others)}"

    def _late(self, fate: Fate) -> Iterator[str]:
        over, before = self._over_at(fate), self.played[fate.batch].rules.previous_clock
        assert before is not None
        yield (
            f"rejected in batch {fate.batch} as late: end + gap + grace = {moment(over)}, and the clock of batch "
            f"{fate.batch - 1} was {duration(before - over)} past that already"
        )
        yield from self._kept(fate)

    def _future(self, fate: Fate) -> Iterator[str]:
        wall_time = self.played[fate.batch].wall_time
        assert fate.ts is not None
        yield (
            f"rejected in batch {fate.batch} as future: {duration(fate.ts - wall_time)} ahead of the batch's wall time, "
            f"{moment(wall_time)}"
        )
        yield from self._kept(fate)

    def _kept(self, fate: Fate) -> Iterator[str]:
        """With which setting a rejected event is not rejected, and with which it is even paired."""
        remedy = self.remedies.to_accept(fate)
        if remedy:
            yield f"with {_written_settings(remedy)} it would have been kept: {self._met(remedy.fate, self.by_source)}"
        nearest = nearest_miss(fate, self.told)
        if nearest and not (remedy and remedy.pairs):
            paired = self.remedies.to_pair(fate, nearest)
            if paired and paired.pairs:
                yield self._would_be_paired(paired)

    def _alone(self, fate: Fate) -> Iterator[str]:
        nearest = nearest_miss(fate, self.told)
        if nearest is None:
            yield f"alone ({fate.verdict}): no event of the other side was read"
            return
        yield f"alone ({fate.verdict}): the nearest of the other side is {nearest.source}, {self._where(fate, nearest)}"
        free = nearest_miss(fate, [other for other in self.told if other.verdict != Outcome.PAIR])
        if free and free != nearest:
            yield f"the nearest without a partner is {free.source}, {self._where(fate, free)}"
        candidates = [candidate for candidate in (nearest, free) if candidate]
        if not any(self.remedies.needed(fate, candidate) for candidate in candidates):
            yield "no setting keeps them apart: an event has one partner at most, and this one was left over"
            return
        played = [remedy for candidate in candidates if (remedy := self.remedies.to_pair(fate, candidate))]
        paired = next((remedy for remedy in played if remedy.pairs), None)
        if paired:
            yield self._would_be_paired(paired)
        elif played:
            yield f"with {_written_settings(played[-1])} it would still be alone"
        else:
            yield "no setting is as long as it would take"

    def _would_be_paired(self, remedy: Remedy) -> str:
        partner = self.by_source[remedy.fate.partner or ""]
        return f"with {_written_settings(remedy)} it would be paired with {partner.source}, {_away(remedy.fate, partner)}"

    def _where(self, fate: Fate, other: Fate) -> str:
        """Where the other event is, seen from this one, and what became of it."""
        away = _away(fate, other)
        if other.session is None or other.verdict == Outcome.LATE:
            return f"{away}, rejected in batch {other.batch} as {other.verdict}"
        together = (other.session, other.batch) == (fate.session, fate.batch)
        place = "in the same session" if together else _span(other.session)
        if other.verdict == Outcome.PAIR:
            assert other.partner is not None
            return f"{away}, {place}, taken by {other.partner}, {_away(other, self.by_source[other.partner])}"
        return f"{away}, {place}, {'still open' if other.verdict == Outcome.OPEN else 'alone as well'}"


def _span(session: Session) -> str:
    if session.events == 1:
        return "in a session of its own"
    return f"in a session of {count(session.events, 'event')}, {utc(session.start)} to {utc(session.end)}"


def _away(event: Fate, other: Fate) -> str:
    """Where the other event lies, seen from this one."""
    assert event.ts is not None and other.ts is not None
    return away(other.ts - event.ts)


def _written_settings(remedy: Remedy) -> str:
    """As they would stand in the pipeline's file."""
    *others, last = [f"`{name}: {setting(value)}`" for name, value in remedy.settings.items()]
    return f"{', '.join(others)} and {last}" if others else last
