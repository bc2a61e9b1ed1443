"""The end of an erasure, when it is published and reported: compounds emptied, old files deleted, and a certificate of what was done.

Until then the retractions have their keys in compound_events, and the report reads open_events as it was before. Each part may be repeated.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from include.config.store import read_text, write_text
from include.config.time_text import count
from spark_jobs.corrections.erasure_list import ErasureList, delete_list, erasures_place, listed, read_list
from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.kafka.messages import header
from spark_jobs.kafka.offsets import Partition
from spark_jobs.kafka.records import Span, read_records, with_offsets
from spark_jobs.tables.commit import commit_rewritten
from spark_jobs.tables.erased_rows import RowId, erasing, without_names
from spark_jobs.tables.integrity import table_versions
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    ERASED,
    PAIRED,
    PLANNED,
    PUBLICATIONS,
    PUBLISHED,
    PUBLISHED_REJECTED,
    PUBLISHING,
    REPORTED,
    LedgerRow,
)
from spark_jobs.tables.old_files import delete_old_files
from spark_jobs.tables.records import ERASURE, ErasedCounts
from spark_jobs.tables.schemas import COMPOUNDS, LEDGER, METRICS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

_NOT_ERASED = (
    "records on the input topics and messages on the output topics: Kafka deletes them by the topics' retention, on a compacted output topic also "
    "those of the key that lie before the tombstone in its partition; backups; archived rows; logs of other programs"
)
Steps = Mapping[str, LedgerRow]


def undecodable_text(records: int) -> str:
    """How far records whose schema is still unknown were searched."""
    return f"{count(records, 'record')} of schemas that are still unknown: only their bytes were searched, so run heal_schemas, then this again"


def dead_letters_text(ledger: Ledger) -> list[str]:
    """What is to be done with the topics that copies of rejected records went to, as far as the ledger knows them; empty without any."""
    topics = sorted({row.published_to for row in ledger.where(lambda row: row("step") == PUBLISHED_REJECTED)})
    return [
        f"copies of rejected records on {topic}: no tombstone takes them away, so wait for the topic's retention, or delete its records "
        "(kafka-delete-records.sh)"
        for topic in topics
    ]


def finish_erasures(warehouse: Warehouse) -> list[dict[str, Any]]:
    """Completes each erasure that is published and reported; returns their certificates, which it prints."""
    ledger, found = Ledger(warehouse), []
    for batch_id, wall_time in listed(warehouse):
        rows = ledger.rows(batch_id, batch_id)
        steps = {row.step: row for row in rows if row.kind == ERASURE and row.wall_time == wall_time}
        if {PAIRED, PUBLISHED, REPORTED} <= steps.keys():
            if ERASED not in steps:
                found.append(_finish(warehouse, ledger, steps, _sent(rows)))
            delete_list(warehouse, batch_id, wall_time)
        elif rows and not steps:
            # Another batch was planned with this number.
            delete_list(warehouse, batch_id, wall_time)
    return found


def _sent(rows: Iterable[LedgerRow]) -> dict[Partition, Span]:
    """Between which offsets of the output partitions the messages were sent. A publication that is begun again may be noted again, further behind."""
    begun, sent = dict[tuple[str, int], int](), dict[Partition, Span]()
    for row in rows:
        if not row.output:
            continue
        # A `publishing` row says of which topic it is only by the id.
        topic_id, ends = row.output_state.topic_id, row.output_state.ends
        if row.step == PUBLISHING:
            begun |= {(topic_id, number): min(end, begun.get((topic_id, number), end)) for number, end in ends.items()}
        elif row.step in PUBLICATIONS:
            sent |= {(row.published_to, number): Span(begun.get((topic_id, number), 0), end) for number, end in ends.items()}
    return sent


def _finish(warehouse: Warehouse, ledger: Ledger, steps: Steps, sent: Mapping[Partition, Span]) -> dict[str, Any]:
    started, planned, paired = datetime.now(UTC), steps[PLANNED], steps[PAIRED]
    batch_id, chosen, pipeline = planned.batch_id, read_list(warehouse, planned), warehouse.pipeline
    mine = [*chosen.rows[COMPOUNDS], *((pair_id, revision + 1, batch_id) for pair_id, revision in chosen.retract)]
    for table, rewrite in ((COMPOUNDS, erasing(pipeline, COMPOUNDS, mine)), (METRICS, without_names(chosen.breakdowns))):
        commit_rewritten(warehouse, table, rewrite, f"erased_{table}", batch_id)
    tombstones = _tombstones(warehouse, sent, chosen)
    tables = [*(raw_table(side) for side in pipeline.sides), OPEN, REJECTED, COMPOUNDS, METRICS]
    with between_fault_points("erased_files"):
        # What later batches and the report read of open_events are the versions since.
        kept = range(paired.versions[OPEN], warehouse.version(OPEN) + 1)
        # A try that was killed behind its certificate has deleted files before.
        files = _files_deleted(warehouse, batch_id) + sum(
            delete_old_files(warehouse, table, paired.started_at, kept if table == OPEN else None) for table in tables
        )
    rows = {**chosen.rows, COMPOUNDS: mine, METRICS: chosen.breakdowns}
    counts = ErasedCounts(
        **dict(zip(("raw_left", "raw_right"), (len(rows[table]) for table in tables[:2]), strict=True)),
        **{table: len(rows[table]) for table in tables[2:]},
        pages=len(chosen.pages),
        tombstones=len(tombstones),
        files=files,
    )
    certificate = _certificate(warehouse, planned, chosen, {table: rows[table] for table in tables})
    certificate |= {"tombstones": tombstones, "files_deleted": files, "not_erased": _not_erased(warehouse, ledger, chosen)}
    with between_fault_points("certificate"):
        text = json.dumps(certificate, indent=2)
        write_text(erasures_place(warehouse), _certificate_name(batch_id), f"{text}\n")
    print(text)
    ledger.append(planned.next_step(ERASED, started, counts, versions=table_versions(warehouse, tables)))
    return certificate


def _certificate_name(batch_id: int) -> str:
    return f"certificate-{batch_id}.json"


def _files_deleted(warehouse: Warehouse, batch_id: int) -> int:
    """What a certificate that is there says; 0 without one."""
    text = read_text(erasures_place(warehouse).made(), _certificate_name(batch_id))
    return int(json.loads(text)["files_deleted"]) if text else 0


def _not_erased(warehouse: Warehouse, ledger: Ledger, chosen: ErasureList) -> str:
    said = [_NOT_ERASED, *_beyond_tombstones(warehouse, ledger), *dead_letters_text(ledger)]
    return "; ".join([*said, undecodable_text(chosen.undecodable)] if chosen.undecodable else said)


def _beyond_tombstones(warehouse: Warehouse, ledger: Ledger) -> Iterator[str]:
    """The messages that no tombstone reaches, because it is of one topic and partition."""
    pipeline, partitions = warehouse.pipeline, dict[str, set[int]]()
    for row in ledger.where(lambda row: row("step").isin(PUBLICATIONS)):
        if row.output:
            partitions.setdefault(row.published_to, set()).add(row.output_state.partitions)
    for topic, numbers in sorted(partitions.items()):
        if topic not in (pipeline.output_topic, pipeline.output_orphans_topic):
            yield f"messages on {topic}, which the settings no longer name: no tombstone goes there, so delete the topic"
        elif len(numbers) > 1:
            yield (
                f"messages on {topic} from when it had {min(numbers)} partitions rather than {max(numbers)}: a key that has moved since has its "
                "tombstone in the new partition"
            )


def _certificate(
    warehouse: Warehouse, planned: LedgerRow, chosen: ErasureList, rows: Mapping[str, Iterable[RowId]]
) -> dict[str, Any]:
    """What was erased: no name, and no hash of one without a salt."""
    after = table_versions(warehouse, [*rows, LEDGER])
    batches = {
        table: sorted(Counter(ids[0 if table == METRICS else -1] for ids in found).items()) for table, found in rows.items()
    }
    return {
        "pipeline": warehouse.pipeline.name,
        "batch_id": planned.batch_id,
        "asked_by": chosen.asked_by,
        "asked_at": chosen.asked_at,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "fields": chosen.fields,
        "salt": chosen.salt,
        "key_sha256": chosen.key_sha256,
        "tables": {
            table: {
                "rows": sum(number for _, number in found),
                "rows_by_batch": {str(batch_id): number for batch_id, number in found},
                "version_before": chosen.versions[table],
                "version_after": after[table],
            }
            for table, found in batches.items()
        },
        "pages": chosen.pages,
    }


def _tombstones(warehouse: Warehouse, sent: Mapping[Partition, Span], chosen: ErasureList) -> list[dict[str, Any]]:
    """Where the retractions are on the output topics, as far as they are still there, in what was `sent`."""
    spans = with_offsets(sent)
    mine = {(pair_id, str(revision + 1)) for pair_id, revision in chosen.retract}
    if not mine or not spans:
        return []
    records = read_records(warehouse.spark, warehouse.pipeline, spans, False, ["topic", "partition", "offset", "headers"])
    place = ["topic", "partition", "offset"]
    named = records.select(*place, header("pair-id").alias("pair_id"), header("revision").alias("revision"))
    rows = (row.asDict() for row in named.orderBy(*place).toLocalIterator())
    return [row for row in rows if (row["pair_id"], row["revision"]) in mine]
