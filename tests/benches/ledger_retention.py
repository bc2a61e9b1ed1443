"""What a look at the ledger costs after thousands of batches, with and without `ledger_retention`: files, rows, seconds.

    python -m tests.benches.ledger_retention [--batches 4896] [--kept 864]

The rows are made up, written by delta-rs, and removed every 288 batches (a day) as maintenance removes them, without Spark: their files are put
together by delta-rs. Each look is that of a new process: the table is opened, then asked for the last batch, the last ids, what was removed,
and the rows of the last batch.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import DeltaTable

from spark_jobs.tables import delta_log
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.schemas import LEDGER, schemas
from spark_jobs.tables.tables import Tables
from tests.helpers.batch_history import history
from tests.helpers.story_tables import record, remove_up_to
from tests.helpers.timeline import CALLS
from tests.unit.test_doc_examples import arrow_fields

_A_DAY, _ROUNDS = 288, 9
_AT = (288, 1_152, 2_592, 4_896)


def look(ledger: Ledger, number: int) -> float:
    """Seconds."""
    delta_log._cache.clear()
    begin = time.perf_counter()
    assert ledger.last_batch() and ledger.last_ids() and ledger.rows(number, number)
    ledger.removals()
    return time.perf_counter() - begin


def main(batches: int, kept: int | None) -> None:
    """Prints a line at each of some numbers of batches."""
    with tempfile.TemporaryDirectory() as folder:
        warehouse = Tables(folder, CALLS)  # type: ignore[arg-type]  # nothing here asks Spark
        path = warehouse.path(LEDGER)
        Path(path).mkdir(parents=True)
        columns = arrow_fields(re.findall(r"\w+|[<>]", schemas(CALLS)[LEDGER]))
        searched = {"delta.dataSkippingStatsColumns": "batch_id", "delta.enableExpiredLogCleanup": "false"}
        DeltaTable.create(path, pa.schema(columns), configuration={**searched})
        ledger = Ledger(warehouse)
        for number, batch in enumerate(history(batches), 1):
            record(warehouse, *batch.steps.values())
            if number % _A_DAY == 0:
                if kept and number > kept:
                    remove_up_to(warehouse, LEDGER, number - kept)
                table = DeltaTable(path)
                table.optimize.compact()
                table.vacuum(0, enforce_retention_duration=False, dry_run=False)
                table.create_checkpoint()
            if number in _AT:
                took = [look(ledger, number) for _ in range(_ROUNDS)]
                table = DeltaTable(path)
                print(
                    f"{number:>6,} batches, {f'{kept} kept' if kept else 'all kept':>9}: {len(table.file_uris()):>4} files, "
                    f"{table.to_pyarrow_dataset().count_rows():>6,} rows, a look {median(took) * 1000:6.0f} ms "
                    f"({min(took) * 1000:.0f} to {max(took) * 1000:.0f})",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4_896)
    parser.add_argument("--kept", type=int, default=3 * _A_DAY)
    given = parser.parse_args()
    for each in (None, given.kept):
        main(given.batches, each)
