"""The dashboard for Grafana: nothing in it that Grafana's schema does not know, and the rules of Grafana's linter. Prometheus answers its
expressions in test_dashboard_in_prometheus.py.
"""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.helpers.timeline import ROOT

DASHBOARD = json.loads((ROOT / "docs" / "examples" / "grafana" / "event-pairing.json").read_text())
PANELS = DASHBOARD["panels"]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def unknown(ours, theirs, at=""):
    """The places of what we wrote and the schema's own classes do not give back."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [place for key, value in ours.items() for place in unknown(value, theirs.get(key), f"{at}/{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            place for number, pair in enumerate(zip(ours, theirs, strict=True)) for place in unknown(*pair, f"{at}/{number}")
        ]
    return [] if ours == theirs else [at]


def test_grafanas_schema_knows_all_of_it():
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert unknown(DASHBOARD, read) == []
    assert unknown({"panels": [{"tpye": 1}]}, {"panels": [{"type": 1}]}) == ["/panels/0/tpye"]


def test_data_source_and_pipeline_are_variables():
    source, pipeline = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (pipeline["name"], pipeline["datasource"], pipeline["multi"], pipeline["allValue"]) == (
        "pipeline",
        SOURCE,
        True,
        ".+",
    )


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_a_panel_keeps_the_rules_of_the_linter(panel):
    assert panel["title"] and panel["description"].endswith(".") and panel["datasource"] == SOURCE
    assert panel["fieldConfig"]["defaults"]["unit"] and [each["datasource"] for each in panel["targets"]] == [SOURCE] * len(
        panel["targets"]
    )
    for target in panel["targets"]:
        expression = target["expr"]
        # Every selector is of the chosen pipelines, but for the parts, which are of all of them.
        selectors = re.findall(r"event_pairing_\w+(\{[^}]*\})?", expression)
        assert (
            selectors and all('pipeline=~"$pipeline"' in each for each in selectors)
        ) or "event_pairing_part_up" in expression
        assert "rate(" not in expression or "[$__rate_interval]" in expression
        assert target["legendFormat"] or panel["type"] == "table"


def test_panels_lie_beside_each_other():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in PANELS) == 24
