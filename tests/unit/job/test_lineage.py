"""What a job's outcome says of what it read and wrote."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from spark_jobs.job import lineage as module
from spark_jobs.job.lineage import lineage
from spark_jobs.tables import ledger
from spark_jobs.tables.ledger_rows import (
    LANDED,
    PAIRED,
    PLANNED,
    PUBLISHED,
    PUBLISHED_ORPHANS,
    PUBLISHED_REJECTED,
    OffsetRange,
)
from spark_jobs.tables.records import REPLAY, Window
from spark_jobs.tables.schemas import declared_columns
from spark_jobs.tables.tables import Tables
from tests.helpers.ledger_rows import ledger_row, output_state
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.test_docs import section, table_rows

PIPELINE = replace(CALLS, output_orphans_topic="alone", output_rejected_topic="refused")
OFFSETS = (
    OffsetRange("analyticsTopic", 0, 3, 10, 10),
    OffsetRange("analyticsTopic", 1, 0, 2, 9),
    OffsetRange("metricsTopic", 0, 0, 5, 5),
)
VERSIONS = {"raw_analytics": 4, "raw_metrics": 3, "compound_events": 7, "rejected_events": 2, "open_events": 6}


@pytest.fixture
def said(monkeypatch, tmp_path):
    """said(job, *steps): what a job says that has recorded these."""
    monkeypatch.setenv("PAIRING_KAFKA", json.dumps({"bootstrap.servers": "b1:9,b2:9"}))

    def of(job, *steps, pipeline=PIPELINE):
        monkeypatch.setattr(ledger, "_recorded", list(steps))
        return lineage(job, Tables(str(tmp_path), pipeline))

    return of


def name(dataset):
    return dataset.get("topic") or dataset["table"].rpartition("/")[2]


def shown(datasets):
    return {name(each): (each["version"], each["rows"]) for each in datasets}


def row(step, batch_id=5, **named):
    return ledger_row(batch_id, step, pipeline=PIPELINE, offsets=OFFSETS, versions=VERSIONS, **named)


def test_landing_leads_from_topics_to_raw_tables(said):
    found = said("land_events", row(PLANNED), row(LANDED, landed_left=8, landed_right=5))
    assert {each: found[each] for each in ("batches", "kind")} == {"batches": "5", "kind": "live"}
    assert shown(found["inputs"]) == {"analyticsTopic": ("0:10,1:2", 8), "metricsTopic": ("0:5", 5)}
    assert shown(found["outputs"]) == {"raw_analytics": (4, 8), "raw_metrics": (3, 5)}
    assert found["inputs"][0]["servers"] == "b1:9,b2:9"
    assert found["outputs"][0]["columns"][:3] == [("topic", "STRING"), ("partition", "INT"), ("offset", "BIGINT")]


def test_of_several_topics_a_side_the_records_are_not_counted(said):
    several = replace(PIPELINE, left=replace(PIPELINE.left, topic=None, topic_pattern="analytics.*"))
    found = said("land_events", row(LANDED, landed_left=8, landed_right=5), pipeline=several)
    assert shown(found["inputs"]) == {"analyticsTopic": ("0:10,1:2", None), "metricsTopic": ("0:5", 5)}
    assert shown(found["outputs"])["raw_analytics"] == (4, 8)


def test_pairing_reads_open_events_at_another_version_than_it_leaves(said):
    found = said("pair_events", row(PAIRED, open_before=2, compounds=3, rejected=1, open_after=4))
    assert shown(found["inputs"]) == {"raw_analytics": (4, None), "raw_metrics": (3, None), "open_events": (None, 2)}
    assert shown(found["outputs"]) == {"compound_events": (7, 3), "rejected_events": (2, 1), "open_events": (6, 4)}


def test_a_landing_that_finished_a_batch_has_written_its_tables_too(said):
    done = row(PAIRED, 4, compounds=3, rejected=0, open_after=0), row(LANDED, landed_left=8, landed_right=5)
    found = said("land_events", *done)
    assert found["batches"] == "4 to 5"
    assert [*shown(found["outputs"])] == [
        "raw_analytics",
        "raw_metrics",
        "compound_events",
        "rejected_events",
        "open_events",
    ]


def test_publishing_leads_to_every_topic_of_the_output(said):
    sent = {PUBLISHED: 6, PUBLISHED_ORPHANS: 2}
    steps = [row(step, compounds=n, output=output_state(ends={1: 9, 0: 7})) for step, n in sent.items()]
    steps.append(row(PUBLISHED, 6, compounds=1, output=output_state(ends={0: 8, 1: 9})))
    found = said("publish_compounds", *steps, row(PUBLISHED_REJECTED, dead_letters=3, output=output_state(ends={0: 3})))
    assert found["batches"] == "5 to 6"
    assert shown(found["inputs"]) == {"compound_events": (7, 9), "rejected_events": (2, 3)}
    assert shown(found["outputs"]) == {"outputTopic": ("0:8,1:9", 7), "alone": ("0:7,1:9", 2), "refused": ("0:3", 3)}
    fields = {name(each): [field for field, _ in each["columns"]] for each in found["outputs"]}
    assert fields == {
        "outputTopic": ["user1", "user2", "ts", "analytics", "metrics"],
        "alone": fields["alone"],
        "refused": [],
    }


def test_a_replay_names_its_interval(said):
    window = Window(1_767_225_600_000, 1_767_229_200_000)
    found = said("replay_interval", row(PAIRED, kind=REPLAY, window=window, compounds=2))
    assert (found["kind"], found["interval"]) == ("replay", str(window))
    assert shown(found["outputs"]) == {"compound_events": (7, 2)}


@pytest.mark.parametrize("job", module._JOBS)
def test_a_job_that_had_nothing_to_do_still_says_what_it_is_about(job, said):
    found = said(job)
    assert found.keys() == {"inputs", "outputs"}
    assert set(map(str, shown([*found["inputs"], *found["outputs"]]).values())) == {"(None, None)"}


def test_a_column_of_several_parts_is_one():
    columns = dict(declared_columns(PIPELINE, "raw_analytics"))
    assert columns["headers"] == "ARRAY<STRUCT<`key`: STRING, value: BINARY>>"
    assert list(columns)[-2:] == ["problem", "batch_id"] and "user1" in columns


def test_maintenance_names_no_version_that_it_has_changed(said):
    found = said("maintain_tables", row("removed_raw", removed=3))
    assert found.keys() == {"inputs", "outputs"}
    assert shown(found["outputs"])["raw_analytics"] == (None, None)


def test_every_task_is_there_and_in_the_documents():
    code = [*(ROOT / "dags").glob("*.py"), ROOT / "include/airflow/operators.py"]
    tasks = {name for path in code for name in re.findall(r'job="(\w+)"', path.read_text())}
    rows = table_rows(section(ROOT / "docs/lineage.md", "## What the events say"))
    described = [cells[0].strip("`") for cells in rows][: len(module._JOBS)]
    assert set(described) == set(module._JOBS) == tasks


def test_a_command_that_is_no_task_says_nothing(said):
    assert said("rewind", row(PAIRED)) == {}
