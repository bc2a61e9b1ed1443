"""Two warehouses whose pipelines read the same topics: one on an object store, and one in a folder to compare it with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from include.config.pipeline_file import load_pipeline
from include.local.broker import LocalBroker
from include.local.store import LocalStore
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.comparing import differences
from tests.helpers.stores import root_on
from tests.helpers.timeless_traffic import Portions, timeless


class Both(NamedTuple):
    """`send` of the portions reaches both; `file`: the pipeline file of the stored one."""

    stored: Warehouse
    foldered: Warehouse
    portions: Portions
    file: Path
    bootstrap: str

    def run(self, *work: Callable[[Warehouse], object]) -> None:
        """Does the work in both, one after the other."""
        for warehouse in (self.stored, self.foldered):
            for each in work:
                each(warehouse)

    def differences(self) -> list[str]:
        """What is not the same in tables, commits and messages."""
        mine, theirs = self.stored, self.foldered
        return differences(self.bootstrap, mine.root, mine.pipeline, theirs.pipeline, theirs.root)


def both_on(store: LocalStore, name: str, spark: Any, broker: LocalBroker, folder: Path, patch: pytest.MonkeyPatch) -> Both:
    """A warehouse on the store and one in the folder; jobs of this process and of those that it starts can use both.

    `name`: begins the names of pipelines and topics.
    """
    return both_at(root_on(store, name, patch), name, spark, broker, folder, patch)


def both_at(root: str, name: str, spark: Any, broker: LocalBroker, folder: Path, patch: pytest.MonkeyPatch) -> Both:
    """As `both_on`, with the first warehouse at this place."""
    patch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": broker.bootstrap}))
    files = [timeless(f"{name}_{where}", f"{name}_both", folder / "jobs")[1] for where in ("stored", "foldered")]
    # As the commands read them: the hash of the settings is on every page.
    stored, foldered = map(load_pipeline, files)
    warehouses = [Warehouse(root, stored, spark), Warehouse(str(folder / "warehouse"), foldered, spark)]
    return Both(*warehouses, Portions(broker, stored, foldered), files[0], broker.bootstrap)
