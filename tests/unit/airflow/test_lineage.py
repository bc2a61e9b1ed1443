"""The datasets of OpenLineage's events, by what a job left of itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.naming.dataset import ABFSS, GCS, S3, Kafka, LocalFileSystem
from openlineage.client.serde import Serde

from include.airflow.lineage import cluster_of, inputs_of, outputs_of, place_of, run_facets_of, with_parent
from include.local.machine import ROOT, project_environment
from tests.helpers.lineage_rules import wrong_by_classes, wrong_by_schemas

RUN = "01941f29-7c00-7087-8940-40e5bc36f1e5"
TABLE, TOPIC = "/lake/calls/compound_events", {"topic": "out", "servers": "b1:9093,b2", "version": None, "rows": None}
CHECK = {"metric": "orphan_ratio", "least": 0, "most": 0.5, "severity": "warning", "sentence": "…", "batch": 7}
OUTCOME = {
    "lineage": {
        "batches": "6 to 7",
        "kind": "live",
        "inputs": [{"table": TABLE, "version": 3, "rows": 12, "columns": [["pair_id", "string"], ["ts", "bigint"]]}],
        "outputs": [TOPIC | {"version": "0:4", "rows": 0}, TOPIC | {"topic": "others"}],
    },
    "checks": [
        CHECK | {"passed": False, "observed": 0.75},
        CHECK | {"passed": False, "observed": None, "severity": "critical"},
    ],
}


def sent(outcome):
    """The event of a task with this outcome, as it is sent."""
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime="2026-01-01T00:00:00Z",
        run=Run(RUN, run_facets_of(outcome)),
        job=Job("default", "calls.report_quality"),
        inputs=inputs_of(outcome),
        outputs=outputs_of(outcome),
    )
    return json.loads(Serde.to_json(event))


def without_addresses(facets):
    return {name: {key: each[key] for key in each if key[0] != "_"} for name, each in facets.items()}


def test_what_a_task_read_and_wrote_is_in_its_event(monkeypatch):
    monkeypatch.delenv("PAIRING_STORE", raising=False)
    event = sent(OUTCOME)
    assert wrong_by_classes(event) == []
    (compounds,), (output, others) = event["inputs"], event["outputs"]
    assert (compounds["namespace"], compounds["name"]) == ("file", TABLE)
    assert (output["namespace"], output["name"]) == ("kafka://b1:9093", "out")
    fields = [{"name": "pair_id", "type": "string", "fields": []}, {"name": "ts", "type": "bigint", "fields": []}]
    assert without_addresses(compounds["facets"]) == {
        "version": {"datasetVersion": "3"},
        "schema": {"fields": fields},
        "storage": {"storageLayer": "delta", "fileFormat": "parquet"},
    }
    assert compounds["inputFacets"]["inputStatistics"]["rowCount"] == 12
    failed, unseen = compounds["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (failed["assertion"], failed["success"], failed["severity"]) == ("orphan_ratio", False, "warn")
    assert (failed["expected"], failed["actual"], failed["name"]) == ("0 to 0.5", "0.75", "batch 7: orphan_ratio")
    assert unseen["severity"] == "error" and "actual" not in unseen
    # Nothing written is not the same as not known.
    assert without_addresses(output["outputFacets"]) == {"outputStatistics": {"rowCount": 0}}
    assert without_addresses(output["facets"]) == {"version": {"datasetVersion": "0:4"}}
    assert not others.get("facets") and not others.get("outputFacets")
    tags = {tag["key"]: tag["value"] for tag in event["run"]["facets"]["tags"]["tags"]}
    assert tags == {"batches": "6 to 7", "kind": "live"}


@pytest.mark.long
def test_it_fits_openlineage_s_schemas(monkeypatch):
    monkeypatch.delenv("PAIRING_STORE", raising=False)
    assert wrong_by_schemas(sent(OUTCOME)) == []


@pytest.mark.parametrize("outcome", [{}, {"error": "…", "retry": True}, {"lineage": {}}])
def test_a_job_that_left_nothing_adds_nothing(outcome):
    event = sent(outcome)
    assert (event["inputs"], event["outputs"], event["run"].get("facets") or {}) == ([], [], {})
    assert wrong_by_classes(event) == []


@pytest.mark.parametrize(
    ("uri", "account", "rule"),
    [
        ("/lake/calls/raw_a", None, LocalFileSystem("/lake/calls/raw_a")),
        ("s3://lake/x/calls/raw_a", None, S3("lake", "x/calls/raw_a")),
        ("gs://lake/calls/raw_a", None, GCS("lake", "calls/raw_a")),
        ("abfss://lake@acme.dfs.core.windows.net/calls/raw_a", None, ABFSS("lake", "acme", "calls/raw_a")),
        ("az://lake/calls/raw_a", "acme", ABFSS("lake", "acme", "calls/raw_a")),
    ],
)
def test_tables_are_named_by_openlineage_s_rules(uri, account, rule):
    assert place_of(uri, account) == (rule.get_namespace(), rule.get_name())


def test_a_container_of_no_known_account_keeps_its_name():
    assert place_of("az://lake/calls/raw_a") == ("az://lake", "calls/raw_a")


def test_topics_are_named_by_openlineage_s_rules():
    assert cluster_of("b1:9093,b2") == Kafka("b1", "9093", "t").get_namespace()


def test_without_lineage_a_run_has_no_parent():
    asked = {"window_start": "a"}
    assert with_parent(asked, None) is asked


def test_the_rules_find_what_is_wrong():
    event = sent(OUTCOME)
    event["inputs"][0]["facets"]["version"]["datasetVersion"] = 3
    event["inputs"][0]["facets"]["storage"].pop("storageLayer")
    event["outputs"][0]["outputFacets"]["outputStatistics"]["rows"] = 3
    event["outputs"][1].pop("name")
    event["run"]["facets"]["tags"].pop("_producer")
    assert sorted(line.partition(" which")[0].partition(",")[0] for line in wrong_by_classes(event)) == [
        "event.inputs[0].facets.storage has no storageLayer",
        "event.inputs[0].facets.version.datasetVersion is 3",
        "event.outputs[0].outputFacets.outputStatistics has rows",
        "event.outputs[1] has no name",
        "event.run.facets.tags has no _producer",
    ]


@pytest.mark.long
def test_a_task_without_lineage_imports_nothing_of_it(tmp_path):
    code = "import sys, include.airflow.operators, plugins.event_pairing; print('openlineage' in sys.modules)"
    environment = project_environment() | {"AIRFLOW_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
