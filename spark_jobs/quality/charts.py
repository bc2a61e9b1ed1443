"""Small drawings for the quality pages: SVG inside the page, in its own colours, with every number beside it as a table."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

_WIDTH, _HEIGHT, _BASE, _TOP = 640, 150, 120, 14


class Bar(NamedTuple):
    """`parts`: numbers of the classes `a`, `b`, `c`, one above the other."""

    label: str
    parts: Sequence[float]


def bars(title: str, found: Sequence[Bar]) -> str:
    """Bars from left to right; labels as far as there is room for them.

    >>> bars("none", [])
    ''
    """
    highest = max((sum(bar.parts) for bar in found), default=0)
    if not highest:
        return ""
    step, drawn = _WIDTH / len(found), []
    for number, bar in enumerate(found):
        y = float(_BASE)
        for style, part in zip("abc", bar.parts, strict=False):
            height = part / highest * (_BASE - _TOP)
            y -= height
            if part:
                drawn.append(
                    f'<rect class="{style}" x="{number * step + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}"/>'
                )
    return _svg(title, [*drawn, *_labels([bar.label for bar in found]), _text(0, 10, f"{highest:,.0f}", "start")])


def curve(title: str, labels: Sequence[str], shares: Sequence[float], mark: int | None) -> str:
    """A rising line of shares (0 to 1), a step for each label; `mark`: the label at which a line stands.

    >>> curve("none", [], [], None)
    ''
    """
    if not labels:
        return ""
    step = _WIDTH / len(labels)
    heights = [_BASE - share * (_BASE - _TOP) for share in shares]
    points = " ".join(f"{number * step:.1f},{y:.1f} {(number + 1) * step:.1f},{y:.1f}" for number, y in enumerate(heights))
    drawn = [f'<polyline class="line" points="{points}"/>', _text(0, 10, "100 %", "start")]
    if mark is not None:
        x = (mark + 1) * step
        drawn.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BASE}"/>')
    return _svg(title, [*drawn, *_labels(labels)])


def _labels(labels: Sequence[str]) -> list[str]:
    step = _WIDTH / len(labels)
    every = max(1, round(len(labels) / 9))
    return [
        _text((number + 0.5) * step, _BASE + 16, label, "middle")
        for number, label in enumerate(labels)
        if number % every == 0
    ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(title: str, drawn: list[str]) -> str:
    floor = f'<line class="floor" x1="0" x2="{_WIDTH}" y1="{_BASE}" y2="{_BASE}"/>'
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}"><title>{html.escape(title)}</title>'
        f"{floor}{''.join(drawn)}</svg>\n"
    )
