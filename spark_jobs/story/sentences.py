"""Puts the history of one pair into words: each message, its session, its partner or why it has none, and each compound."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from include.config.pipeline import Pipeline
from include.config.time_text import away, count, duration, moment, setting, utc
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_LANDING, WITHOUT_KEY, Reason
from spark_jobs.story.history import NOT_PAIRED, Batch, Compound, Fate, Locate, PairHistory, Revision, Session, key_text
from spark_jobs.story.play import PlayedBatch, fates, play
from spark_jobs.story.remedies import Remedies, Remedy, nearest_miss


def tell(history: PairHistory, locate: Locate | None = None) -> Iterator[str]:
    """The lines of the story, with a blank line between its parts. `locate` is called at most once, after the messages."""
    played = play(history.batches)
    # Proposals are played on these alone: the batch before one that read something says what was over by then.
    numbers = {each.batch.batch_id for each in played}
    numbers |= {before.batch_id for before, batch in pairwise(history.batches) if batch.messages}
    batches, clock = list[Batch](), None
    for batch in history.batches:
        # A clock never falls back, also where the batch that had it is left out.
        clock = max((each for each in (clock, batch.clock) if each is not None), default=None)
        if batch.batch_id in numbers:
            batches.append(batch._replace(clock=clock))
    events = EventStory(history.pipeline, batches, played)
    shown = [fate for fate in events.fates if history.shows(fate.ts)]
    yield from _headlines(history, shown, played)
    for fate in shown:
        yield from events.paragraph(
            fate, *_direction(history, fate), *_contradiction(history, fate), *_replays(history, fate)
        )
    for fate in history.others:
        yield from events.paragraph(fate, *_direction(history, fate))
    if history.without_key:
        yield from ("", f"{count(history.without_key, 'message')} without a readable key: each may be of any pair")
    sources = {fate.source for fate in shown}
    compounds = [each for each in history.compounds if history.shows(each.ts) or sources & {*each.sources}]
    if compounds and locate:
        yield from _compounds(history.pipeline.output_topic, compounds, *locate(compounds))


def _headlines(history: PairHistory, shown: list[Fate], played: list[PlayedBatch]) -> Iterator[str]:
    read = [batch.batch_id for batch in history.batches for _ in batch.messages]
    read += [fate.batch for fate in history.others if fate.verdict == NOT_PAIRED]
    settings = settings_text(history.pipeline)
    counts = f"{count(len(read), 'message')} in {count(len(set(read)), 'batch')}"
    yield f"{key_text(history.key)}: {counts}, pipeline {history.pipeline.name} ({settings})"
    if history.removals:
        yield history.removals
    if history.interval:
        yield f"only what lies in the interval {history.interval} is shown"
    touched = {number for fate in shown for number in (fate.landed, fate.batch)}
    for batch, rules, messages, *_ in played:
        if batch.batch_id in touched:
            clock = "none yet" if rules.clock is None else moment(rules.clock)
            own = settings_text(batch.pipeline)
            others = f", with other settings: {own}" if own != settings else ""
            yield f"batch {batch.batch_id}: {count(messages.num_rows, 'message')} read, clock {clock}{others}"


def settings_text(pipeline: Pipeline) -> str:
    """The settings that decide which events are paired."""
    names = ("tolerance", "gap", "grace", "max_future", "max_session")
    return ", ".join([*(f"{name} {duration(getattr(pipeline, f'{name}_ms'))}" for name in names), pipeline.matching])


def _direction(history: PairHistory, fate: Fate) -> Iterator[str]:
    if fate.is_reversed:
        yield f"its own order is {key_text(history.key[::-1])}"


def _contradiction(history: PairHistory, fate: Fate) -> Iterator[str]:
    """What the tables say of an event, if it is not what the rules answer."""
    if history.recorded is None:
        return
    # An event that is open or collapsed is in neither of the two tables.
    expected = None if fate.verdict in (Outcome.OPEN, Outcome.COLLAPSED) else (str(fate.verdict), fate.batch)
    recorded = history.recorded.get(fate.source)
    if recorded == expected:
        return
    what = "{} in batch {}".format(*recorded) if recorded else "nothing of it"
    until = history.incomplete_until
    if fate.ts is not None and until is not None and fate.ts <= until:
        yield f"the tables say: {what}; played without messages that were removed for their age, so this may come of them"
    else:
        yield f"the tables say otherwise: {what}; reconcile holds all of them against each other"


def _replays(history: PairHistory, fate: Fate) -> Iterator[str]:
    """What replays made of an event."""
    for compound in history.compounds:
        if compound.is_of_replay and not compound.is_retraction and fate.source in compound.sources:
            is_left = fate.source == compound.left
            other, apart = (compound.right, compound.apart_ms) if is_left else (compound.left, -compound.apart_ms)
            yield f"{compound.by}: " + (f"paired with {other}, {away(apart)}" if other else f"alone ({compound.kind})")


def _compounds(topic: str, compounds: list[Compound], places: dict[Revision, str], unread: str | None) -> Iterator[str]:
    """A headline for each pair_id, and a sentence for each of its revisions."""
    for pair_id in dict.fromkeys(compound.pair_id for compound in compounds):
        yield from ("", f"compound {pair_id}")
        revisions = [compound for compound in compounds if compound.pair_id == pair_id]
        for each in sorted(revisions, key=lambda compound: compound.revision):
            what = "taken back" if each.is_retraction else each.kind
            yield f"  revision {each.revision}, {what}, by {each.by}: {places[pair_id, each.revision]}"
    if unread:
        yield from ("", f"{topic} was not read, so offsets are unknown: {unread}")


class EventStory:
    """Sentences about the fates of one key's events. `batches`: those that were played, and the one before each that read something."""

    def __init__(self, pipeline: Pipeline, batches: list[Batch], played: list[PlayedBatch]) -> None:
        self.pipeline, self.batches = pipeline, batches
        self.played = {batch.batch.batch_id: batch for batch in played}
        self.fates = fates(played)
        self.by_source = {fate.source: fate for fate in self.fates}
        self.remedies = Remedies(batches, self.played, self.fates)

    def paragraph(self, fate: Fate, *more: str) -> Iterator[str]:
        """A blank line, where the message is and which batch read it, and indented what became of it and why, and `more`."""
        at = "no readable time" if fate.ts is None else moment(fate.ts)
        at = "no readable key" if fate.verdict in WITHOUT_KEY else at
        yield from ("", f"{fate.source} ({self.pipeline.sides[fate.side].payload}), {at}, read in batch {fate.landed}")
        yield from (f"  {sentence}" for sentence in (*self._sentences(fate), *more))

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
            same = "compound" if self.pipeline.sides[fate.side].compounds else "payload"
            yield f"rejected in batch {fate.batch} as duplicate of {fate.partner}: same side, key, timestamp and {same}"
        elif fate.verdict == NOT_PAIRED:
            yield "the batch is not paired yet"
        elif fate.verdict in (*AT_LANDING, Outcome.SUPERSEDED):
            yield f"rejected in batch {fate.batch} as {fate.verdict}: {Reason(fate.verdict).sentence}"
            if fate.verdict in WITHOUT_KEY:
                yield "of this pair by its Kafka key only"
        else:
            yield self._closed(fate)
            is_alone = fate.verdict in (Outcome.LEFT_ONLY, Outcome.RIGHT_ONLY)
            yield from self._alone(fate) if is_alone else [self._result(fate, self.by_source)]

    def _over_at(self, fate: Fate) -> int:
        assert fate.session is not None
        rules = self.played[fate.batch].rules
        return fate.session.end + rules.pipeline.gap_ms + rules.pipeline.grace_ms

    def _closed(self, fate: Fate) -> str:
        over, clock = self._over_at(fate), self.played[fate.batch].rules.clock
        assert clock is not None
        return f"closed in batch {fate.batch}: end + gap + grace = {moment(over)}, and the clock is {duration(clock - over)} past that"

    def _result(self, fate: Fate, others: dict[str, Fate]) -> str:
        """What became of an event whose session is closed."""
        if fate.verdict == Outcome.PAIR:
            assert fate.partner is not None
            return f"paired with {fate.partner}, {_away(fate, others[fate.partner])}"
        if fate.verdict == Outcome.COLLAPSED:
            return f"collapsed: {fate.partner} comes first on this side of the session"
        return f"alone ({fate.verdict})"

    def _open(self, fate: Fate) -> Iterator[str]:
        over = self._over_at(fate)
        yield f"open after batch {fate.batch}: the first batch with a clock past {moment(over)} closes it"
        last = self.batches[-1]
        closing = Batch(last.batch_id + 1, [], over + 1, over + 1, last.pipeline)
        others = {each.source: each for each in fates(play([*self.batches, closing]))}
        yield f"if nothing more comes until then: {self._result(others[fate.source], others)}"

    def _late(self, fate: Fate) -> Iterator[str]:
        over, before = self._over_at(fate), self.played[fate.batch].rules.previous_clock
        assert before is not None
        yield (
            f"rejected in batch {fate.batch} as late: end + gap + grace = {moment(over)}, and the clock of batch "
            f"{fate.batch - 1} was {duration(before - over)} past that already"
        )
        yield from self._kept(fate)

    def _future(self, fate: Fate) -> Iterator[str]:
        wall_time = self.played[fate.batch].batch.wall_time
        assert fate.ts is not None
        yield (
            f"rejected in batch {fate.batch} as future: {duration(fate.ts - wall_time)} ahead of the batch's wall time, "
            f"{moment(wall_time)}"
        )
        yield from self._kept(fate)

    def _kept(self, fate: Fate) -> Iterator[str]:
        """Which setting accepts a rejected event, and which ones pair it."""
        remedy = self.remedies.to_accept(fate)
        if remedy:
            yield f"with {_settings(remedy)} it would have been kept: {self._result(remedy.fate, self.by_source)}"
        nearest = nearest_miss(fate, self.fates)
        if nearest and not (remedy and remedy.pairs):
            paired = self.remedies.to_pair(fate, nearest)
            if paired and paired.pairs:
                yield self._would_be_paired(paired)

    def _alone(self, fate: Fate) -> Iterator[str]:
        nearest = nearest_miss(fate, self.fates)
        if nearest is None:
            yield f"alone ({fate.verdict}): no event of the other side was read"
            return
        yield f"alone ({fate.verdict}): the nearest of the other side is {nearest.source}, {self._where(fate, nearest)}"
        candidates = [nearest]
        free = nearest_miss(fate, [other for other in self.fates if other.verdict != Outcome.PAIR])
        if free and free != nearest:
            yield f"the nearest without a partner is {free.source}, {self._where(fate, free)}"
            candidates.append(free)
        if not any(self.remedies.needed(fate, candidate) for candidate in candidates):
            yield "no setting keeps them apart: an event has one partner at most, and this one was left over"
            return
        tried = [remedy for candidate in candidates if (remedy := self.remedies.to_pair(fate, candidate))]
        paired = next((remedy for remedy in tried if remedy.pairs), None)
        if paired:
            yield self._would_be_paired(paired)
        elif tried:
            yield f"with {_settings(tried[-1])} it would still be alone"
        else:
            yield "no setting is as long as it would take"

    def _would_be_paired(self, remedy: Remedy) -> str:
        partner = self.by_source[remedy.fate.partner or ""]
        return f"with {_settings(remedy)} it would be paired with {partner.source}, {_away(remedy.fate, partner)}"

    def _where(self, fate: Fate, other: Fate) -> str:
        """Where the other event is, seen from this one, and what became of it."""
        distance = _away(fate, other)
        if other.session is None or other.verdict == Outcome.LATE:
            return f"{distance}, rejected in batch {other.batch} as {other.verdict}"
        together = (other.session, other.batch) == (fate.session, fate.batch)
        place = "in the same session" if together else _span(other.session)
        if other.verdict == Outcome.PAIR:
            assert other.partner is not None
            return f"{distance}, {place}, taken by {other.partner}, {_away(other, self.by_source[other.partner])}"
        return f"{distance}, {place}, {'still open' if other.verdict == Outcome.OPEN else 'alone as well'}"


def _span(session: Session) -> str:
    if session.events == 1:
        return "in a session of its own"
    return f"in a session of {count(session.events, 'event')}, {utc(session.start)} to {utc(session.end)}"


def _away(event: Fate, other: Fate) -> str:
    """Where the other event lies in time, seen from this one."""
    assert event.ts is not None and other.ts is not None
    return away(other.ts - event.ts)


def _settings(remedy: Remedy) -> str:
    """As they would stand in the pipeline's file."""
    *others, last = [f"`{name}: {setting(value)}`" for name, value in remedy.settings.items()]
    return f"{', '.join(others)} and {last}" if others else last
