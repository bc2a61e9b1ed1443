"""Which replays the late events of live batches ask for, and which of them are due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from spark_jobs.corrections.late_events import Asked, asked, first_open, is_done, is_due, late_batches
from spark_jobs.tables.ledger import PAIRED, Ledger, rewinds_among
from spark_jobs.tables.warehouse import Warehouse


def late_replays(warehouse: Warehouse, after: int = 0) -> dict[str, Any]:
    """`replays`: those that are due, of late events in batches > `after`. `waiting`: how many are not due yet. `settled`: what
    `after` may be at the next call, once these are started.
    """
    ledger = Ledger(warehouse)
    if after > ledger.last_ids()[PAIRED]:
        # Of other tables: these were made anew, or put back.
        after = 0
    rows = ledger.rows(after + 1)
    if rewinds_among(rows):
        # It may have taken replays back that were started long ago.
        rows = ledger.rows(1)
    paired = [row for row in rows if row.step == PAIRED]
    batches = late_batches(rows)
    if not batches:
        return {"replays": [], "waiting": 0, "settled": paired[-1].batch_id if paired else after}
    last, pipeline = paired[-1], warehouse.pipeline
    wanted = [one for late in batches for one in asked(warehouse, late, last) if not is_done(one, rows)]
    still_open = first_open(warehouse, last)
    due = [one for one in wanted if is_due(one.window, last, still_open, pipeline.gap_ms + pipeline.grace_ms)]
    waiting = [one for one in wanted if one not in due]
    settled = min((one.batch_id - 1 for one in waiting), default=last.batch_id)
    rewound = max((rewind.batch_id for rewind in rewinds_among(rows)), default=0)
    return {"replays": [_run(one, rewound) for one in due], "waiting": len(waiting), "settled": settled}


def _run(wanted: Asked, rewound: int) -> dict[str, Any]:
    # After a rewind the same late events may ask again.
    again = f"_after_rewind_{rewound}" if rewound > wanted.batch_id else ""
    return {
        "run_id": f"late__batch_{wanted.batch_id}_{_iso(wanted.interval)}{again}",
        "batch_id": wanted.batch_id,
        "window_start": _iso(wanted.window.start),
        "window_end": _iso(wanted.window.end),
    }


def _iso(ts: int) -> str:
    return datetime.fromtimestamp(ts // 1000, UTC).replace(microsecond=ts % 1000 * 1000).isoformat()
