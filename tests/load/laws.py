"""What a run under load must hold, judged from its series of (seconds, value), and the table that says so.

Pure: no clock, no process, no file. `Series` are in order of time; a law that cannot be judged says why and does not fail.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Series = Sequence[tuple[float, float]]

# A line through fewer points says nothing.
LEAST_POINTS = 12


class Law(NamedTuple):
    """One row of the verdict. `held`: None if it could not be judged."""

    name: str
    wanted: str
    measured: str
    held: bool | None

    @property
    def verdict(self) -> str:
        """For people."""
        return "not judged" if self.held is None else "held" if self.held else "NOT HELD"


def growth(series: Series) -> float:
    """How much a straight line through the points rises from the first one to the last (least squares).

    >>> growth([(0, 5.0), (1, 7.0), (2, 9.0)]), growth([(0, 5.0), (1, 7.0), (2, 5.0)])
    (4.0, 0.0)
    """
    times, values = zip(*series, strict=True)
    return statistics.linear_regression(times, values).slope * (times[-1] - times[0])


def flat(name: str, series: Series, unit: str, share: float, least: float) -> Law:
    """Held if the line through the series rises by at most `share` of its mean, or by `least` where that is more (both inclusive).

    >>> flat("x", [(at, 100.0 + at) for at in range(12)], "MB", 0.1, 0.0)
    Law(name='x', wanted='grows by at most 10.6 MB', measured='grows by 11 MB (mean 106, 100 to 111)', held=False)
    """
    if len(series) < LEAST_POINTS:
        return Law(name, "does not grow", f"{len(series)} of {LEAST_POINTS} points", None)
    values = [value for _, value in series]
    mean = statistics.fmean(values)
    most, rise = max(share * mean, least), growth(series)
    unit = unit and f" {unit}"
    spread = f"(mean {number(mean)}, {number(min(values))} to {number(max(values))})"
    return Law(name, f"grows by at most {number(most)}{unit}", f"grows by {number(rise)}{unit} {spread}", rise <= most)


def bounded(name: str, series: Series, unit: str, most: float) -> Law:
    """Held if no value is above `most`."""
    if not series:
        return Law(name, f"at most {number(most)} {unit}", "nothing was measured", None)
    worst = max(value for _, value in series)
    return Law(name, f"at most {number(most)} {unit}", f"at most {number(worst)} {unit}", worst <= most)


def equal(name: str, wanted: int, found: int) -> Law:
    """Held if the two counts are the same."""
    return Law(name, f"{wanted:,}", f"{found:,}", wanted == found)


def as_predicted(name: str, disk: Series, part: float, within: float) -> Law:
    """Whether the first `part` of the points (records, bytes) tells the last one: bytes grow with the records, by a line through the first part.

    The prediction may be off by `within` of what was added after the first part, inclusive.

    >>> law = as_predicted("disk", [(events, 1000.0 + 3 * events) for events in range(0, 48, 2)], 0.5, 0.1)
    >>> law.measured, law.held
    ('3.0 bytes a record, in all 0.0 GB instead of 0.0 GB: 0 % off', True)
    """
    first = disk[: round(len(disk) * part)]
    wanted = f"within {within:.0%} of the first {part:.0%}'s prediction".replace("0%", "0 %")
    if len(first) < LEAST_POINTS or first[-1][0] == first[0][0]:
        return Law(name, wanted, f"{len(first)} of {LEAST_POINTS} points", None)
    line = statistics.linear_regression(*zip(*first, strict=True))
    events, found = disk[-1]
    predicted = line.slope * events + line.intercept
    added = found - first[-1][1]
    off = (found - predicted) / added if added else float("inf")
    measured = (
        f"{line.slope:.1f} bytes a record, in all {found / 1e9:.1f} GB instead of {predicted / 1e9:.1f} GB: {off:.0%} off"
    )
    return Law(name, wanted, measured.replace("%", " %"), abs(off) <= within)


def number(value: float) -> str:
    """A value with three digits, or whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(laws: Iterable[Law]) -> list[str]:
    """The verdict, a line each; it is Markdown, so that the documentation can have it as it is."""
    rows = [("law", "wanted", "measured", "verdict"), *((law.name, law.wanted, law.measured, law.verdict) for law in laws)]
    wide = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in wide) + "|", *lines[1:]]
