"""Small pictures within a page, as SVG without script or style of its own: their classes are coloured by `templates/look.css`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

# Units of the pictures' own coordinates; the page stretches them.
SPARK_WIDTH, SPARK_HEIGHT = 144, 32
BARS_WIDTH, BARS_HEIGHT = 320, 72
# Above the bars, for the label of the mark, and below them.
_ABOVE, _BELOW = 16, 18
# What is there is seen, however little it is beside the most.
_LEAST = 1.5


class Series(NamedTuple):
    """Numbers that are drawn with one class, upon those of the series before it."""

    style: str
    numbers: Sequence[float]


def sparkline(title: str, numbers: Sequence[float], style: str) -> Markup:
    """A bar for each number, oldest first, drawn with the class `style`; empty without any. The text for those who do not see it has its
    range and its last number.
    """
    if not numbers:
        return Markup("")
    said = f"{title}: from {min(numbers):,.0f} to {max(numbers):,.0f}, {numbers[-1]:,.0f} in the last"
    return Markup(
        '<svg class="spark {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}"><path d="{}"/></svg>'
    ).format(
        style, SPARK_WIDTH, SPARK_HEIGHT, said, _path([0.0] * len(numbers), numbers, max(numbers), SPARK_WIDTH, SPARK_HEIGHT)
    )


def bars(title: str, series: Sequence[Series], mark: int | None, label: str, ends: tuple[str, str]) -> Markup:
    """Stacked bars. `mark`: a line behind the bar of this index, with a `label`; `ends`: what stands below the first and the last bar."""
    size = len(series[0].numbers)
    highest = max(map(sum, zip(*(each.numbers for each in series), strict=True)), default=0.0)
    base, drawn = [0.0] * size, []
    for style, numbers in series:
        path = _path(base, numbers, highest, BARS_WIDTH, BARS_HEIGHT)
        drawn.append(Markup('<path class="{}" d="{}"/>').format(style, path))
        base = [low + number for low, number in zip(base, numbers, strict=True)]
    line = Markup("")
    if mark is not None:
        at = round((mark + 1) * BARS_WIDTH / size, 1)
        anchor = "end" if at > BARS_WIDTH / 2 else "start"
        beside = at - 4 if anchor == "end" else at + 4
        line = Markup(
            '<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/><text class="label" x="{3}" y="{4}" text-anchor="{5}">{6}</text>'
        ).format(at, -_ABOVE, BARS_HEIGHT, beside, 11 - _ABOVE, anchor, label)
    return Markup(
        '<svg class="bars" viewBox="0 {0} {1} {2}" role="img" aria-label="{3}">{4}<path class="axis" d="M0 {5}H{1}"/>{6}'
        '<text x="0" y="{7}">{8}</text><text x="{1}" y="{7}" text-anchor="end">{9}</text></svg>'
    ).format(
        -_ABOVE,
        BARS_WIDTH,
        _ABOVE + BARS_HEIGHT + _BELOW,
        title,
        Markup("").join(drawn),
        BARS_HEIGHT,
        line,
        BARS_HEIGHT + 14,
        *ends,
    )


def _path(base: Sequence[float], numbers: Sequence[float], highest: float, width: int, height: int) -> str:
    """Bars of equal width, each from its base."""
    step, room, parts = width / len(numbers), height * 0.96, []
    for index, (low, number) in enumerate(zip(base, numbers, strict=True)):
        if number > 0:
            tall = max(number / highest * room, _LEAST)
            left, foot = index * step + step * 0.1, height - low / highest * room
            parts.append(f"M{left:.1f} {foot:.1f}v{-tall:.1f}h{step * 0.8:.1f}v{tall:.1f}z")
    return "".join(parts)
