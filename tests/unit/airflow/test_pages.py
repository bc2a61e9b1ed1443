"""A failed task's line leads to its page of the runbooks, and each task to the quality page of its batch."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from include.airflow.pages import runbook
from tests.helpers.timeline import ROOT

PAGES = ROOT / "docs" / "runbooks"


def examples():
    """The lines with which every page begins."""
    for page in sorted(PAGES.glob("*.md")):
        if page.stem != "README":
            block = re.search(r"^# .*\n\n((?:    .*\n)+)", page.read_text())
            for number, line in enumerate(block[1].splitlines()):
                # The rest of the line before.
                if not line.strip().startswith("to go on without them"):
                    yield pytest.param(line.strip(), page.name, id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("line", "page"), [*examples()])
def test_every_line_leads_to_its_page(line, page):
    # What the pages shorten at their ends, jobs do not.
    assert runbook(line.removesuffix("…")) == f"docs/runbooks/{page}"


def test_an_unknown_line_leads_nowhere():
    assert runbook("KeyError: 5") is None


def test_without_the_pages_there_is_none(tmp_path):
    assert runbook("no answer from Kafka at x", tmp_path) is None


@pytest.mark.parametrize(("batch_id", "page"), [(7, "batch-7"), (None, "index")])
def test_a_task_links_to_the_page_of_its_batch(batch_id, page, monkeypatch):
    from include.airflow.operators import QualityPage

    task = SimpleNamespace(batch_id=batch_id, pipeline_file=Path("x/calls.yaml"))
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    assert QualityPage().get_link(task, ti_key=None) == f"/quality/calls/{page}.html"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/data/airflow/")
    assert QualityPage().get_link(task, ti_key=None) == f"/data/airflow/quality/calls/{page}.html"
