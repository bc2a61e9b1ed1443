"""Erasure: nothing names the erased any more, every count stays true, and the pipeline goes on; whatever kills it, the next run completes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from include.config.store import read_bytes, warehouse_store
from spark_jobs import reconcile, replay_interval, report_quality, rewind
from spark_jobs.corrections import erasure, erasure_end
from spark_jobs.corrections.erasure import erase, preview
from spark_jobs.corrections.erasure_search import person
from spark_jobs.faults.fault_points import FAULT_POINTS
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PUBLISHED, PUBLISHED_ORPHANS, PUBLISHED_REJECTED
from spark_jobs.tables.records import Window
from spark_jobs.tables.table_format import MARK
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers import stream_clock
from tests.helpers.all_stages import run_all
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.reading import consume, table_rows
from tests.helpers.stores import root_on, table_of, texts_in
from tests.helpers.stream_clock import consumed, killed_at

pytestmark = pytest.mark.integration

pipeline, begun = stream_clock.pipeline, stream_clock.begun
ANN, BOB = "Annabell", "Bobadillä"
TABLES = ("raw_analytics", "raw_metrics", "open_events", "rejected_events", "compound_events", "quality_metrics")


@pytest.fixture
def send(broker, pipeline, begun):
    """send("a0:x m50:ann a:"): left at 0 of users x and y, right at 50 ms of Annabell and Bobadillä, and a left one of theirs that is no JSON."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})

    def send_words(words):
        for word in words.split():
            side = pipeline.left if word[0] == "a" else pipeline.right
            at, _, user = word[1:].partition(":")
            users = (ANN, BOB) if user in ("ann", "") else (user, "y")
            body = {
                "user1": users[0],
                "user2": users[1],
                "timestamp": begun + int(at or 0),
                side.payload: f"{word} of {users[0]}",
            }
            value = json.dumps(body)
            producer.produce(side.topic, value=value if at else value[:-1], key="-".join(users), headers={"who": users[0]})
            assert producer.flush(20) == 0

    return send_words


def two_batches(warehouse, send):
    """With pairs, orphans, duplicates, late, malformed and open events of Annabell and Bobadillä, and of others."""
    send("a0:ann m50:ann a1000:ann a1000:ann m1400:ann a0:x m50:x a1000:x a: a2000:tick m2000:tick")
    run_all(warehouse)
    send("a100:ann m100:x a3000:ann m3050:ann a3940:ann m3950:x a4000:tick m4000:tick")
    run_all(warehouse)
    return warehouse


@pytest.fixture
def traffic(warehouse, send):
    return two_batches(warehouse, send)


def them(warehouse):
    return person(warehouse.pipeline, [ANN, BOB])


def texts(warehouse) -> Iterator[tuple[str, str]]:
    """Everything at the warehouse as text, Parquet with all its rows and statistics."""
    store = warehouse_store(warehouse.root).at(warehouse.pipeline.name)
    for name in sorted(file["path"] for file in obstore.list(store.client).collect()):
        content = read_bytes(store, name)
        if name.endswith(".parquet"):
            file = pq.ParquetFile(pa.BufferReader(content))
            yield name, f"{file.metadata.to_dict()}{[*map(readable, file.read().to_pylist())]}"
        else:
            yield name, content.decode()


def readable(row):
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()}


def naming(warehouse) -> list[str]:
    """The files that name one of them."""
    signs = (ANN, BOB, json.dumps(BOB)[1:-1], json.dumps(json.dumps(BOB)[1:-1])[1:-1])
    return [name for name, text in texts(warehouse) if any(sign in text for sign in signs)]


def states(warehouse) -> dict[str, int]:
    return {table: len(table_rows(warehouse, table)) for table in TABLES}


def check_erased(warehouse, batch_id):
    """Nothing names them, everything adds up, and the certificate says the same as the tables."""
    assert naming(warehouse) == []
    assert reconcile.main(warehouse).offenders == []
    kept = texts_in(warehouse_store(warehouse.root).at(warehouse.pipeline.name, "erasures"))
    assert [*kept] == [f"certificate-{batch_id}.json"]
    return json.loads(kept[f"certificate-{batch_id}.json"])


@pytest.mark.long
def test_an_erased_pair_is_named_nowhere_and_every_count_stays(traffic, broker, send, begun, capsys):
    warehouse = traffic
    before, messages = states(warehouse), consumed(warehouse, broker)
    assert len(naming(warehouse)) > 8
    assert preview(warehouse, person(warehouse.pipeline, ["Nobody", "Here"])).endswith("has nothing that names this key")
    assert preview(warehouse, them(warehouse)).splitlines()[-1] == "nothing was changed; --yes erases it"

    counts = erase(warehouse, them(warehouse), asked_by="a clerk")
    assert counts == {
        "batch_id": 3,
        **{"raw_left": 7, "raw_right": 3, "open_events": 1, "rejected_events": 3, "compound_events": 8},
        **{"quality_metrics": 2, "pages": 2, "tombstones": 4, "files": counts["files"]},
    }
    certificate = check_erased(warehouse, 3)
    assert certificate["asked_by"] == "a clerk" and certificate["fields"] == ["user1", "user2"]
    assert {name: each["rows"] for name, each in certificate["tables"].items()} == dict(
        zip(TABLES, (7, 3, 1, 3, 8, 2), strict=True)
    )
    assert certificate["tables"]["raw_analytics"]["rows_by_batch"] == {"1": 4, "2": 3}
    # Emptied rows stay; the open events are gone, and the outbox has the retractions.
    left = {**before, "open_events": before["open_events"] - 1, "compound_events": before["compound_events"] + 4}
    assert states(warehouse) == left | {"quality_metrics": before["quality_metrics"] + 1}
    # Consumers were told, at the places that the certificate names.
    gone = {pair_id for pair_id, (_, value) in messages.items() if ANN in value}
    assert consumed(warehouse, broker) == {pair_id: each for pair_id, each in messages.items() if pair_id not in gone}
    assert {each["pair_id"] for each in certificate["tombstones"]} == gone and len(gone) == 4
    null_values = [message for message in consume(broker.bootstrap, warehouse.pipeline.output_topic) if not message["value"]]
    assert {message["pair-id"] for message in null_values} == gone
    assert MARK.items() <= table_of(warehouse.root, warehouse.pipeline, "batch_ledger").metadata().configuration.items()

    with pytest.raises(NeedsOperator, match="batch 3 has erased rows of batch 2 or of batches before it"):
        rewind.main(warehouse, 2)
    assert erase(warehouse, them(warehouse)) == {}
    capsys.readouterr()
    assert report_quality.main(warehouse, again=True) == {}
    assert "batch 3 is a completed erasure, which cannot be counted again" in capsys.readouterr().out
    # The pipeline goes on: another's open event is paired, and what comes of theirs again is landed as new.
    send("a3960:x a6000:ann a7000:tick m7000:tick")
    assert run_all(warehouse)["pair"] == 2
    replayed = replay_interval.main(warehouse, Window(begun - 1_000, begun + 3_000))
    assert (replayed["new"], replayed["changed"], replayed["retracted"]) == (1, 0, 0)
    assert reconcile.main(warehouse).offenders == []
    assert naming(warehouse) != []
    rewind.main(warehouse, 3)
    run_all(warehouse)
    assert reconcile.main(warehouse).offenders == []


# In the order in which the command passes them.
STEPS = (
    *("pages_erased", "erasure_listed", "planned"),
    *("compound_events", "raw_left", "raw_right", "rejected_events", "open_events", "paired"),
    *("publishing", "published", "quality_metrics", "reported"),
    *("erased_compound_events", "erased_quality_metrics", "erased_files", "certificate", "erased"),
)
POINTS = [f"{moment}_{step}" for step in STEPS for moment in ("before", "after")]


def test_every_point_of_an_erasure_is_killed_at():
    assert set(FAULT_POINTS["erase_key"]) <= set(POINTS)


@pytest.mark.long
def test_killed_at_every_step_the_next_try_completes_it(traffic, broker, monkeypatch):
    before, messages = states(traffic), consumed(traffic, broker)
    for point in POINTS:
        with killed_at(monkeypatch, point):
            erase(traffic, them(traffic))
        # Whatever is done by then, nothing is lost and nothing is there twice.
        if point.startswith("after"):
            assert reconcile.main(traffic).offenders == [], point
    assert erase(traffic, them(traffic)) == {}
    certificate = check_erased(traffic, 3)
    assert [row.batch_id for row in Ledger(traffic).rows(1) if row.step == "planned"] == [1, 2, 3]
    assert states(traffic)["compound_events"] == before["compound_events"] + 4
    assert len(certificate["tombstones"]) == 4 == len(messages) - len(consumed(traffic, broker))


@pytest.mark.long
@pytest.mark.parametrize("point", ["after_planned", "after_paired", "after_erased_files", "after_certificate"])
def test_killed_it_is_completed_by_the_dag_which_knows_no_name(point, traffic, send, monkeypatch):
    with killed_at(monkeypatch, point):
        erase(traffic, them(traffic))
    kept = warehouse_store(traffic.root).at(traffic.pipeline.name, "erasures")
    first = texts_in(kept).get("certificate-3.json") if point == "after_certificate" else None
    assert naming(traffic) != [] or point in ("after_erased_files", "after_certificate")
    assert bool(first) == (point == "after_certificate")
    send("m3960:x a7000:tick m7000:tick")
    run_all(traffic)
    certificate = check_erased(traffic, 3)
    # What the first try deleted is not forgotten.
    assert not first or certificate["files_deleted"] == json.loads(first)["files_deleted"] > 0


def test_the_certificate_names_what_no_tombstone_reaches(warehouse):
    topics = {"output_orphans_topic": "former", "output_rejected_topic": "dead"}
    ledger, settings = Ledger(warehouse), replace(warehouse.pipeline, **topics)
    assert erasure_end.dead_letters_text(ledger) == []
    for batch_id, partitions in ((1, 2), (2, 3)):
        beside = [ledger_row(batch_id, step, pipeline=settings) for step in (PUBLISHED_REJECTED, PUBLISHED_ORPHANS)]
        ledger.append(*beside, ledger_row(batch_id, PUBLISHED, pipeline=settings, partitions=partitions))
    (text,) = erasure_end.dead_letters_text(ledger)
    assert text.startswith(
        "copies of rejected records on dead: no tombstone takes them away, so wait for the topic's retention"
    )
    said = list(erasure_end._beyond_tombstones(warehouse, ledger))
    assert [text.split(":")[0] for text in said] == sorted(
        [
            "messages on former, which the settings no longer name",
            f"messages on {warehouse.pipeline.output_topic} from when it had 2 partitions rather than 3",
        ]
    )


@pytest.mark.long
def test_on_a_store_as_in_a_folder(s3, spark, pipeline, send, monkeypatch):
    warehouse = two_batches(Warehouse(root_on(s3, "erased", monkeypatch), pipeline, spark), send)
    assert len(naming(warehouse)) > 8
    counts = erase(warehouse, person(pipeline, [ANN]))
    assert (counts["raw_left"], counts["open_events"], counts["tombstones"]) == (7, 1, 4)
    erase(warehouse, person(pipeline, [BOB]))
    assert naming(warehouse) == []
    assert reconcile.main(warehouse).offenders == []


@pytest.mark.long
def test_two_erasures_of_one_number_are_one(traffic, monkeypatch):
    """The other one is faster, between the list and the plan: its own is not taken for ours."""
    first = erasure.write_list

    def overtaken(warehouse, planned, chosen):
        first(warehouse, planned, chosen)
        monkeypatch.setattr(erasure, "write_list", first)
        erase(warehouse, person(warehouse.pipeline, ["x", "y"]))

    monkeypatch.setattr(erasure, "write_list", overtaken)
    with pytest.raises(
        JobProblem, match="batch 3 was planned by another job meanwhile, nothing was changed: run this again"
    ):
        erase(traffic, them(traffic))
    assert erase(traffic, them(traffic))["batch_id"] == 4
    assert naming(traffic) == []
    assert reconcile.main(traffic).offenders == []
