"""The page over all pipelines: the worst first, servers above, what nobody has reported said so."""

from __future__ import annotations

import re

import pytest

from include.airflow import overview
from include.airflow.parts import Part
from include.config.health import write_state
from tests.helpers.pages import pages_in
from tests.helpers.states import BROKEN, SILENT, TAKEN, made_up_state

PARTS = [Part("scheduler", True, "lives"), Part("DAG processor", False, "last heartbeat 2026-01-31 11:00 UTC")]


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "parts", lambda: PARTS)
    monkeypatch.setattr(overview, "paused", lambda _: set())
    made = {"a": (), "b": (SILENT,), "c": (BROKEN,), "d": (TAKEN,), "new": None}
    for name, problems in made.items():
        (tmp_path / name).mkdir()
        if problems is not None:
            write_state(pages_in(tmp_path / name), made_up_state(7, *problems, pipeline=name))
    return lambda name: pages_in(tmp_path / name)


def test_the_worst_comes_first(places):
    page = overview.overview(["a", "b", "c", "d", "new"], places)
    assert "<h1>All pipelines: 1 failed, 1 with a warning, 1 not reported yet, 2 healthy</h1>" in page
    assert re.findall(r'href="#health-(\w+)"', page) == re.findall(r'<h2 class="verdict" id="health-(\w+)"', page) == [
        "c", "b", "new", "a", "d",
    ]  # fmt: skip
    assert re.findall("<script[^>]*>", page) == ['<script src="-/theme.js">'] and not re.findall("<style| style=", page)
    assert 'href="c/index.html">report of the newest batch' in page and "new is not reported yet" in page


def test_servers_come_first(places):
    page = overview.overview(["a"], places)
    assert page.index("last heartbeat 2026-01-31 11:00 UTC") < page.index("a is healthy") and "<nav" not in page
    assert '<details class="servers" open><summary><h2>Servers: 1 of 2 down</h2>' in page


def test_servers_are_folded_while_all_answer(places, monkeypatch):
    monkeypatch.setattr(overview, "parts", lambda: PARTS[:1])
    page = overview.overview(["a"], places)
    assert '<details class="servers"><summary><h2>Servers: all 1 answer</h2>' in page and "scheduler" in page


def test_whoever_may_read_nothing_sees_no_name(places):
    page = overview.overview([], places)
    assert "none that you may read" in page and "health-" not in page
