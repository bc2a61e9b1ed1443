"""A clock timeline: a panel a batch, a lane a partition, what is read, waiting and closed."""

from __future__ import annotations

from spark_jobs.rules.rules import LEFT
from spark_jobs.story.play import PlayedBatch
from tests.draw_timelines.marks import clock_lines, event_mark
from tests.draw_timelines.scale import LANES_FROM, Scale
from tests.draw_timelines.svg import line, words
from tests.helpers.clock_cases import MINUTE, ClockTimeline
from tests.helpers.stream import Partition

LANE = 32
NAMES = ("analytics", "metrics")
Place = tuple[int, int, int]
"""Side, partition, offset."""


class ClockPanels:
    """What the batches of one clock timeline did. Times in minutes."""

    def __init__(self, name: str, case: ClockTimeline, scale: Scale) -> None:
        self.name, self.case, self.scale = name, case, scale
        self.stream = case.stream
        self.plans = case.plans(self.stream)
        self.played = self.stream.play(self.plans)

    def description(self) -> str:
        """The panels in words."""
        batches = [self._heading(number) for number in range(len(self.played))]
        return f"{self.name}. {'; '.join(batches)}."

    def draw(self, top: float) -> tuple[list[str], float]:
        """The elements of all batches, and where they end."""
        drawn = [words(self.name, 16, top + 18, "name", "start")]
        y = top + 34
        for number in range(len(self.played)):
            elements, y = self._batch(number, y)
            drawn += elements
        return drawn, y

    def _heading(self, number: int) -> str:
        outcomes = self.played[number].outcomes.column("outcome").to_pylist()
        alone = outcomes.count("left_only") + outcomes.count("right_only")
        counts = {"closed in pairs": 2 * outcomes.count("pair"), "closed alone": alone, "open": outcomes.count("open")}
        return f"batch {number + 1}, events: {', '.join(f'{count} {what}' for what, count in counts.items() if count)}"

    def _batch(self, number: int, top: float) -> tuple[list[str], float]:
        wall_time, clock = self.plans[number].wall_time // MINUTE, self.played[number].rules.clock
        labels = [] if clock is None else [(f"clock {clock // MINUTE}", clock // MINUTE)]
        texts, lines = clock_lines(labels, self.scale)
        drawn = [words(self._heading(number), 16, top + 14, "", "start"), *texts.at(top + 36)]
        lanes = {at: top + 62 + LANE * row for row, at in enumerate(self.stream.events)}
        bottom = max(lanes.values()) + 24
        for at, y in lanes.items():
            drawn.append(line("lane", LANES_FROM, y, self.scale.until_x, y))
            drawn.append(words(f"{NAMES[at[0]]}-{at[1]}", LANES_FROM - 8, y + 4, "faint small", "end"))
            drawn.append(words(self._progress(number, at), self.scale.until_x + 12, y + 4, "faint small", "start"))
        wall = self.scale.x(wall_time)
        drawn += [line("wall", wall, top + 42, wall, bottom), *lines(top + 42, bottom)]
        if clock != self.plans[number].wall_time:
            drawn.append(words(f"wall time {wall_time}", wall, top + 36, "faint"))
        drawn += [*self._events(number, lanes), *self.scale.axis(bottom)]
        return drawn, bottom + 38

    def _progress(self, number: int, at: Partition) -> str:
        """Where the partition's own clock is, and why."""
        plan = self.plans[number]
        until, end = plan.untils[at], plan.ends[at]
        if until == end:
            return f"{'read to its end' if end else 'silent'}: at {plan.wall_time // MINUTE}"
        if not until:
            return f"{end} waiting, none read"
        return f"{end - until} waiting: at {max(event.ts for event in self.stream.events[at][:until]) // MINUTE}"

    def _events(self, number: int, lanes: dict[Partition, float]) -> list[str]:
        """Every event that has arrived; pairs are joined, those of earlier batches faintly."""
        verdicts: dict[Place, str] = {}
        joined: list[str] = []
        places = {
            (*at, offset): (self.scale.x(event.ts // MINUTE), lanes[at])
            for at, mine in self.stream.events.items()
            for offset, event in enumerate(mine[: self.plans[number].ends[at]])
        }
        for batch in self.played[: number + 1]:
            for outcome, ends in _outcomes(batch):
                verdicts |= dict.fromkeys(ends, outcome)
                if outcome == "pair":
                    css = "pair" if batch is self.played[number] else "pair earlier"
                    joined.append(line(css, *places[ends[0]], *places[ends[1]]))
        marks = [
            mark for place, (x, y) in places.items() for mark in event_mark(place[0], verdicts.get(place, "unread"), x, y)
        ]
        return [*joined, *marks]


def _outcomes(batch: PlayedBatch) -> list[tuple[str, list[Place]]]:
    return [
        (
            row["outcome"],
            [
                (side, row[f"{name}_partition"], row[f"{name}_offset"])
                for side, name in ((LEFT, "left"), (1 - LEFT, "right"))
                if row[f"{name}_offset"] is not None
            ],
        )
        for row in batch.outcomes.to_pylist()
    ]
