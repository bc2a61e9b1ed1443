"""What docs/gallery.md shows of each example: the end of a first demo, as it was printed.

    make demo EXAMPLE=orders | .venv/bin/python -m tests.helpers.gallery_page orders

puts it there anew. The examples must not have run before (`make clean`).
"""

from __future__ import annotations

import re
import sys

from include.local.machine import ROOT

PAGE = ROOT / "docs" / "gallery.md"
_BEGIN, _END = "<!-- came-out: {} -->\n\n", "\n<!-- /came-out -->"


def came_out(printed: str) -> str:
    """The part of a demo's output between the line that says `done` and where to look; raises ValueError where there is none."""
    if not (found := re.search(r"s  done; read back [^\n]*\n\n(.*?)\n\n  Airflow ", printed, re.S)):
        raise ValueError("no demo came to its end here")
    return "\n".join(line[2:] for line in found[1].split("\n"))


def shown(example: str) -> str:
    """The same of the example, from the page."""
    _, _, rest = PAGE.read_text().partition(_BEGIN.format(example))
    return "\n".join(line[4:] for line in rest.partition(_END)[0].rstrip("\n").split("\n"))


def show(example: str, printed: str) -> None:
    """Writes it into the page."""
    head, begin, rest = PAGE.read_text().partition(_BEGIN.format(example))
    text = "".join(f"    {line}".rstrip() + "\n" for line in came_out(printed).split("\n"))
    PAGE.write_text(head + begin + text + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    show(sys.argv[1], sys.stdin.read())
