"""Where the warehouse of a soak is: in a folder, or on an object store that runs as long."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.config.store import OPTIONS_VARIABLE
from include.local.process import free_port
from include.local.store import BUCKET, KINDS


def store_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--store`."""
    parser.add_argument(
        "--store", choices=sorted(KINDS), help="put the tables on a real server of the kind; default: in a folder"
    )


@contextmanager
def warehouse_on(kind: str | None, folder: Path) -> Iterator[str]:
    """A warehouse below the folder; jobs of this process and of those that it starts can use it. Raises SetupError."""
    if kind is None:
        yield str(folder / "warehouse")
        return
    with KINDS[kind](folder / "store", free_port()) as store:
        os.environ[OPTIONS_VARIABLE] = json.dumps(store.options)
        yield f"{store.warehouse.partition('://')[0]}://{BUCKET}/soak"
