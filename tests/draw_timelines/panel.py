"""One timeline as a panel of a picture: events on two lanes, pairs, sessions with gap and grace, clocks."""

from __future__ import annotations

from typing import NamedTuple

from spark_jobs.rules.rules import LEFT
from spark_jobs.story.history import Fate, Session
from spark_jobs.story.play import fates
from tests.draw_timelines.marks import VERDICTS, clock_lines, event_mark, is_rejected, pair_line
from tests.draw_timelines.scale import LANES_FROM, LANES_TO, Scale
from tests.draw_timelines.svg import WIDTH, bar, element, fitting_words, line, text_width, words
from tests.helpers.timeline import T0, Batch, Timeline, play_every, records

LANE_LABELS = ("analytics (left)", "metrics (right)")
ROW = 42
STEP = 20


class Shown(NamedTuple):
    """The stretch of time, the settings that are written beside the name, and which durations are drawn.

    `span`: max_future, a bar from the first wall time, or max_session, one from the first event.
    """

    scale: Scale
    settings: tuple[str, ...]
    tolerance: bool = False
    closing: bool = True
    span: str = ""


class Panel:
    """What the rules answered to one timeline, and how it is drawn. Times are relative to T0."""

    def __init__(self, name: str, case: Timeline, shown: Shown) -> None:
        self.name, self.shown, self.scale, self.pipeline = name, shown, shown.scale, case.pipeline
        self.played = play_every(case.pipeline, records([Batch(*batch) for batch in case.batches]))
        self.fates = fates(self.played)
        self.by_source = {fate.source: fate for fate in self.fates}
        self.several = len(case.batches) > 1

    def description(self) -> str:
        """The panel in words."""
        return f"{self.name}: {'; '.join(self._sentence(fate) for fate in self.fates)}."

    def _sentence(self, fate: Fate) -> str:
        event = f"{'left' if fate.side == LEFT else 'right'} event at {_at(fate)}"
        if fate.verdict == "pair":
            return f"{event} paired with the event at {_at(self.by_source[fate.partner or ''])}"
        return f"{event} {VERDICTS.get(fate.verdict, fate.verdict)}"

    def draw(self, top: float) -> tuple[list[str], float]:
        """The elements, and where the panel ends."""
        clocks = [(batch.batch.batch_id, batch.rules.clock) for batch in self.played]
        labels = [(self._clock_label(number, clock - T0), clock - T0) for number, clock in clocks if clock is not None]
        texts, lines = clock_lines(labels, self.scale)
        levels = self._levels()
        left = top + 53 + 16 * texts.rows + STEP * max([0, *(level for fate, level in levels.items() if fate.side == LEFT)])
        right = left + 56
        sessions = right + 36 + STEP * max([0, *(level for fate, level in levels.items() if fate.side != LEFT)])
        sessions += 26 if self.shown.span else 0
        bars, session_words, axis = self._sessions(sessions)
        drawn = self._heading(top)
        for y, label in zip((left, right), LANE_LABELS, strict=True):
            drawn += [line("lane", LANES_FROM, y, LANES_TO, y), words(label, LANES_FROM - 8, y + 4, "faint small", "end")]
        drawn += [*self._spans(left, right), *bars, *lines(top + 28 + 16 * texts.rows, axis)]
        drawn += [*session_words, *texts.at(top + 36), *self.scale.axis(axis)]
        drawn += [*self._pairs(left, right), *self._events(left, right, levels)]
        return drawn, axis + 32

    def _heading(self, top: float) -> list[str]:
        values = ", ".join(f"{name} {getattr(self.pipeline, f'{name}_ms')}" for name in self.shown.settings)
        return [words(self.name, 16, top + 18, "name", "start"), words(values, WIDTH - 16, top + 18, "faint small", "end")]

    def _clock_label(self, number: int, clock: int) -> str:
        what = "wall time and clock" if self.shown.span == "max_future" else "clock"
        return f"{what} of batch {number}: {clock}" if self.several else f"{what}: {clock}"

    def _levels(self) -> dict[Fate, int]:
        """Events at one time on one lane are stacked, away from the other lane."""
        seen: dict[tuple[int, int | None], int] = {}
        levels = {}
        for fate in self.fates:
            place = fate.side, fate.ts
            levels[fate] = seen.get(place, 0)
            seen[place] = levels[fate] + 1
        return levels

    def _x(self, ts: int) -> float:
        return self.scale.x(ts - T0)

    def _spans(self, left: float, right: float) -> list[str]:
        drawn = []
        if self.shown.tolerance:
            first, reach = self.fates[0], self.pipeline.tolerance_ms
            assert first.ts is not None
            y = right if first.side == LEFT else left
            drawn += [bar("tolerance", self._x(first.ts - reach), self._x(first.ts + reach), y - 13, 26)]
            label = f"within the tolerance of {_at(first)}"
            drawn += [words(label, self._x(first.ts - reach) + 6, y + (28 if y == right else -18), "faint small", "start")]
        if self.shown.span:
            length = getattr(self.pipeline, f"{self.shown.span}_ms")
            start = self.played[0].batch.wall_time if self.shown.span == "max_future" else self.fates[0].ts
            assert start is not None
            begin, end = self._x(start), self._x(start + length)
            drawn += [bar("grace", begin, end, right + 30, 18)]
            drawn += [words(f"{self.shown.span} {length}", (begin + end) / 2, right + 43, "inside")]
        return drawn

    def _sessions(self, top: float) -> tuple[list[str], list[str], float]:
        """Gap and grace, brackets and labels, a row a session, and where the axis goes."""
        bars: list[str] = []
        labels: list[str] = []
        sessions = sorted({fate.session for fate in self.fates if fate.session})
        for row, session in enumerate(sessions):
            mine = next(fate for fate in self.fates if fate.session == session)
            labels += self._bracket(session, mine, top + ROW * row)
            if self.shown.closing:
                bars += self._closing(session, top + ROW * row)
        return bars, labels, top + ROW * len(sessions) + (12 if not sessions else 2)

    def _bracket(self, session: Session, fate: Fate, y: float) -> list[str]:
        begin, end = self._x(session.start) - 5, self._x(session.end) + 5
        state = {"open": "open", "late": "late"}.get(
            fate.verdict, f"closed in batch {fate.batch}" if self.several else "closed"
        )
        label = f"session {session.start - T0} to {session.end - T0}: {state}" if session.events > 1 else f"session: {state}"
        drawn = [
            element("path", "session", d=f"M{begin:.1f} {y} v8 H{end:.1f} v-8"),
            fitting_words(label, begin, y + 26, "bad small" if state == "late" else "small"),
        ]
        over = session.end + self.pipeline.gap_ms + self.pipeline.grace_ms
        if self.shown.closing and self.scale.shows(over - T0):
            drawn.append(words(f"over at {over - T0}", self._x(over), y + 26, "faint small", "end"))
        return drawn

    def _closing(self, session: Session, y: float) -> list[str]:
        drawn = []
        begin = self._x(session.end) + 6
        gap_end = session.end + self.pipeline.gap_ms
        for css, stop, length in (
            ("gap", gap_end, self.pipeline.gap_ms),
            ("grace", gap_end + self.pipeline.grace_ms, self.pipeline.grace_ms),
        ):
            end = self._x(stop)
            drawn.append(bar(css, begin, end, y - 5, 16))
            if end - begin > text_width(f"{css} {length}"):
                drawn.append(words(f"{css} {length}", (begin + end) / 2, y + 7, "inside"))
            begin = end
        return drawn

    def _pairs(self, left: float, right: float) -> list[str]:
        drawn = []
        for fate in self.fates:
            if fate.verdict == "pair" and fate.side == LEFT:
                partner = self.by_source[fate.partner or ""]
                assert fate.ts is not None and partner.ts is not None
                label = f"pair, {abs(fate.ts - partner.ts)} apart"
                drawn += pair_line((self._x(fate.ts), left), (self._x(partner.ts), right), label)
        return drawn

    def _events(self, left: float, right: float, levels: dict[Fate, int]) -> list[str]:
        drawn: list[str] = []
        stacked = {(fate.side, fate.ts) for fate, level in levels.items() if level}
        ends = {False: -1.0, True: -1.0}
        for fate in self.fates:
            assert fate.ts is not None
            up = fate.side == LEFT
            x, y = self._x(fate.ts), (left - STEP * levels[fate]) if up else (right + STEP * levels[fate])
            drawn += event_mark(fate.side, fate.verdict, x, y)
            label, css = self._label(fate), "bad" if is_rejected(fate.verdict) else ""
            if (fate.side, fate.ts) in stacked:
                drawn.append(words(label, x + 14, y + 4, css, "start"))
                continue
            # A label that would run into the one before it begins beside its mark, on the other side of the lane.
            beside = x - text_width(label) / 2 < ends[up]
            ends[up] = x + (14 + text_width(label) if beside else text_width(label) / 2)
            if beside:
                drawn.append(words(label, x + 12, y - 4 if up else y + 12, css, "start"))
            else:
                drawn.append(words(label, x, y - 13 if up else y + 23, css))
        return drawn

    def _label(self, fate: Fate) -> str:
        parts = [_at(fate)]
        if self.several and fate.landed > 1:
            parts.append(f"read in batch {fate.landed}")
        if fate.verdict != "pair":
            parts.append(VERDICTS.get(fate.verdict, fate.verdict))
        return ", ".join(parts)


def _at(fate: Fate) -> str:
    return "?" if fate.ts is None else str(fate.ts - T0)
