"""The batch of an erasure: rows are emptied, open events removed, and compounds that consumers have retracted. A repetition changes nothing.

A retraction needs its key until it is published, so compound_events is emptied after that (`erasure_end`).
"""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_jobs.corrections.erasure_list import ErasureList, read_list
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.commit import commit_frame, commit_rewritten
from spark_jobs.tables.erased_rows import erasing
from spark_jobs.tables.integrity import table_versions
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, LedgerRow
from spark_jobs.tables.outbox import corrections
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.records import ErasurePlan, correction_counts
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse


def plan_erasure(warehouse: Warehouse, last: LedgerRow) -> LedgerRow:
    """The plan of an erasure, the batch after `last` (a `paired` row). It reads nothing from the topics."""
    plan = ErasurePlan(open_before=last.paired.open_after, topic_ids=last.plan.topic_ids, corrected=last.plan.corrected)
    return last.planned_next(plan, warehouse.pipeline)


def finish_erasure(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow) -> LedgerRow:
    """Completes the planned erasure up to its `paired` row, from which the next batch continues, and returns that."""
    started, batch_id, chosen = datetime.now(UTC), planned.batch_id, read_list(warehouse, planned)
    commit_frame(warehouse, COMPOUNDS, _retractions(warehouse, chosen, batch_id), COMPOUNDS, batch_id)
    raw = [raw_table(side) for side in warehouse.pipeline.sides]
    for table in (*raw, REJECTED, OPEN):
        commit_rewritten(warehouse, table, erasing(warehouse.pipeline, table, chosen.rows[table]), table, batch_id)
    counts = correction_counts(
        planned.plan,
        compounds=len(chosen.retract),
        retracted=len(chosen.retract),
        erased=len(chosen.rows[OPEN]),
        erased_landed=sum(len(chosen.rows[table]) for table in raw),
    )
    retracted = warehouse.count_rows(COMPOUNDS, [batch_id])[batch_id]
    still_open = sum(file.rows for file in warehouse.files(OPEN))
    if (retracted, still_open) != (counts.compounds, counts.open_after):
        raise BrokenInvariant(
            f"erasure {batch_id} was to retract {counts.compounds} compounds and to leave {counts.open_after} events open, but wrote {retracted} "
            f"retractions and left {still_open}"
        )
    versions = planned.versions | table_versions(warehouse, [COMPOUNDS, OPEN, REJECTED, *raw])
    paired = planned.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired


def _retractions(warehouse: Warehouse, chosen: ErasureList, batch_id: int) -> DataFrame:
    """The rows that retract the compounds which hold now, each with the next revision."""
    valid = frozenset(chosen.retract)

    def keep(rows: pa.RecordBatch) -> pa.RecordBatch:
        known = zip(rows["pair_id"].to_pylist(), rows["revision"].to_pylist(), strict=True)
        return rows.filter(pa.array([each in valid for each in known], pa.bool_()))

    rows = warehouse.read(COMPOUNDS, made=InWorker(keep))
    changed = rows.select(F.struct(*rows.columns).alias("now"))
    return corrections(changed.withColumn("then", F.lit(None).cast(changed.schema["now"].dataType)), batch_id)
