"""docs/security.md: the tests that it names exist, and what it says of headers and rights is what the code does."""

from __future__ import annotations

import ast
import json
import re
from functools import cache

import pytest

from include.airflow.quality_app import _HEADERS
from tests.helpers.timeline import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


@cache
def functions(file: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_each_test_that_is_named_exists(file, name) -> None:
    assert name.startswith("test_") and name in functions(file)


def test_each_defence_names_a_test() -> None:
    tables = re.findall(r"^\| [^\n]*(?:Shown by|Needs)[^\n]*\|\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.M)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(NAMED) > 40 and len(rows) > 30
    assert [row for row in rows if "`tests/" not in row] == []


def test_the_headers_are_those_of_every_answer() -> None:
    section = TEXT.partition("## Pages")[2].partition("## Secrets")[0]
    assert dict(re.findall(r"^\| `([A-Z][\w-]+)` \| `([^`]+)`", section, re.M)) == _HEADERS


def test_the_policy_for_a_store_is_json_and_gives_what_the_manual_asks() -> None:
    (policy,) = map(json.loads, re.findall(r"^```json\n(.*?)^```$", TEXT, re.M | re.S))
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert actions >= {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"} and not [
        each for each in actions if "*" in each
    ]
    manual = (ROOT / "docs" / "operating.md").read_text()
    assert "rights to get, put, list and delete objects" in manual and "s3:ListBucketMultipartUploads" in manual
