"""The few SVG elements the pictures are made of, and the style that makes them readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

WIDTH = 800
STYLE = """\
svg { --paper: #ffffff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --left: #0550ae; --right: #953800;
      --pair: #1a7f37; --bad: #b31d28; --clock: #6639ba; --gap: #ffe3b0; --grace: #e4d6fb; --tolerance: #d3f0da }
@media (prefers-color-scheme: dark) {
svg { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #3d444d; --left: #79c0ff; --right: #ffa657;
      --pair: #56d364; --bad: #ff7b72; --clock: #d2a8ff; --gap: #5a3d0a; --grace: #3a2a5f; --tolerance: #12401f } }
.paper { fill: var(--paper) }
.lane, .axis { stroke: var(--line); stroke-width: 1.5 }
.left { stroke: var(--left); fill: var(--left) } .right { stroke: var(--right); fill: var(--right) }
.mark { stroke-width: 2.5 } .hollow { fill: var(--paper) } .open { stroke-dasharray: 3 2.5 }
.unread { stroke: var(--faint); stroke-width: 1.5; stroke-dasharray: 1.5 2.5 }
.cross { stroke: var(--bad); stroke-width: 2.5; fill: none }
.pair { stroke: var(--pair); stroke-width: 2.5; fill: none } .earlier { stroke: var(--line) }
.clock { stroke: var(--clock); stroke-width: 2; stroke-dasharray: 6 4 }
.wall { stroke: var(--faint); stroke-width: 2 }
.session { stroke: var(--ink); stroke-width: 2; fill: none }
.gap { fill: var(--gap) } .grace { fill: var(--grace) } .tolerance { fill: var(--tolerance) }
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink);
       paint-order: stroke; stroke: var(--paper); stroke-width: 4px; stroke-linejoin: round; stroke-dasharray: none }
text.name { font-weight: 600; font-size: 15px } text.small, text.tick { font-size: 12px }
text.inside { font-size: 12px; stroke: none } text.faint, text.tick { fill: var(--faint) }
text.pair, text.clock { stroke: var(--paper); stroke-width: 4px; stroke-dasharray: none }
text.pair { fill: var(--pair); font-weight: 600 } text.clock { fill: var(--clock) }
text.bad { fill: var(--bad); font-weight: 600 }
"""


def number(value: float) -> str:
    """A coordinate, the same on every machine."""
    return f"{round(value, 1):g}"


def element(name: str, css: str, text: str | None = None, **attributes: float | str) -> str:
    """One element; underscores in attribute names stand for hyphens."""
    written = "".join(
        f' {key.replace("_", "-")}="{escape(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
    )
    return f'<{name} class="{css}"{written}' + ("/>" if text is None else f">{escape(text, quote=False)}</{name}>")


def words(text: str, x: float, y: float, css: str = "", anchor: str = "middle") -> str:
    """A line of text."""
    return element("text", css, text, x=x, y=y, text_anchor=anchor)


def line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line."""
    return element("line", css, x1=x1, y1=y1, x2=x2, y2=y2)


def bar(css: str, begin: float, end: float, top: float, height: float) -> str:
    """A filled rectangle between two x."""
    return element("rect", css, x=begin, y=top, width=max(end - begin, 0), height=height)


def text_width(text: str) -> float:
    """Roughly, in the pictures' font."""
    return 7.0 * len(text)


def fitting_words(text: str, x: float, y: float, css: str) -> str:
    """A line of text that begins at x, or ends there if it would leave the picture."""
    fits = x + text_width(text) < WIDTH
    return words(text, x if fits else min(x + 8, WIDTH - 6), y, css, "start" if fits else "end")


def rows_of_words(texts: Iterable[tuple[str, float]]) -> list[tuple[str, float, str, int]]:
    """(text, x) each to be centred at x -> (text, x, anchor, row): no two overlap, and none leaves the picture."""
    placed: list[tuple[str, float, str, int]] = []
    taken: list[list[tuple[float, float]]] = []
    for text, x in sorted(texts, key=lambda each: -each[1]):
        half = text_width(text) / 2
        x, anchor = (WIDTH - 6, "end") if x + half > WIDTH - 6 else (x, "middle")
        begin, end = (x - 2 * half, x) if anchor == "end" else (x - half, x + half)
        row = next((n for n, spans in enumerate(taken) if all(end + 8 < a or b + 8 < begin for a, b in spans)), len(taken))
        if row == len(taken):
            taken.append([])
        taken[row].append((begin, end))
        placed.append((text, x, anchor, row))
    return placed


def document(title: str, description: str, elements: Iterable[str], height: float) -> str:
    """A whole picture with a title and a description for those who cannot see it."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {number(height)}" width="{WIDTH}" '
        f'height="{number(height)}" role="img" aria-labelledby="title description">'
    )
    return "\n".join(
        [
            head,
            f'<title id="title">{escape(title, quote=False)}</title>',
            f'<desc id="description">{escape(description, quote=False)}</desc>',
            f"<style>\n{STYLE}</style>",
            element("rect", "paper", x=0.0, y=0.0, width=float(WIDTH), height=height, rx=8.0),
            *elements,
            "</svg>\n",
        ]
    )
