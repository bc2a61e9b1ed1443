"""Warehouses of tests, wherever they are: in a folder, or on a real object store that is started for the tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import obstore
import pytest
from deltalake import DeltaTable

from include.config.pipeline import Pipeline
from include.config.store import OPTIONS_VARIABLE, Store, local_folder, read_bytes, warehouse_store
from include.local.process import free_port
from include.local.store import BUCKET, KINDS, LocalS3, LocalStore, missing_for
from tests.helpers.google_store import LocalGoogle
from tests.helpers.store_users import S3WithUsers

# Set in continuous integration: there a server or program that is missing is a failure.
REQUIRED = "PAIRING_REQUIRE_STORES"

# Of what takes long one run is enough: on an object store where this machine can have one, else in a folder.
_FOLDER_FIRST = missing_for("s3") is not None and not os.environ.get(REQUIRED)
_KINDS = KINDS | {"gs": LocalGoogle, "s3 with users": S3WithUsers}
_ORDER = ("folder", "s3") if _FOLDER_FIRST else ("s3", "folder")
ON_A_STORE_IF_POSSIBLE = [_ORDER[0], pytest.param(_ORDER[1], marks=pytest.mark.long)]


def skip_or_fail(problem: object) -> NoReturn:
    """Skips the test, or fails it if REQUIRED is set. `problem`: what this machine lacks, and what to install."""
    (pytest.fail if os.environ.get(REQUIRED) else pytest.skip)(str(problem))


@contextmanager
def running_store(kind: str, folder: Path) -> Iterator[LocalStore]:
    """A store of the kind while the block runs. Skips the test where this machine cannot have one, or fails it if REQUIRED is set."""
    if problem := missing_for(kind if kind in KINDS else "s3"):
        skip_or_fail(problem)
    with _KINDS[kind](folder, free_port()) as store:
        yield store


def root_on(store: LocalStore, name: str, patch: pytest.MonkeyPatch) -> str:
    """A warehouse of its own on the store; jobs of this process and of those that it starts can use it."""
    patch.setenv(OPTIONS_VARIABLE, json.dumps(store.options))
    return f"{store.warehouse.partition('://')[0]}://{BUCKET}/{name}"


def root_of(request: pytest.FixtureRequest, name: str, folder: Path, patch: pytest.MonkeyPatch) -> str:
    """A warehouse on the store that the fixture is parametrized with: `folder`, or what has a fixture of its name."""
    return str(folder) if request.param == "folder" else root_on(request.getfixturevalue(request.param), name, patch)


def table_of(warehouse: str | Path, pipeline: Pipeline, table: str) -> DeltaTable:
    """A table by delta-rs, and nothing of the jobs' own code but where a warehouse is."""
    place = warehouse_store(str(warehouse)).at(pipeline.name, table)
    return DeltaTable(place.uri, storage_options=place.delta_options)


def texts_in(place: Store) -> dict[str, str]:
    """Name -> text of everything at a place."""
    if (folder := local_folder(place.uri)) is not None and not folder.is_dir():
        return {}
    names = [file["path"] for file in obstore.list(place.client).collect()]
    return {name: read_bytes(place, name).decode() for name in sorted(names)}


def data_files(warehouse: str | Path, pipeline: Pipeline) -> dict[str, datetime]:
    """The data files of all its tables, those of no commit, too: name -> when it was written last."""
    found = obstore.list(warehouse_store(str(warehouse)).at(pipeline.name).client).collect()
    return {file["path"]: file["last_modified"] for file in found if file["path"].endswith(".parquet")}


def requests_of(store: LocalStore, since: int = 0) -> list[tuple[str, str]]:
    """The requests that an S3 store has answered from the byte `since` of its log on: (operation, key)."""
    assert isinstance(store, LocalS3)
    lines = store.access_log.read_bytes()[since:].decode().splitlines()
    fields = [line.split(" ") for line in lines if " s3_" in line]
    return [(each[7].removeprefix("s3_"), each[8]) for each in fields]
