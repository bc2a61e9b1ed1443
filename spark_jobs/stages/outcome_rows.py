"""Makes the rows of compound_events, open_events and rejected_events out of outcomes.

Rejected rows have the bytes of their messages: workers copy them from the files of the raw tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from include.config.store import Store
from spark_jobs.rules.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_PAIRING, FILTERED
from spark_jobs.rules.rules import LEFT, REVERSED, RIGHT, Rules, source_names
from spark_jobs.rules.side_topics import SideTopics, pack, unpack
from spark_jobs.spark.local_workers import run_parts
from spark_jobs.spark.workers import Stage, are_few, are_for_own_workers, release_memory
from spark_jobs.stages.pairing_input import by_key, decide_keys
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.outbox import UPSERT
from spark_jobs.tables.parquet_files import NEW_FILE, FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import Share, read_share, shares
from spark_jobs.tables.schemas import COMPOUNDS, REJECTED, declared_schema, raw_table
from spark_jobs.tables.warehouse import Warehouse

# The reasons of rejection at pairing, by their number in `REFUSED`.
REASONS = tuple(str(reason) for reason in AT_PAIRING)
_SIDES = ("left", "right")
# An event that is rejected at pairing, without its bytes. `side`: LEFT or RIGHT; `partition`: with its topic (`side_topics`); `landed_in`: the
# batch that landed it.
REFUSED = pa.schema(
    {"side": pa.int8(), "partition": pa.int32(), "offset": pa.int64(), "reason": pa.int8(), "landed_in": pa.int64()}
)

_PLACES = np.dtype([("partition", "<i4"), ("offset", "<i8"), ("reason", "i1")])
# Columns of a raw table; `problem` becomes the reason.
_READ = ("problem", "topic", "partition", "offset", "record_timestamp", "key", "value")


def make_compounds(
    outcomes: pa.RecordBatch, known: pa.Table | None, rules: Rules, batch_id: int, declared: pa.Schema
) -> pa.RecordBatch:
    """Outcomes (`outcome_schema`) as rows of compound_events (columns: `declared`): pairs and single sides, `ts` the smaller of the two.

    `known`: `pair_id` and `revision` of compounds that consumers know from void batches (None: no such compounds); these get their next
    revision, all others their first.
    """
    return _as_compounds(_only(outcomes, *COMPOUND_KINDS), known, rules, batch_id, declared)


def _as_compounds(
    compounds: pa.RecordBatch, known: pa.Table | None, rules: Rules, batch_id: int, declared: pa.Schema
) -> pa.RecordBatch:
    columns = dict(zip(compounds.schema.names, compounds.columns, strict=True))
    for name, value in {"op": UPSERT, "batch_id": batch_id}.items():
        columns[name] = pa.repeat(pa.scalar(value, declared.field(name).type), compounds.num_rows)
    columns |= {"kind": columns["outcome"], "ts": pc.min_element_wise(columns["left_ts"], columns["right_ts"])}
    ids = []
    for name, side, topics in zip(("left", "right"), rules.pipeline.sides, rules.topics, strict=True):
        topic, partition = unpack(topics, columns[f"{name}_partition"])
        place = (part.cast(pa.string()) for part in (partition, columns[f"{name}_offset"]))
        ids.append(pc.binary_join_element_wise(topic, *place, "-"))
        columns |= {f"{name}_topic": topic, f"{name}_partition": partition, side.payload: columns[f"{name}_payload"]}
    columns["pair_id"] = pc.coalesce(*ids)
    columns["revision"] = _revisions(columns["pair_id"], known, declared.field("revision").type)
    return pa.record_batch([columns[name] for name in declared.names], schema=declared)


def _revisions(pair_ids: pa.Array, known: pa.Table | None, kind: pa.DataType) -> pa.Array:
    if known is None or not known.num_rows:
        return pa.repeat(pa.scalar(0, kind), len(pair_ids))
    last = known.group_by("pair_id").aggregate([("revision", "max")])
    at = pc.index_in(pair_ids, last["pair_id"].combine_chunks())
    following = pc.add(last["revision_max"].combine_chunks().take(at), 1)
    return pc.fill_null(following, 0).cast(kind)


def make_open(outcomes: pa.RecordBatch, rules: Rules, declared: pa.Schema) -> pa.RecordBatch:
    """Outcomes as rows of open_events (columns: `declared`): the events of sessions that are still open."""
    still_open = _only(outcomes, Outcome.OPEN)
    is_left, pipeline = pc.is_valid(still_open["left_offset"]), rules.pipeline
    columns = {name: still_open[name] for name in pipeline.key}
    columns |= _of_side(still_open, "offset", "ts", "payload", "batch_id")
    if pipeline.is_unordered:
        columns |= _of_side(still_open, REVERSED)
    columns |= _of_side(still_open, *source_names(pipeline))
    left, right = (unpack(mine, still_open[f"{side}_partition"]) for mine, side in zip(rules.topics, _SIDES, strict=True))
    columns |= {name: pc.coalesce(*both) for name, *both in zip(("topic", "partition"), left, right, strict=True)}
    columns["side"] = pc.if_else(is_left, "left", "right")
    return pa.record_batch([columns[name] for name in declared.names], schema=declared)


def make_refused(outcomes: pa.RecordBatch) -> pa.RecordBatch:
    """Outcomes as rows of `REFUSED`: the places of events that are rejected at pairing, with the reason."""
    refused = _only(outcomes, *map(Outcome, AT_PAIRING))
    side = pc.if_else(pc.is_valid(refused["left_offset"]), pa.scalar(LEFT, pa.int8()), pa.scalar(RIGHT, pa.int8()))
    reason = pc.index_in(refused["outcome"], pa.array(REASONS)).cast(pa.int8())
    columns = _of_side(refused, "partition", "offset", "batch_id") | {"side": side, "reason": reason}
    columns["landed_in"] = columns["batch_id"]
    return pa.record_batch([columns[name] for name in REFUSED.names], schema=REFUSED)


def _only(outcomes: pa.RecordBatch, *kinds: Outcome) -> pa.RecordBatch:
    return outcomes.filter(pc.is_in(outcomes["outcome"], pa.array([str(kind) for kind in kinds])))


def _of_side(outcomes: pa.RecordBatch, *names: str) -> dict[str, pa.Array]:
    """Columns of outcomes of single events, from the side that they have."""
    return {name: pc.coalesce(outcomes[f"left_{name}"], outcomes[f"right_{name}"]) for name in names}


def decide(events: DataFrame, rules: Rules, expected: int, batch_id: int) -> DataFrame:
    """The outcomes of about `expected` events (`event_schema`), decided key by key, as rows of compound_events.

    `kind` is the outcome: also what becomes no compound has a row.
    """
    declared = declared_schema(rules.pipeline, COMPOUNDS)
    schema = to_arrow_schema(declared)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (_as_compounds(outcomes, None, rules, batch_id, schema) for outcomes, _ in decide_keys(batches, rules))

    return by_key(events, rules.pipeline, expected).mapInArrow(rows, declared)


def write_rejected(warehouse: Warehouse, planned: LedgerRow, refused: pa.Table) -> list[NewFile]:
    """Writes files of rejected_events: the batch's messages with a problem, and the events refused at pairing, with bytes and reason.

    `refused` (`REFUSED`): their raw rows are read from the batches that landed them.
    """
    # With the side that has the share.
    work: list[tuple[int, Share]] = []
    stores: dict[int, Store] = {}
    for number, side in zip((LEFT, RIGHT), planned.pipeline.sides, strict=True):
        mine = refused.filter(pc.equal(refused["side"], number))
        batches = sorted({planned.batch_id, *pc.unique(mine["landed_in"]).to_pylist()})
        stores[number] = warehouse.store(raw_table(side))
        work += [(number, share) for share in shares(warehouse.files(raw_table(side), batches))]
    if not work:
        return []
    columns = [pa.array(range(len(work)), pa.int64()), pa.array(_places_by_share(work, refused), pa.binary())]
    numbers = pa.table(columns, ["id", "places"])
    stage = _writing_stage(stores, work, planned.topics, warehouse.place_for_files(REJECTED), planned.batch_id)
    rows = sum(file.rows for _, share in work for file in share.files)
    if are_few(rows):
        return NewFile.all_of(pa.Table.from_batches(stage(numbers.to_batches()), NEW_FILE))
    if are_for_own_workers(rows):
        # A slice would be handed over with the rows of all others.
        parts = (numbers.take([number]).to_batches() for number in range(len(work)))
        return NewFile.all_of(pa.Table.from_batches(run_parts(parts, stage), NEW_FILE))
    tasks = warehouse.spark.createDataFrame(numbers).repartitionById(len(work), F.col("id").cast("int"))
    return NewFile.all_of(tasks.mapInArrow(stage, from_arrow_schema(NEW_FILE)).toArrow())


def _places_by_share(work: Sequence[tuple[int, Share]], refused: pa.Table) -> list[bytes]:
    """The refused events that the files of each share can have, as bytes of `_PLACES`."""
    side, offset = refused["side"].to_numpy(), refused["offset"].to_numpy()
    places = np.empty(refused.num_rows, _PLACES)
    for name in _PLACES.names or ():
        places[name] = refused[name].to_numpy()
    places_by_share = []
    for number, share in work:
        spans = [(file.first, file.last) for file in share.files]
        low = min((-1 if first is None else first for first, _ in spans), default=0)
        high = max((2**63 - 1 if last is None else last for _, last in spans), default=-1)
        mine = places[(side == number) & (offset >= low) & (offset <= high)]
        places_by_share.append(np.sort(mine, order=("partition", "offset")).tobytes())
    return places_by_share


def _writing_stage(
    stores: Mapping[int, Store], work: Sequence[tuple[int, Share]], topics: SideTopics, place: FilePlace, batch_id: int
) -> Stage:
    """A stage that reads the shares with the numbers `id`, writes their rows at `places` into files, and returns these (`NewFile`)."""
    types = {field.name: field.type for field in place.schema}
    schema = pa.schema(
        [(name, pa.string() if name == "problem" else types[name]) for name in _READ] + [("batch_id", pa.int64())]
    )

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        release_memory()
        with FileWriter(place.store) as writer:
            for batch in batches:
                for number, places in zip(batch["id"].to_pylist(), batch["places"].to_pylist(), strict=True):
                    side, share = work[number]
                    known = _by_partition(np.frombuffer(places, _PLACES))
                    for rows in read_share(stores[side], share, schema, _where(batch_id, known)):
                        writer.write(_rejected(rows, topics[side], known, batch_id, place.schema))
            file = writer.finish()
        if file is not None:
            yield file.as_row()

    return run


def _where(batch_id: int, known: Mapping[int, npt.NDArray[np.void]]) -> ds.Expression | None:
    # Refused events can be anywhere among the offsets of their batch.
    return (
        None
        if known
        else (ds.field("batch_id") == batch_id) & ds.field("problem").is_valid() & (ds.field("problem") != FILTERED)
    )


def _by_partition(places: npt.NDArray[np.void]) -> dict[int, npt.NDArray[np.void]]:
    return {int(number): places[places["partition"] == number] for number in np.unique(places["partition"])}


def _rejected(
    rows: pa.RecordBatch,
    topics: tuple[str, ...],
    known: Mapping[int, npt.NDArray[np.void]],
    batch_id: int,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """The raw rows that this batch rejects, as rows of rejected_events."""
    of_batch = pc.and_(pc.equal(rows["batch_id"], batch_id), pc.fill_null(pc.not_equal(rows["problem"], FILTERED), False))
    problem = pc.if_else(of_batch, rows["problem"], pa.scalar(None, pa.string()))
    reason = pc.coalesce(problem, _reasons(rows, topics, known))
    columns = {name: rows[name] for name in _READ if name != "problem"} | {"reason": reason}
    columns["batch_id"] = pa.repeat(pa.scalar(batch_id, pa.int64()), rows.num_rows)
    return pa.record_batch([columns[name] for name in schema.names], schema=schema).filter(pc.is_valid(reason))


def _reasons(rows: pa.RecordBatch, topics: tuple[str, ...], known: Mapping[int, npt.NDArray[np.void]]) -> pa.Array:
    """The reasons of the rows refused at pairing, null for others."""
    partition, offset = pack(topics, rows["topic"], rows["partition"]).to_numpy(), rows["offset"].to_numpy()
    code = np.full(rows.num_rows, -1)
    for number, places in known.items():
        (mine,) = np.nonzero(partition == number)
        at = np.minimum(np.searchsorted(places["offset"], offset[mine]), len(places) - 1)
        hit = places["offset"][at] == offset[mine]
        code[mine[hit]] = places["reason"][at[hit]]
    return pa.array(REASONS).take(pa.array(code, mask=code < 0))
