"""Where a warehouse keeps what is not a table: the writer's lock and the quality pages."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

WAREHOUSE_VARIABLE, PAGES_VARIABLE = "PAIRING_WAREHOUSE", "PAIRING_QUALITY_PAGES"
_DEFAULT = Path(__file__).resolve().parents[1] / ".local" / "warehouse"


def warehouse_root() -> str:
    """The warehouse of this environment: $PAIRING_WAREHOUSE, else .local/warehouse of the project."""
    return os.environ.get(WAREHOUSE_VARIABLE) or str(_DEFAULT)


def local_folder(root: str) -> Path | None:
    """The folder of a local warehouse, None for a URI of another file system.

    >>> str(local_folder("/a/b")), str(local_folder("file:///a/b")), local_folder("s3://a/b"), str(local_folder("/a:/b"))
    ('/a/b', '/a/b', None, '/a:/b')
    """
    if root.startswith("file:"):
        return Path(unquote(urlsplit(root).path))
    return None if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", root) else Path(root)


def pages_folder(root: str, pipeline: str) -> Path:
    """Where the quality pages of a pipeline are: beside its tables if they are local, else below $PAIRING_QUALITY_PAGES."""
    elsewhere = os.environ.get(PAGES_VARIABLE) or str(Path(tempfile.gettempdir()) / "event-pairing")
    return (local_folder(root) or Path(elsewhere)) / pipeline / "quality"
