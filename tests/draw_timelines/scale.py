"""From times to x."""

from __future__ import annotations

from dataclasses import dataclass

from tests.draw_timelines.svg import WIDTH, line, words

LANES_FROM = 112
LANES_TO = WIDTH - 28


@dataclass(frozen=True)
class Scale:
    """A stretch of time, `first` to `last` (both inclusive, in `unit`), laid between LANES_FROM and `until_x`."""

    first: int
    last: int
    unit: str = "ms"
    until_x: int = LANES_TO

    def x(self, at: float) -> float:
        """Times outside are put at the edge."""
        inside = min(max(at, self.first), self.last)
        return LANES_FROM + (self.until_x - LANES_FROM) * (inside - self.first) / (self.last - self.first)

    def shows(self, at: float) -> bool:
        """Whether it is on the picture."""
        return self.first <= at <= self.last

    def axis(self, y: float) -> list[str]:
        """The axis with its ticks."""
        drawn = [line("axis", LANES_FROM, y, self.until_x, y), words(self.unit, self.until_x + 16, y + 4, "tick")]
        step = next(s for s in (1, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if (self.last - self.first) / s <= 9)
        for at in range(-(-self.first // step) * step, self.last + 1, step):
            drawn += [line("axis", self.x(at), y, self.x(at), y + 5), words(str(at), self.x(at), y + 18, "tick")]
        return drawn
