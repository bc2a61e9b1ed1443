"""Where tests look for quality pages."""

from __future__ import annotations

from pathlib import Path

from include.config.store import Store


def pages_folder(root: str, pipeline: str) -> Path:
    """The folder of a pipeline's pages, of a warehouse in a folder."""
    return Path(root) / pipeline / "quality"


def pages_in(folder: Path) -> Store:
    """A folder as the place of pages."""
    return Store(str(folder))
