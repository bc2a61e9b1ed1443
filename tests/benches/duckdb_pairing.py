"""The same pairing without Spark: DuckDB brings the keys together, the same kernel decides, Parquet to Parquet.

Two processes, each with the keys of one half, for that is how Spark uses two cores, too.
"""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from include.config.pipeline import Pipeline
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome, outcome_batches
from spark_jobs.rules.rules import Rules, event_schema
from spark_jobs.stages.pairing_input import complete_keys
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.schemas import raw_table
from spark_jobs.tables.warehouse import Warehouse

_PROCESSES = 2
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 65_536, 64_000_000


def has_duckdb() -> bool:
    """Whether it is installed; says so if not, for then there is nothing to compare with."""
    found = find_spec("duckdb") is not None
    if not found:
        print("  duckdb is not installed, so it is left out")
    return found


class DuckDBPairing:
    """Pairs the landed batch of a Pairing bench; its processes stay from one run to the next."""

    def __init__(self) -> None:
        self.pool: Pool = multiprocessing.get_context("spawn").Pool(_PROCESSES)

    def pair(self, warehouse: Warehouse, planned: LedgerRow, landed: LedgerRow) -> None:
        pipeline = planned.pipeline
        files = [DeltaTable(warehouse.path(raw_table(side))).file_uris() for side in pipeline.sides]
        folder = Path(warehouse.root) / "duckdb"
        folder.mkdir()
        rules = Rules(pipeline, landed.clock, planned.clock)
        shares = [(pipeline, rules, files, share, folder / f"{share}") for share in range(_PROCESSES)]
        counted = sum(self.pool.starmap(pair_share, shares))
        if counted != landed.landed.accepted:
            raise RuntimeError(f"{landed.landed.accepted} events in, {counted} out of DuckDB")
        shutil.rmtree(folder)

    def close(self) -> None:
        self.pool.terminate()


def pair_share(pipeline: Pipeline, rules: Rules, files: list[list[str]], share: int, folder: Path) -> int:
    """Pairs the keys of one share, writes compounds and open events into files of the folder, and counts the events."""
    folder.mkdir()
    counted = 0
    compounds = opened = None
    for events in complete_keys(sorted_events(pipeline, files, share), pipeline.key, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
        outcomes = pa.Table.from_batches(outcome_batches(events.cast(event_schema(pipeline)), rules))
        counted += 2 * outcomes.num_rows - sum(outcomes.column(f"{side}_offset").null_count for side in ("left", "right"))
        is_compound = pc.is_in(outcomes.column("outcome"), pa.array([str(kind) for kind in COMPOUNDS]))
        rows = as_compounds(outcomes.filter(is_compound), pipeline)
        still_open = outcomes.filter(pc.equal(outcomes.column("outcome"), str(Outcome.OPEN)))
        compounds = compounds or pq.ParquetWriter(folder / "compounds.parquet", rows.schema)
        opened = opened or pq.ParquetWriter(folder / "open.parquet", still_open.schema)
        compounds.write_table(rows)
        opened.write_table(still_open)
    for writer in (compounds, opened):
        if writer:
            writer.close()
    return counted


def sorted_events(pipeline: Pipeline, files: list[list[str]], share: int) -> Iterator[pa.RecordBatch]:
    """The accepted events of the share's keys, those of one key together."""
    import duckdb

    key = ", ".join(f'"{name}"' for name in pipeline.key)
    sides = " UNION ALL ".join(
        f'SELECT {key}, {side}::INT AS side, "partition", "offset", ts, payload, batch_id, false AS is_open '
        f"FROM read_parquet({names}) WHERE problem IS NULL AND hash({key}) % {_PROCESSES} = {share}"
        for side, names in enumerate(files)
    )
    connection: Any = duckdb.connect(config={"threads": 1, "preserve_insertion_order": False})
    yield from connection.sql(f"{sides} ORDER BY {key}").to_arrow_reader(_ROWS_AT_ONCE)
    connection.close()


def as_compounds(outcomes: pa.Table, pipeline: Pipeline) -> pa.Table:
    """Outcomes with the columns that a row of compound_events has besides."""
    ids = []
    for name, side in zip(("left", "right"), pipeline.sides, strict=True):
        place = [outcomes.column(f"{name}_{part}").cast(pa.string()) for part in ("partition", "offset")]
        ids.append(pc.binary_join_element_wise(side.topic, *place, "-"))
    ts = pc.min_element_wise(outcomes.column("left_ts"), outcomes.column("right_ts"))
    return outcomes.append_column("pair_id", pc.coalesce(*ids)).append_column("ts", ts)
