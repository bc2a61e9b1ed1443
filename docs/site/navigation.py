"""The order of the site's pages is that of docs/README.md, so it is written once and GitHub shows it, too."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

FRONT = "docs/README"
# Their folders have a page for each of many things; GitHub finds them by the table on the page.
INDEXES = ("docs/runbooks/README", "docs/decisions/README")

_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n?)*)", re.M)
_ENTRY = re.compile(r"^- \[(.+?)\]\(([^)#]+)\.md\)", re.M)


def navigation(text: str) -> str:
    """A hidden list of pages for each section of the front page, with the texts of its links."""
    found = _SECTION.findall(text)
    return "".join(
        _list(title, [f"{name} </{_page(link)}>" for name, link in _ENTRY.findall(body)]) for title, body in found
    )


def pages_of(root: Path, index: str) -> str:
    """A hidden list of the other pages in the folder of an index, by name."""
    folder = (root / index).parent
    return _list("", [page.stem for page in sorted(folder.glob("*.md")) if page.stem != "README"])


def _page(link: str) -> str:
    """The page, from the root, to which a link on the front page leads."""
    parts: list[str] = []
    for part in (PurePosixPath(FRONT).parent / link).parts:
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


def _list(title: str, pages: list[str]) -> str:
    caption = f":caption: {title}\n" if title else ""
    return "\n```{toctree}\n:hidden:\n:maxdepth: 1\n" + caption + "\n" + "\n".join(pages) + "\n```\n"
