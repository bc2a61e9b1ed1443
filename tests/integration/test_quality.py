"""The report against jobs that lie: real tables, a real broker, and a job that loses, doubles or hides something."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer
from pyspark.errors.utils import is_debugging_enabled

from include.config.health import read_state
from include.config.pipeline import BEFORE_PUBLISH, Quality
from include.config.store import pages_store
from spark_jobs import pair_events, publish_compounds, report_quality
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.publisher import PartitionReport
from spark_jobs.quality.checks import Finding
from spark_jobs.quality.reconcile import note_in_state, reconcile
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.stages import land as landing_stage
from spark_jobs.stages import pair, publish
from spark_jobs.stages.report import BrokenBatch
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PUBLISHED, REPORTED
from spark_jobs.tables.parquet_files import FileWriter
from spark_jobs.tables.read_files import read_small_files
from spark_jobs.tables.schemas import REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse
from tests.conftest import PARTITIONS
from tests.helpers.all_stages import land, run_all
from tests.helpers.pages import pages_folder
from tests.helpers.reading import consume, table_rows
from tests.helpers.tampering import delete_rows

pytestmark = pytest.mark.integration


def metrics_of(warehouse, batch_id):
    (row,) = (row for row in table_rows(warehouse, "quality_metrics") if row["batch_id"] == batch_id)
    return dict(row["metrics"])


def page_of(warehouse, name):
    return (pages_folder(warehouse.root, warehouse.pipeline.name) / f"{name}.html").read_text()


@pytest.fixture
def pipeline(pipeline):
    """With sessions that are over in no time."""
    return replace(pipeline, tolerance_ms=50, gap_ms=50, grace_ms=100)


@pytest.fixture
def traffic(pipeline):
    """traffic(): ten pairs, twenty orphans of either side and two broken messages, all over when they are landed."""

    def send(prefix="u"):
        producer, now = Producer({"bootstrap.servers": _bootstrap()}), time.time_ns() // 1_000_000
        for number in range(30):
            for side in pipeline.sides:
                alone = f"{prefix}{number}" if number < 10 else f"{prefix}{number}{side.payload}"
                body = {"user1": alone, "user2": "v", "timestamp": now, side.payload: number}
                producer.produce(side.topic, key=alone, value=json.dumps(body))
        for side in pipeline.sides:
            producer.produce(side.topic, value=b"{nope")
        assert producer.flush(20) == 0
        time.sleep(0.3)

    return send


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    """outcome(): what the jobs have left for Airflow."""
    file = tmp_path / "outcome.json"
    monkeypatch.setenv("PAIRING_OUTCOME", str(file))
    return lambda: json.loads(file.read_text())


def _bootstrap():
    from spark_jobs.kafka.settings import kafka_settings

    return kafka_settings()["bootstrap.servers"]


def _write_other_compounds(patch, change):
    """The workers count what they decided, and write something else."""
    honest = pair.make_compounds
    patch.setattr(pair, "make_compounds", lambda *given: change(honest(*given)))


def _of(rows, *users):
    return pc.is_in(rows["user1"], pa.array(users))


def lose_a_tenth_of_the_orphans(patch):
    _write_other_compounds(patch, lambda rows: rows.filter(pc.invert(_of(rows, "u10analytics", "u20analytics"))))


def double_one(patch):
    _write_other_compounds(patch, lambda rows: pa.concat_batches([rows, rows.filter(_of(rows, "u11metrics"))]))


def double_one_and_lose_another(patch):
    def change(rows):
        return pa.concat_batches([rows.filter(pc.invert(_of(rows, "u12analytics"))), rows.filter(_of(rows, "u11analytics"))])

    _write_other_compounds(patch, change)


def swallow_what_is_rejected(patch):
    made = pair.write_rejected

    def write(warehouse, *given):
        place = warehouse.place_for_files(REJECTED)
        files = [DataFile(file.name, file.size, 0) for file in made(warehouse, *given)]
        kept = read_small_files(place.store, files, place.schema, ~pc.ends_with(pc.field("topic"), "metrics"))
        with FileWriter(place.store) as writer:
            for rows in kept.to_batches():
                writer.write(rows)
            file = writer.finish()
        return [file] if file else []

    patch.setattr(pair, "write_rejected", write)


def publish_nothing(patch):
    """The publisher says that all was acknowledged."""

    def send(warehouse, settings, run, route):
        rows = table_rows(warehouse, "compound_events")
        mine = {row["batch_id"]: sum(each["batch_id"] == row["batch_id"] for each in rows) for row in rows}
        return [
            PartitionReport(number, 0, mine, {}, []) if number == 0 else PartitionReport(number, 0, {}, {}, [])
            for number in range(PARTITIONS)
        ]

    patch.setattr(publish, "send", send)


def lose_records_and_call_them_gaps(patch):
    append = landing_stage.append_raw

    def lose(warehouse, planned, ranges, side):
        append(warehouse, planned, ranges, side)
        if side == warehouse.pipeline.left:
            delete_rows(warehouse, raw_table(side), '"offset" % 5 = 0')

    patch.setattr(landing_stage, "append_raw", lose)


SABOTAGE = {
    "orphans": (lose_a_tenth_of_the_orphans, "pairing_difference_left is 2.0, allowed 0 to 0"),
    "rejected": (
        swallow_what_is_rejected,
        "every rejected event is in rejected_events (right): rejection_difference_right is 1.0",
    ),
    "not sent": (publish_nothing, "read back from the output topic once: delivery_difference is 50.0, allowed 0 to 0"),
    "doubled": (double_one, "pairing_difference_right is -1.0, allowed 0 to 0"),
    "doubled and lost": (
        double_one_and_lose_another,
        "the events that came out are those that went in (left): identity_difference_left is 1",
    ),
    "not landed": (lose_records_and_call_them_gaps, "is a raw row (left): landing_difference_left is"),
}
LONG = ("doubled", "doubled and lost", "not landed")


@pytest.mark.parametrize(
    ("sabotage", "said"),
    [pytest.param(*SABOTAGE[name], id=name, marks=[pytest.mark.long] if name in LONG else []) for name in SABOTAGE],
)
def test_a_job_that_lies_is_caught_by_name(sabotage, said, warehouse, traffic, monkeypatch):
    traffic()
    with monkeypatch.context() as patch:
        sabotage(patch)
        land(warehouse)
        pair_events.main(warehouse)
        # The publisher notices some of it, too; the report has to know it by itself.
        with suppress(BrokenInvariant):
            publish_compounds.main(warehouse)
    with pytest.raises(BrokenBatch) as broken:
        report_quality.main(warehouse)
    assert said in str(broken.value)
    page = page_of(warehouse, "batch-1")
    assert page.count('<td class="critical">failed<') == str(broken.value).count("batch 1:")


def test_no_caller_of_a_column_is_looked_up(spark):
    """That would take half the time in which a report builds its plans."""
    assert not is_debugging_enabled()


def test_a_batch_that_is_not_published_has_its_page_and_is_reported_when_it_is(warehouse, traffic):
    traffic()
    land(warehouse)
    pair_events.main(warehouse)
    for _ in range(2):
        with pytest.raises(
            BrokenBatch, match=r"^the counts do not add up: batch 1: [^;]*: publishing_difference is 50.0, [^;]*$"
        ):
            report_quality.main(warehouse)
    assert '<td class="critical">failed<' in page_of(warehouse, "index")
    assert Ledger(warehouse).last_ids()[REPORTED] == 0
    assert table_rows(warehouse, "quality_metrics") == []
    publish_compounds.main(warehouse)
    # The next batch is reported with it: both are read back from the topic.
    traffic("w")
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    assert report_quality.main(warehouse)["batches"] == 2
    assert '<td class="critical">failed<' not in page_of(warehouse, "batch-1")
    first, second = (metrics_of(warehouse, number) for number in (1, 2))
    assert (second["due_on_topic"], second["on_topic"], second["delivery_difference"]) == (100, 100, 0)
    assert "due_on_topic" not in first
    assert [first["total_in_left"], second["total_in_left"], second["total_since"]] == [30, 60, 1]


@pytest.mark.long
def test_marks_of_transactions_are_no_loss(warehouse, pipeline, traffic):
    traffic()
    producer = Producer({"bootstrap.servers": _bootstrap(), "transactional.id": pipeline.name})
    producer.init_transactions(20)
    for number in range(2):
        producer.begin_transaction()
        body = {"user1": "tx", "user2": "v", "timestamp": time.time_ns() // 1_000_000, "analytics": number}
        producer.produce(pipeline.left.topic, partition=0, value=json.dumps(body))
        producer.commit_transaction(20)
    time.sleep(0.5)
    run_all(warehouse)
    metrics = metrics_of(warehouse, 1)
    assert metrics["offset_gaps"] == 2
    assert [metrics[f"landing_difference_{side}"] for side in ("left", "right")] == [0, 0]


def test_a_table_that_another_program_changed_is_named_once_and_reconcile_finds_what_is_gone(warehouse, traffic, outcome):
    traffic()
    run_all(warehouse)
    delete_rows(warehouse, "compound_events", "user1 = 'u3'")
    version = warehouse.version("compound_events")
    # No batch writes to these tables, but there is one commit more.
    delete_rows(warehouse, "rejected_events")
    traffic("w")
    run_all(warehouse)
    changed = f"compound_events was changed by another program (DELETE, version {version}), rejected_events ("
    assert [metrics_of(warehouse, batch)["foreign_changes"] for batch in (1, 2)] == [0, 2]
    assert changed in page_of(warehouse, "batch-2") and "foreign_changes" not in page_of(warehouse, "batch-1")
    assert [line for line in outcome()["news"] if line.startswith(changed)]
    answer, pages = reconcile(warehouse), pages_store(warehouse.pipeline.name, warehouse.root)
    offenders = {each.finding: each.number for each in answer.offenders}
    assert offenders[Finding.NO_OUTCOME] == 2 and offenders[Finding.SENT_UNKNOWN] == 1
    note_in_state(warehouse, answer)
    traffic("x")
    run_all(warehouse)
    # The sums of the reports say what the reports counted, and no more.
    assert metrics_of(warehouse, 3)["foreign_changes"] == 0
    assert "as the reports of all batches counted it" in page_of(warehouse, "batch-3")
    problems = {each.name: each.text for each in read_state(pages).problems}
    assert {"reconcile", "foreign_changes"} <= set(problems) and problems["foreign_changes"].startswith(changed)
    assert problems["reconcile"].startswith("reconcile found ") and "more than one outcome" not in problems["reconcile"]
    # Nobody else writes to these either; the commits of the jobs are none.
    ledger = warehouse.version("batch_ledger")
    delete_rows(warehouse, "batch_ledger", "step = 'reported' and batch_id = 1")
    delete_rows(warehouse, "quality_metrics", "batch_id = 1")
    run_all(warehouse)
    assert metrics_of(warehouse, 4)["foreign_changes"] == 2
    assert f"batch_ledger was changed by another program (DELETE, version {ledger + 1}), quality_metrics (" in page_of(
        warehouse, "batch-4"
    )
    run_all(warehouse)
    assert metrics_of(warehouse, 5)["foreign_changes"] == 0
    # As if the tables were mended.
    note_in_state(warehouse, reconcile(warehouse)._replace(offenders=[]))
    assert {each.name for each in read_state(pages).problems}.isdisjoint(("reconcile", "foreign_changes"))


@pytest.mark.long
def test_a_broken_report_hides_nothing_and_blocks_nothing(warehouse, broker, pipeline, traffic):
    def broken_judge(*_):
        raise KeyError("great expectations")

    traffic()
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    with pytest.raises(KeyError):
        report_quality.main(warehouse, broken_judge)
    assert "not judged" in page_of(warehouse, "index") and "great expectations" in page_of(warehouse, "batch-1")
    delete_rows(warehouse, "rejected_events")
    traffic("w")
    land(warehouse)
    pair_events.main(warehouse)
    publish_compounds.main(warehouse)
    assert len(consume(broker.bootstrap, pipeline.output_topic)) == 100
    with pytest.raises(BrokenBatch) as broken:
        report_quality.main(warehouse)
    # The batch that the broken report did not judge is not forgotten; the one after it is none the worse.
    assert str(broken.value).count("batch 1:") == 2 and "batch 2:" not in str(broken.value)
    assert "not judged" not in page_of(warehouse, "batch-1")


@pytest.mark.long
def test_judged_before_it_is_published(warehouse, broker, pipeline, traffic, monkeypatch):
    strict = Warehouse(warehouse.root, replace(pipeline, quality=Quality(gate=BEFORE_PUBLISH)), warehouse.spark)

    def pair(prefix):
        traffic(prefix)
        land(strict)
        pair_events.main(strict)

    def published():
        return len(consume(broker.bootstrap, pipeline.output_topic)), Ledger(strict).last_ids()[PUBLISHED]

    pair("a")
    with pytest.raises(NeedsOperator, match=r"^batch 1 of pipeline \w+ has not been judged yet and is held back"):
        publish_compounds.main(strict)
    assert report_quality.main(strict)["batches"] == 1
    assert "publishing_difference" not in metrics_of(strict, 1)
    pair("u")
    with monkeypatch.context() as patch:
        swallow_what_is_rejected(patch)
        pair("u")
    with pytest.raises(BrokenBatch, match="batch 3: every rejected event"):
        report_quality.main(strict)
    # What was judged good goes out, what comes after the broken one waits with it.
    held = r"^batch 3 of pipeline \w+ failed 1 critical checks and is held back.* --release-batch 3,"
    for _ in range(2):
        with pytest.raises(NeedsOperator, match=held):
            publish_compounds.main(strict)
        assert published() == (100, 2)
    pair("b")
    assert report_quality.main(strict)["batches"] == 1
    # Read back are the two batches that were published since the report before.
    read_back = [metrics_of(strict, number).get("due_on_topic") for number in (1, 2, 3, 4)]
    assert read_back == [None, None, None, 100]
    with pytest.raises(NeedsOperator, match=held):
        publish_compounds.main(strict)
    assert publish_compounds.main(strict, released=3)["sent"] == 100
    assert published() == (200, 4)
