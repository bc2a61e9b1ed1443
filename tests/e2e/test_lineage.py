"""A real Airflow tells a collector, over HTTP and in a file, what each task read and wrote; the collector judges each event by OpenLineage's rules."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from include.local.broker import create_topics
from include.local.packages_beside import packages_beside
from include.local.process import free_port
from include.local.spark import LocalSpark
from tests.helpers.alert_listener import listening
from tests.helpers.copied_project import AirflowOf, copied
from tests.helpers.job_processes import wait_for
from tests.helpers.lineage_rules import facets_of, wrong_by_classes, wrong_by_schemas
from tests.helpers.reading import consume

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SHOP = """
left:   {topic: [eu.orders, us.orders], payload: items}
right:  {topic: payments, payload: amount}
output: {topic: paid, orphans_topic: unpaid, rejected_topic: refused}
key: [order]
timestamp: at
tolerance: 1s
gap: 1s
grace: 1s
late: replay
schedule: null
"""
# From then on an orphan makes the report fail.
STRICT = "quality: {max_orphan_ratio: 0, severities: {orphan_ratio: fail}}\n"
TOPICS = {"eu.orders", "us.orders", "payments"}


class Shop:
    """The pipeline, its traffic, and what the collector has heard."""

    def __init__(self, airflow, broker, folder, heard):
        self.airflow, self.broker, self.folder, self.heard = airflow, broker, folder, heard
        self.client, self.runs = airflow.client(), dict[str, str]()
        self.producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send(self, topic, order, at):
        payload = "amount" if topic == "payments" else "items"
        value = json.dumps({"order": order, "at": at, payload: 1}) if order else "no JSON"
        self.producer.produce(topic, value, timestamp=at)
        assert self.producer.flush(20) == 0

    def run(self, name, wanted):
        run = self.runs[name] = self.client.trigger("shop")
        assert self.client.wait_for_run("shop", run, 300) == wanted

    def events(self, job, kind="COMPLETE"):
        return [each for each in self.heard if each["job"]["name"] == job and each["eventType"] == kind]

    def event(self, job, run="first", kind="COMPLETE"):
        (found,) = [each for each in self.events(job, kind) if said_of(each)["dagRun"]["run_id"] == self.runs[run]]
        return found


def said_of(event):
    """What Airflow's provider says of the run."""
    facets = event["run"]["facets"]
    return facets.get("airflow") or facets["airflowDagRun"]


def places(datasets):
    return {each["name"]: each for each in datasets}


def table(datasets, name):
    (found,) = [each for each in datasets if each["name"].endswith(f"/shop/{name}")]
    return found


def rows(dataset):
    facets = dataset.get("inputFacets", {}) | dataset.get("outputFacets", {})
    return (facets.get("inputStatistics") or facets["outputStatistics"])["rowCount"]


@pytest.fixture(scope="module")
def shop(broker, tmp_path_factory):
    """After a run, one with late events and their replay, and one whose report failed."""
    folder = tmp_path_factory.mktemp("lineage")
    project = copied(folder / "project")
    (project / "include/pipelines/calls.yaml").unlink()
    file = project / "include/pipelines/shop.yaml"
    file.write_text(SHOP)
    create_topics(broker.bootstrap, dict.fromkeys([*TOPICS, "paid", "unpaid", "refused"], 2), {"retention.ms": "-1"})
    spark = LocalSpark(folder / "spark", free_port())
    places = folder / "airflow", free_port(), broker.bootstrap, str(folder / "tables")
    airflow = AirflowOf(project, "", *places, spark=spark.url)
    with listening() as (address, heard):
        transports = [
            {"type": "file", "log_file_path": str(folder / "events.jsonl"), "append": True},
            {"type": "http", "url": address.removesuffix("/hook"), "endpoint": "hook"},
        ]
        airflow.more["PYTHONPATH"] += f":{packages_beside('lineage')}"
        airflow.more["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps({"type": "composite", "transports": transports})
        with spark, airflow:
            made = Shop(airflow, broker, folder, heard)
            made.client.wait_for_dag("shop", 120)
            made.client.wait_for_dag("shop_replay", 60)
            for dag in ("shop", "shop_replay"):
                made.client.pause(dag, False)
            at = time.time_ns() // 1_000_000 - 600_000
            for topic in ("eu.orders", "payments"):
                made.send(topic, "pair", at)
            made.send("us.orders", "orphan", at)
            made.send("us.orders", None, at)
            made.run("first", "success")
            for topic in ("us.orders", "payments"):
                made.send(topic, "late", at + 60_000)
            made.run("late", "success")
            wait_for(lambda: made.events("shop_replay"), "the replay of the late events", 180, every_s=1)
            file.write_text(SHOP + STRICT)
            made.send("eu.orders", "alone", time.time_ns() // 1_000_000)
            time.sleep(4)
            made.run("strict", "failed")
            wait_for(lambda: made.events("shop", "FAIL"), "the event of the failed run", 60, every_s=1)
            yield made


def test_every_event_is_as_openlineage_wants_it(shop):
    assert len(shop.heard) > 30
    assert {line for event in shop.heard for line in wrong_by_classes(event)} == set()


def test_every_event_fits_openlineage_s_schemas(shop):
    names = {facet["_schemaURL"].rpartition("/")[2] for event in shop.heard for facet in facets_of(event)}
    assert names > {
        "SchemaDatasetFacet",
        "DatasetVersionDatasetFacet",
        "DataQualityAssertionsDatasetFacet",
        "ParentRunFacet",
    }
    assert {line for event in shop.heard for line in wrong_by_schemas(event)} == set()


def test_the_file_has_the_same_events(shop):
    lines = [json.loads(line) for line in (shop.folder / "events.jsonl").read_text().splitlines()]
    assert sorted(map(json.dumps, lines)) == sorted(map(json.dumps, shop.heard))


def test_the_way_of_the_first_events_leads_from_topic_to_topic(shop):
    cluster, tables = f"kafka://{shop.broker.bootstrap}", f"{shop.folder}/tables/shop"
    land, pair, publish, report = (
        shop.event(f"shop.{job}") for job in ("land_events", "pair_events", "publish_compounds", "report_quality")
    )
    assert {(each["namespace"], each["name"]) for each in land["inputs"]} == {(cluster, topic) for topic in TOPICS}
    assert {(each["namespace"], each["name"]) for each in land["outputs"]} == {
        ("file", f"{tables}/{name}") for name in ("raw_items", "raw_amount")
    }
    assert {each["name"] for each in land["outputs"]} < {each["name"] for each in pair["inputs"]}
    assert table(pair["outputs"], "compound_events")["name"] == table(publish["inputs"], "compound_events")["name"]
    assert {(each["namespace"], each["name"]) for each in publish["outputs"]} == {
        (cluster, topic) for topic in ("paid", "unpaid", "refused")
    }
    assert {each["name"] for each in report["inputs"]} > TOPICS | {"paid", "unpaid", "refused"}
    assert [each["name"] for each in report["outputs"]] == [f"{tables}/quality_metrics"]


def test_rows_and_versions_are_those_of_the_tables_and_topics(shop):
    land, pair, publish = (shop.event(f"shop.{job}") for job in ("land_events", "pair_events", "publish_compounds"))
    written = {each["name"]: each for event in (land, pair) for each in event["outputs"]}
    counted = {}
    for name, dataset in written.items():
        at = DeltaTable(name, version=int(dataset["facets"]["version"]["datasetVersion"]))
        assert rows(dataset) == at.to_pyarrow_dataset().count_rows(), name
        assert [field["name"] for field in dataset["facets"]["schema"]["fields"]] == at.schema().to_arrow().names
        counted[name.rpartition("/")[2]] = rows(dataset)
    assert counted == {"raw_items": 3, "raw_amount": 1, "compound_events": 2, "rejected_events": 1, "open_events": 0}
    inputs = places(land["inputs"])
    assert rows(inputs["payments"]) == 1
    ends = {topic: inputs[topic]["facets"]["version"]["datasetVersion"] for topic in TOPICS}
    assert {topic: sum(int(part.partition(":")[2]) for part in end.split(",")) for topic, end in ends.items()} == {
        "eu.orders": 1,
        "us.orders": 2,
        "payments": 1,
    }
    assert {name: rows(each) for name, each in places(publish["outputs"]).items()} == {"paid": 1, "unpaid": 1, "refused": 1}
    fields = places(publish["outputs"])["paid"]["facets"]["schema"]["fields"]
    first = consume(shop.broker.bootstrap, "paid")[0]
    assert [field["name"] for field in fields] == list(first["value"])


def test_a_task_names_its_run_and_a_replay_the_task_that_started_it(shop):
    task, (dag,) = shop.event("shop.land_events"), [shop.event("shop", kind="START")]
    assert task["run"]["facets"]["parent"]["run"]["runId"] == dag["run"]["runId"]
    assert {event["eventType"] for event in shop.heard if event["run"]["runId"] == task["run"]["runId"]} == {
        "START",
        "COMPLETE",
    }
    replay, starter = shop.events("shop_replay.replay_interval")[0], shop.event("shop.replay_late", "late")
    (begun,) = shop.events("shop_replay", "START")
    parent = replay["run"]["facets"]["parent"]
    assert parent["run"]["runId"] == begun["run"]["runId"]
    assert begun["run"]["facets"]["parent"]["run"]["runId"] == starter["run"]["runId"]
    assert parent["root"]["run"]["runId"] == shop.event("shop", "late", "START")["run"]["runId"]
    tags = {tag["key"]: tag["value"] for tag in replay["run"]["facets"]["tags"]["tags"]}
    assert tags["kind"] == "replay" and " to " in tags["interval"]
    assert rows(table(replay["outputs"], "compound_events")) == 1
    (run,) = shop.client.runs("shop_replay")
    assert "openlineage" in run["conf"] and "openlineage" not in (run["note"] or "")


def test_a_failed_report_says_which_check_failed(shop):
    event = shop.event("shop.report_quality", "strict", "FAIL")
    assert "one-sided" in event["run"]["facets"]["errorMessage"]["message"]
    facet = table(event["inputs"], "compound_events")["inputFacets"]["dataQualityAssertions"]
    failed = [each for each in facet["assertions"] if not each["success"] and each["severity"] == "error"]
    assert [(each["assertion"], each["expected"], each["actual"]) for each in failed] == [("orphan_ratio", "0 to 0", "1")]
    passed = table(shop.event("shop.report_quality")["inputs"], "compound_events")["inputFacets"]["dataQualityAssertions"]
    assert len(passed["assertions"]) > 10 and all(each["success"] for each in passed["assertions"])
