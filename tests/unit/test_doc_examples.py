"""The examples in the documents run, and print what the documents show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from spark_jobs.tables.schemas import schemas
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.test_docs import DOCUMENTS, section

TYPES = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
}


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


@pytest.mark.parametrize(
    ("page", "heading"),
    [("README.md", "## Rehearse what a configuration would do"), ("docs/start.md", "## 3 Play with the rules")],
)
def test_the_rehearsal_prints_what_the_page_shows(page, heading, tmp_path):
    text = section(ROOT / page, heading)
    (script,), (output,) = code_blocks(text, "bash"), code_blocks(text, "json")
    script = script.replace(".venv/bin/python", sys.executable).replace("include/pipelines", f"{ROOT}/include/pipelines")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def arrow_type(tokens: list[str]) -> pa.DataType:
    """The type that the tokens of a SQL type begin with; takes them away."""
    name = tokens.pop(0).upper()
    if name in TYPES:
        return TYPES[name]
    tokens.pop(0)
    if name == "STRUCT":
        found = pa.struct(arrow_fields(tokens))
    else:
        found = pa.list_(arrow_type(tokens)) if name == "ARRAY" else pa.map_(arrow_type(tokens), arrow_type(tokens))
    tokens.pop(0)
    return found


def arrow_fields(tokens: list[str]) -> list[tuple[str, pa.DataType]]:
    found = []
    while tokens and tokens[0] != ">":
        found.append((tokens.pop(0), arrow_type(tokens)))
    return found


@pytest.fixture(scope="module")
def empty_warehouse(tmp_path_factory) -> Path:
    """Every table of the pipeline calls, with its declared columns and no rows."""
    folder = tmp_path_factory.mktemp("warehouse")
    for table, columns in schemas(CALLS).items():
        schema = pa.schema(arrow_fields(re.findall(r"\w+|[<>]", columns)))
        write_deltalake(str(folder / "calls" / table), schema.empty_table())
    return folder


SQL: list[Any] = [
    pytest.param(sql, id=f"{document.stem}-{number}")
    for document in DOCUMENTS
    for number, sql in enumerate(code_blocks(document.read_text(), "sql"), 1)
]


@pytest.mark.parametrize("sql", SQL)
def test_sql_examples_run(sql, empty_warehouse):
    query = QueryBuilder()
    for table in schemas(CALLS):
        query = query.register(table, DeltaTable(str(empty_warehouse / "calls" / table)))
    assert pa.table(query.execute(sql)).column_names


def test_the_ledger_function_runs(empty_warehouse):
    blocks = code_blocks((ROOT / "docs/ledger.md").read_text(), "bash")
    script = next(block for block in blocks if "ledger() {" in block).replace(".venv/bin/python", sys.executable)
    environment = {"PAIRING_WAREHOUSE": str(empty_warehouse), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-euc", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "max(batch_ledger.batch_id)" in done.stdout, done.stderr
