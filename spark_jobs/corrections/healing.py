"""Records that were rejected because the registry did not know their schemas: asks for these again, and replays where their events lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import MS_PER_UNIT
from include.config.time_text import count
from spark_jobs.corrections.healed_events import Batches, batches_with_unknown, decoded_rows, unknown_records
from spark_jobs.corrections.interval import replay_interval
from spark_jobs.corrections.replay import DIFFERENCES, UNCHANGED
from spark_jobs.corrections.unfinished import finish_batch
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import Counts
from spark_jobs.quality.late_intervals import by_interval
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.records import Window
from spark_jobs.tables.warehouse import Warehouse

_MINUTE = MS_PER_UNIT["m"]
# A person waits for the answer, and behind many ids that producers made up there may be a good one.
_VAIN_REQUESTS = 100_000
# Records with one verdict and a time in one minute (since the epoch; null where there is no time).
_FOUND = pa.schema({"problem": pa.string(), "minute": pa.int64(), "records": pa.int64()})


def heal(warehouse: Warehouse) -> Counts:
    """Replays the intervals of all records that can be read now; may be repeated at any time.

    Returns how many `records` had an unknown schema when they were landed, how many are `readable` now and `still_unknown`, how many intervals
    were `replayed`, how many `wait` to be closed or cannot be replayed, and the sums of the replays' differences. Raises NeedsOperator without
    a registry's settings, and RegistryProblem if it does not answer.
    """
    # A replay that was killed has to end with the schemas that it began with.
    finish_batch(warehouse, Ledger(warehouse))
    counts: Counter[str] = Counter(records=0, readable=0, still_unknown=0, replayed=0, wait=0)
    counts.update(dict.fromkeys(DIFFERENCES, 0))
    minutes: set[int] = set()
    for row in _found(warehouse, batches_with_unknown(warehouse)):
        counts["records"] += row["records"]
        counts["still_unknown"] += row["records"] if row["problem"] == Reason.UNKNOWN_SCHEMA else 0
        if row["problem"] is None:
            counts["readable"] += row["records"]
            minutes.add(row["minute"])
    print(f"{count(counts['records'], 'record')} of unknown schemas: {counts['readable']} can be read now")
    reach = max(warehouse.pipeline.max_session_ms, warehouse.pipeline.tolerance_ms)
    spans = [(minute, Window(max(minute * _MINUTE - reach, 0), (minute + 1) * _MINUTE + reach)) for minute in minutes]
    for window in by_interval(spans, warehouse.pipeline.replay_schedule).values():
        try:
            changes = replay_interval(warehouse, window)
        except NeedsOperator as refusal:
            # One interval that cannot be replayed must not keep the others from it.
            counts["wait"] += 1
            print(f"not replayed: {refusal}")
            continue
        counts["replayed"] += 1
        counts.update({name: changes.get(name, 0) for name in DIFFERENCES})
        said = ", ".join(f"{changes.get(name, 0)} {name}" for name in DIFFERENCES if name != UNCHANGED)
        print(f"replayed {window}: {said}")
    return dict(counts)


def _found(warehouse: Warehouse, batches: Batches) -> Iterator[dict[str, Any]]:
    """Rows of `_FOUND`; asks the registry."""
    for side in warehouse.pipeline.sides if batches else ():
        read = decoded_rows(warehouse, batches, side, _VAIN_REQUESTS)
        made = InWorker(_summary(read), _FOUND, is_summary=True)
        yield from unknown_records(warehouse, side, batches, made).toArrow().to_pylist()


def _summary(read: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def make(rows: pa.RecordBatch) -> pa.RecordBatch:
        found = read(rows)
        times = pc.if_else(pc.is_null(found["problem"]), pc.divide(found["ts"], _MINUTE), pa.scalar(None, pa.int64()))
        table = pa.table({"problem": found["problem"], "minute": times, "records": times})
        counted = table.group_by(["problem", "minute"]).aggregate([([], "count_all")])
        return pa.RecordBatch.from_pylist(
            [dict(zip(_FOUND.names, row.values(), strict=True)) for row in counted.to_pylist()], schema=_FOUND
        )

    return make
