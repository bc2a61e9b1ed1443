"""Rows of rejected_events: the workers take them, bytes and all, out of the raw tables' files and write them where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import functions as F

from include.config.store import Store
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.spark.workers import Stage, give_back_memory
from spark_jobs.stages.outcome_rows import REASONS
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.parquet_files import WRITTEN, FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import Share, read_share, shares
from spark_jobs.tables.warehouse import REJECTED, Warehouse, raw_table

_PLACES = np.dtype([("partition", "<i4"), ("offset", "<i8"), ("reason", "i1")])
# Of a raw table; `problem` becomes the reason.
_READ = ("problem", "topic", "partition", "offset", "record_timestamp", "key", "value")


class _Work(NamedTuple):
    """A share of one raw table."""

    side: int
    share: Share


def write_rejected(warehouse: Warehouse, planned: LedgerRow, refused: pa.Table) -> list[NewFile]:
    """The batch's messages with a problem, and the events that pairing refused, each with its bytes and its reason, in files of the table.

    `refused`: `REFUSED`; their raw rows are looked for in the batches that landed them, and in no others.
    """
    work: list[_Work] = []
    stores: dict[int, Store] = {}
    for number, side in zip((LEFT, RIGHT), planned.pipeline.sides, strict=True):
        mine = refused.filter(pc.equal(refused["side"], number))
        batches = sorted({planned.batch_id, *pc.unique(mine["landed_in"]).to_pylist()})
        stores[number] = warehouse.store(raw_table(side))
        work += [_Work(number, share) for share in shares(warehouse.files(raw_table(side), batches))]
    if not work:
        return []
    columns = [pa.array(range(len(work)), pa.int64()), pa.array(_places_of_each(work, refused), pa.binary())]
    numbers = warehouse.spark.createDataFrame(pa.table(columns, ["id", "places"]))
    numbers = (
        numbers.coalesce(1) if len(work) <= len(stores) else numbers.repartitionById(len(work), F.col("id").cast("int"))
    )
    stage = _writing_stage(stores, work, warehouse.place_for_files(REJECTED), planned.batch_id)
    return [NewFile(*row) for row in numbers.mapInArrow(stage, WRITTEN).collect()]


def _places_of_each(work: Sequence[_Work], refused: pa.Table) -> list[bytes]:
    """Of each share the refused events that its files can have."""
    side, offset = refused["side"].to_numpy(), refused["offset"].to_numpy()
    places = np.empty(refused.num_rows, _PLACES)
    for name in _PLACES.names or ():
        places[name] = refused[name].to_numpy()
    found = []
    for one in work:
        spans = [(file.first, file.last) for file in one.share.files]
        low = min((-1 if first is None else first for first, _ in spans), default=0)
        high = max((2**63 - 1 if last is None else last for _, last in spans), default=-1)
        mine = places[(side == one.side) & (offset >= low) & (offset <= high)]
        found.append(np.sort(mine, order=("partition", "offset")).tobytes())
    return found


def _writing_stage(stores: Mapping[int, Store], work: Sequence[_Work], place: FilePlace, batch_id: int) -> Stage:
    """A stage from numbers of shares (`id`) with `places` to the files in which their rejected rows are by then (`NewFile`)."""
    types = {field.name: field.type for field in place.schema}
    schema = pa.schema(
        [(name, pa.string() if name == "problem" else types[name]) for name in _READ] + [("batch_id", pa.int64())]
    )

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        give_back_memory()
        with FileWriter(place.store) as file:
            for batch in batches:
                for number, places in zip(batch["id"].to_pylist(), batch["places"].to_pylist(), strict=True):
                    side, share = work[number]
                    known = _by_partition(np.frombuffer(places, _PLACES))
                    for rows in read_share(stores[side], share, schema, _where(batch_id, known)):
                        file.write(_rejected(rows, known, batch_id, place.schema))
            written = file.finish()
        if written is not None:
            yield pa.RecordBatch.from_pylist([written._asdict()])

    return run


def _where(batch_id: int, known: Mapping[int, npt.NDArray[np.void]]) -> ds.Expression | None:
    # Rows of a batch that landed a refused event can be anywhere among its offsets.
    return None if known else (ds.field("batch_id") == batch_id) & ds.field("problem").is_valid()


def _by_partition(places: npt.NDArray[np.void]) -> dict[int, npt.NDArray[np.void]]:
    return {int(number): places[places["partition"] == number] for number in np.unique(places["partition"])}


def _rejected(
    rows: pa.RecordBatch, known: Mapping[int, npt.NDArray[np.void]], batch_id: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Those of the raw rows that are rejected by this batch, as rows of the table."""
    of_batch = pc.equal(rows["batch_id"], batch_id)
    problem = pc.if_else(of_batch, rows["problem"], pa.scalar(None, pa.string()))
    reason = pc.coalesce(problem, _reasons(rows, known))
    columns = {name: rows[name] for name in _READ if name != "problem"} | {"reason": reason}
    columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows)
    found = pa.record_batch([columns[name] for name in schema.names], schema=schema)
    return found.filter(pc.is_valid(reason))


def _reasons(rows: pa.RecordBatch, known: Mapping[int, npt.NDArray[np.void]]) -> pa.Array:
    """The reasons of the rows that pairing refused, null for the others."""
    partition, offset = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    code = np.full(rows.num_rows, -1)
    for number, places in known.items():
        (mine,) = np.nonzero(partition == number)
        at = np.minimum(np.searchsorted(places["offset"], offset[mine]), len(places) - 1)
        hit = places["offset"][at] == offset[mine]
        code[mine[hit]] = places["reason"][at[hit]]
    return pa.array(REASONS).take(pa.array(code, mask=code < 0))
