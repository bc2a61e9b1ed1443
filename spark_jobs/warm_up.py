"""Goes once through what the jobs do, on made-up rows in a temporary folder; needs no broker, leaves nothing behind.

include/local/spark.py runs this on a server that has just started, so that it has done everything once before the first job.
"""

from __future__ import annotations

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from include.config.pipeline_file import load_pipeline
from spark_jobs.kafka.messages import reading_of_compounds
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.metrics import ReportInput, measure
from spark_jobs.quality.offenders import find_offenders
from spark_jobs.spark.session import end_session, spark_session
from spark_jobs.spark.workers import FEW_VARIABLE
from spark_jobs.stages.landed_counts import landed_counts
from spark_jobs.stages.pair import pair_batch
from spark_jobs.tables.commit import commit_frame
from spark_jobs.tables.integrity import create_missing
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, LedgerRow, OffsetRange
from spark_jobs.tables.records import LandedCounts, LivePlan, TopicIds
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, declared_schema, raw_table
from spark_jobs.tables.warehouse import Warehouse

PIPELINE = Path(__file__).resolve().parents[1] / "include" / "pipelines" / "calls.yaml"


def main(warehouse: Warehouse) -> None:
    """One batch of four events: a pair, an orphan, a duplicate and a broken message."""
    pipeline, now = warehouse.pipeline, time.time_ns() // 1_000_000
    create_missing(warehouse)
    ledger = Ledger(warehouse)
    ledger.append(_plan(pipeline, now, warehouse.version(OPEN)))
    planned = ledger.rows(1, 1)[0]
    _append_raw(warehouse, now)
    landed_counts(warehouse, planned)
    sides = {"landed_left": 3, "accepted_left": 3, "landed_right": 2, "accepted_right": 1}
    counts = LandedCounts(
        planned=5, landed=5, offset_gaps=0, lost=0, backlog=0, accepted=4, held=0, **sides, malformed_json=1
    )
    landed = planned.next_step(LANDED, planned.started_at, counts, clock=now)
    ledger.append(landed)
    paired = pair_batch(warehouse, ledger, planned, landed)
    ledger.last_ids()
    warehouse.table_id(COMPOUNDS)
    messages = reading_of_compounds(warehouse, {1: 2}, [1]).in_spark()
    messages.repartitionById(2, F.col("output_partition")).sortWithinPartitions("ts", "key", "value").collect()
    batch = Batch.of({PLANNED: planned, LANDED: landed, PAIRED: paired})
    measure(warehouse, ReportInput([batch], [], [], TopicsNow(now, {}, {}, {}), None, None, 0, planned.topics))
    find_offenders(warehouse, 1, 1)


def _plan(pipeline: Pipeline, now: int, open_version: int) -> LedgerRow:
    offsets = tuple(OffsetRange(side.single_topic, 0, 0, 3, 3) for side in pipeline.sides)
    return LedgerRow(
        batch_id=1,
        step=PLANNED,
        plan=LivePlan(open_before=0, topic_ids=TopicIds("left", "right")),
        offsets=offsets,
        wall_time=now,
        clock=None,
        config=pipeline.to_json(),
        config_hash=pipeline.config_hash,
        started_at=datetime.now(UTC),
        versions={OPEN: open_version},
    )


def _append_raw(warehouse: Warehouse, now: int) -> None:
    ago = now - 3_600_000
    events: dict[int, list[tuple[str | None, str | None]]] = {
        0: [("a", "1"), ("b", "2"), ("b", "2")],
        1: [("a", "3"), (None, None)],
    }
    for number, side in enumerate(warehouse.pipeline.sides):
        rows = [
            (
                side.single_topic,
                0,
                offset,
                ago,
                b"k",
                b"{}",
                None,
                ago,
                user,
                user,
                payload,
                None if user else "malformed_json",
                1,
            )
            for offset, (user, payload) in enumerate(events[number])
        ]
        frame = warehouse.spark.createDataFrame(rows, declared_schema(warehouse.pipeline, raw_table(side)))
        commit_frame(warehouse, raw_table(side), frame, raw_table(side), 1)


if __name__ == "__main__":
    # It is the server that is to have done it all once.
    os.environ[FEW_VARIABLE] = "0"
    loaded = load_pipeline(PIPELINE)
    with tempfile.TemporaryDirectory(prefix="pairing-") as folder:
        session = spark_session("warm_up", loaded.name)
        main(Warehouse(folder, loaded, session))
        end_session(session)
