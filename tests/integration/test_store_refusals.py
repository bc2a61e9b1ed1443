"""Places, credentials and tables that a job cannot use: one line with name and remedy, exit status 1, and nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import obstore
import pytest
from deltalake import DeltaTable, Field, TableFeatures
from deltalake.schema import PrimitiveType

from include.config.project import REMOTE_VARIABLE
from include.config.store import OPTIONS_VARIABLE, Store
from include.local.machine import ROOT
from include.local.process import free_port
from include.local.store import BUCKET
from spark_jobs import land_events, maintain_tables, pair_events
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.tables.schemas import LEDGER, raw_table, schemas
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.google_store import GoogleFront, options_at
from tests.helpers.job_processes import Jobs
from tests.helpers.one_line import line_of
from tests.helpers.stores import root_on, table_of
from tests.helpers.timeline import CALLS

pytestmark = pytest.mark.integration

FILE = ROOT / "include" / "pipelines" / "calls.yaml"
RAW = raw_table(CALLS.left)
SECRET = "Not-to-be-told-7"
IMPATIENT = {"max_retries": "2", "retry_timeout": "5s"}


def told(
    tmp_path: Path, root: str, options: dict[str, str], command: str = "land_events", *arguments: str
) -> tuple[str, dict[str, Any]]:
    """What the job says, and its outcome for Airflow."""
    outcome = tmp_path / "outcome.json"
    jobs = Jobs(Path(shutil.copy(FILE, tmp_path)), CALLS, "", "", root)
    jobs.environment |= {OPTIONS_VARIABLE: json.dumps(options | IMPATIENT), "PAIRING_OUTCOME": str(outcome)}
    del jobs.environment[REMOTE_VARIABLE], jobs.environment[VARIABLE]
    running = jobs.start(command, *arguments)
    assert running.wait() == 1, running.told()
    (line,) = running.told().splitlines()
    assert len(line) < 700, line
    left = json.loads(outcome.read_text())
    assert line == f"error: {left['error']}"
    return left["error"], left


def there(options: dict[str, str], bucket: str = BUCKET, scheme: str = "s3") -> list[str]:
    return [file["path"] for file in obstore.list(Store(f"{scheme}://{bucket}", options).client).collect()]


@pytest.fixture(params=["s3", pytest.param("azure", marks=pytest.mark.long)])
def store(request):
    return request.getfixturevalue(request.param)


def scheme(store) -> str:
    return store.warehouse.partition("://")[0]


def test_a_bucket_that_is_not_there(store, tmp_path):
    root = f"{scheme(store)}://no-such-bucket/w"
    line, outcome = told(tmp_path, root, store.options)
    assert (
        f"{root}/calls" in line and "there is no such bucket or container: create it, or correct PAIRING_WAREHOUSE" in line
    )
    assert outcome["retry"] is False


@pytest.mark.parametrize("option", ["aws_secret_access_key", "aws_access_key_id", "azure_storage_account_key"])
def test_a_wrong_key(option, store, tmp_path):
    if option not in store.options:
        pytest.skip(f"{store.name} has no {option}")
    wrong = "bm90LXRoZS1rZXktb2YtdGhpcy1hY2NvdW50" if store.name == "azure" else SECRET
    before = there(store.options, scheme=scheme(store))
    line, outcome = told(tmp_path, f"{scheme(store)}://{BUCKET}/wrong-key", store.options | {option: wrong})
    assert "the store does not accept the credentials: correct them in the connection warehouse_default" in line
    assert outcome["retry"] is False
    assert not any(secret in line for secret in (wrong, store.secret))
    assert there(store.options, scheme=scheme(store)) == before


def test_a_wrong_region(s3, tmp_path):
    line, outcome = told(tmp_path, f"s3://{BUCKET}/wrong-region", s3.options | {"aws_region": "eu-central-1"})
    assert (
        "the store is in another region or at another endpoint: set region and endpoint in the connection warehouse_default"
        in line
    )
    assert outcome["retry"] is False


def test_a_store_that_is_away(s3, tmp_path):
    line, outcome = told(
        tmp_path, f"s3://{BUCKET}/away", s3.options | {"aws_endpoint_url": f"http://127.0.0.1:{free_port()}"}
    )
    assert "the store does not answer: check the network and the endpoint in the connection warehouse_default" in line
    assert outcome["retry"] is True


@pytest.mark.parametrize(
    ("root", "remedy"),
    [
        ("s4://{bucket}/w", "warehouse s4://… is refused: use a folder, s3://, az://, abfss:// or gs://"),
        ("s3:/{bucket}/w", "warehouse s3://… is refused: write it s3://bucket/path"),
        ("s3:///{bucket}/w", "warehouse s3://… is refused: write it s3://bucket/path"),
        ("s3://{bucket}/w?region=eu", "options go into the connection warehouse_default"),
        (
            "s3://me:{secret}@{bucket}/w",
            "without user, password or port; give credentials by the connection warehouse_default",
        ),
        ("s3://{bucket}/w?aws_secret_access_key={secret}", "options go into the connection warehouse_default"),
        ("az://me:{secret}@{bucket}/w", "without user, password or port"),
        ("https://me:{secret}@host/{bucket}", "warehouse https://… is refused"),
    ],
)
def test_a_uri_with_a_typo_or_with_credentials_in_it(root, remedy, s3, tmp_path):
    before = there(s3.options)
    line, outcome = told(tmp_path, root.format(bucket=BUCKET, secret=SECRET), s3.options)
    assert remedy in line
    assert SECRET not in json.dumps(outcome) and "me:" not in line
    assert outcome["retry"] is False
    assert there(s3.options) == before


@pytest.mark.parametrize(
    "command",
    [("maintain_tables",), ("reconcile",), ("explain_pair", "ann", "bob"), ("rewind", "--to-batch=1"), ("report_quality",)],
    ids=lambda command: command[0],
)
def test_every_command_refuses_such_a_uri(command, tmp_path):
    line, _ = told(tmp_path, "s4://bucket/w", {}, *command)
    assert "warehouse s4://… is refused: use a folder, s3://, az://, abfss:// or gs://" in line


# Tables that another program has changed


def versions_of(warehouse: Warehouse) -> dict[str, int]:
    return {table: table_of(warehouse.root, warehouse.pipeline, table).version() for table in schemas(warehouse.pipeline)}


def newer_reader(table: DeltaTable) -> None:
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)


def newer_writer(table: DeltaTable) -> None:
    table.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)


def other_column(table: DeltaTable) -> None:
    table.alter.add_columns([Field("theirs", PrimitiveType("string"))])


CHANGES = {
    newer_reader: "reader version 3 and writer version 7, not 1 and 2",
    newer_writer: "writer version 7, not 1 and 2",
    other_column: "other columns than the pipeline's (theirs)",
}


@pytest.mark.parametrize(
    "change",
    [pytest.param(change, marks=pytest.mark.long) if change is newer_writer else change for change in CHANGES],
    ids=lambda change: change.__name__,
)
def test_a_table_that_another_program_has_changed(change, spark, pipeline, s3, send, monkeypatch, capfd):
    root = root_on(s3, f"changed_{change.__name__}", monkeypatch)
    mine = Warehouse(root, pipeline, spark)
    send("a", "u", 1_000, 1)
    land_events.main(mine, 1_000, ())
    pair_events.main(mine)
    send("m", "u", 1_010, 1)
    change(table_of(root, pipeline, RAW))
    remedy = "another program has changed the table; only the jobs may write it, others read it. Put all tables of the pipeline back from one backup"
    versions = versions_of(mine)
    line = line_of(capfd, mine, lambda warehouse: land_events.main(warehouse, 1_000, ()))
    assert line.startswith(f"{mine.path(RAW)} has ") and CHANGES[change] in line and line.endswith(remedy), line
    # The plan is made, and the other side may be landed beside it.
    changed = {table for table, version in versions_of(mine).items() if version != versions[table]}
    assert changed <= {LEDGER, raw_table(CALLS.right)}
    # Nor does maintenance write it anew.
    assert CHANGES[change] in line_of(capfd, mine, maintain_tables.main)
    assert versions_of(mine)[RAW] == versions[RAW]


def test_a_google_store_that_does_not_honour_the_condition(s3, tmp_path):
    with GoogleFront(s3.port, honours=False) as front:
        root = f"gs://{BUCKET}/no-condition"
        line, outcome = told(tmp_path, root, options_at(front.address))
    assert f"the store of {root}/calls let 9 of 9 writers create the same object" in line
    assert outcome["retry"] is False
    assert there(s3.options, f"{BUCKET}/no-condition") == []
