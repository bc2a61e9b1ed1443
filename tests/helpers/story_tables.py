"""Tables as the jobs leave them, written from a rehearsal by delta-rs: no Spark, no Kafka."""

from __future__ import annotations

import re
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from spark_jobs.rules.side_topics import topics_of
from spark_jobs.story.from_files import message_of
from spark_jobs.story.history import Batch as ReadBatch
from spark_jobs.story.play import Rehearsal, land, rows_of, source
from spark_jobs.tables.commit import BatchRange, commit_once, removal_actions
from spark_jobs.tables.delta_log import newest_table
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, row_struct
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.records import LIVE
from spark_jobs.tables.schemas import LEDGER, raw_table, schemas
from spark_jobs.tables.tables import Tables
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import SMALL, Batch, records
from tests.unit.test_doc_examples import arrow_fields


def write(warehouse, table, rows):
    path = warehouse.path(table)
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
    write_deltalake(path, pa.Table.from_pylist(rows, schema=schema), mode="append")


def record(warehouse, *rows):
    """Rows of the ledger, in one commit."""
    write(warehouse, LEDGER, list(map(row_struct, rows)))


def remove_up_to(warehouse, table, until):
    """As maintenance removes the rows of old batches."""
    store = warehouse.store(table)
    place = FilePlace(store, pa.schema(newest_table(store).schema().to_arrow()))
    commit_once(
        place.store, lambda known: list(removal_actions(known, place, BatchRange(0, until))), "removed", until, "removed"
    )


def row_at(pipeline, batch_id, step, clock, kind=LIVE, **named):
    """A row of the ledger, planned at its clock."""
    return ledger_row(batch_id, step, kind, pipeline, clock=clock, wall_time=clock or 0, **named)


def played(root, batches, pipeline=SMALL, paired=None, settings=None):
    """The warehouse after the batches, of which the first `paired` are paired; `settings`: batch_id -> what was set otherwise."""
    warehouse = Tables(str(root), pipeline)
    for table, ddl in schemas(pipeline).items():
        DeltaTable.create(warehouse.path(table), pa.schema(arrow_fields(re.findall(r"\w+|[<>]", ddl))))
    rehearsal = Rehearsal(pipeline)
    for number, (mine, clock) in enumerate(records([Batch(*batch) for batch in batches]), 1):
        own = replace(pipeline, **(settings or {}).get(number, {}))
        record(warehouse, row_at(own, number, PLANNED, rehearsal.clock))
        batch = ReadBatch(number, [message_of(each) for each in mine], clock, clock, own)
        # Raw tables have the key fields as they came.
        messages = land(batch._replace(pipeline=replace(own, key_order="as_is")), topics_of(own))
        for side in pipeline.sides:
            write(warehouse, raw_table(side), raw_rows(pipeline, side, mine, messages, number))
        record(warehouse, row_at(own, number, LANDED, clock))
        if paired is None or number <= paired:
            done = rehearsal.play(batch)
            write(warehouse, "compound_events", compound_rows(pipeline, done))
            write(warehouse, "rejected_events", rejected_rows(pipeline, done))
            record(warehouse, row_at(own, number, PAIRED, clock))
    return warehouse


def raw_rows(pipeline, side, mine, messages, number):
    said = {source(topics_of(pipeline), row["side"], row["partition"], row["offset"]): row for row in messages.to_pylist()}
    rows = []
    for record in mine:
        if record["topic"] == side.topic:
            found = said[f"{record['topic']}-{record['partition']}-{record['offset']}"]
            value = None if record["payload"] is None else record["payload"].encode()
            place = {name: record[name] for name in ("topic", "partition", "offset")}
            parsed = {name: found[name] for name in (*pipeline.key, "ts", "payload", "problem")}
            key = (record["key"] or "").encode()
            rows.append(
                {**place, **parsed, "record_timestamp": record["ts"], "key": key, "value": value, "batch_id": number}
            )
    return rows


def compound_rows(pipeline, done):
    rows = []
    for row in (row for kind in ("pair", "left_only", "right_only") for row in rows_of(done.outcomes, kind)):
        sides = {}
        for number, name in enumerate(("left", "right")):
            there = row[f"{name}_offset"] is not None
            sides |= {f"{name}_{column}": row[f"{name}_{column}"] for column in ("ts", "partition", "offset")}
            sides[f"{name}_topic"] = pipeline.sides[number].topic if there else None
        number, first = next((at, name) for at, name in enumerate(("left", "right")) if row[f"{name}_offset"] is not None)
        pair_id = source(topics_of(pipeline), number, row[f"{first}_partition"], row[f"{first}_offset"])
        ts = min(at for at in (row["left_ts"], row["right_ts"]) if at is not None)
        key = {name: row[name] for name in pipeline.key}
        about = {"pair_id": pair_id, "revision": 0, "op": "upsert", "kind": row["outcome"], "ts": ts}
        rows.append({**about, **key, **sides, "batch_id": done.batch.batch_id})
    return rows


def rejected_rows(pipeline, done):
    found = [(row, row["problem"]) for row in done.messages.to_pylist() if row["problem"]]
    rows = [rejected(pipeline, row["side"], row, "", reason, done.batch.batch_id) for row, reason in found]
    for reason in ("duplicate", "late"):
        for row in rows_of(done.outcomes, reason):
            number, name = (0, "left_") if row["left_offset"] is not None else (1, "right_")
            rows.append(rejected(pipeline, number, row, name, reason, done.batch.batch_id))
    return rows


def rejected(pipeline, side, row, prefix, reason, batch_id):
    place = {"topic": pipeline.sides[side].topic, "partition": row[f"{prefix}partition"], "offset": row[f"{prefix}offset"]}
    return {**place, "reason": reason, "batch_id": batch_id}
