"""Shapes of input that break careless programs: how long, how it grows, how much memory, and whether the answer is exact.

    python -m tests.helpers.hostile_shapes [NAME …]

Runs what a Spark worker runs on each shape, at a quarter of its size and at its size, each three times in a fresh process, and
prints the least CPU seconds (user time: what the kernel takes to hand out memory is the machine's affair, and the memory is
shown), their growth, and peak memory. Exit 1 if an answer is wrong, if four times the events take more than five times the time and
more than a second, or if a process needs more than 3 GB. What Kafka and Spark do around the worker is not in these
figures: tests/benches/shapes.py.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import Dataset, dataset

from include.config.store import Store
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.rules import LEFT, Rules, event_schema
from spark_jobs.stages.outcome_rows import REASONS
from spark_jobs.stages.pair import writing_stage
from spark_jobs.stages.pairing_input import KEY_HASH, PACKED
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, schemas
from tests.helpers.hostile_events import SHAPES, Events, Shape
from tests.helpers.timeline import CALLS
from tests.unit.test_doc_examples import arrow_fields

# Columns of outcomes: which one it is, and the numbers of the left event and the right one.
SIDES = ["left_offset", "right_offset"]
OUTCOME = ["outcome", *SIDES]
MAX_GROWTH = 5.0
MAX_MB = 3_000


def _batches(events: Events, shape: Shape) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(events.ts), shape.rows_a_batch):
        number = np.arange(begin, min(begin + shape.rows_a_batch, len(events.ts)))
        users, of = np.unique(events.user[number], return_inverse=True)
        key = pa.array([str(user).ljust(shape.key_bytes, "u") for user in users]).take(pa.array(of))
        payload = [(str(n) if shape.distinct else "").ljust(shape.payload_bytes) for n in number]
        count = len(number)
        columns = [key, pa.array(["v"] * count), events.side[number], np.zeros(count), number, events.ts[number], payload]
        columns += [np.ones(count), np.zeros(count, dtype=bool)]
        schema = event_schema(shape.pipeline)
        yield pa.record_batch(
            [pa.array(column).cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )


def _user_seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def measure(name: str, size: int) -> dict[str, float | bool]:
    """One shape at one size in this process: CPU seconds without making the input, peak MB with it, and whether it is exact."""
    shape = SHAPES[name]
    pipeline, events = shape.pipeline, shape.events(size)
    making = 0.0

    def timed() -> Iterator[pa.RecordBatch]:
        nonlocal making
        source = _batches(events, shape)
        while True:
            begin = _user_seconds()
            batch = next(source, None)
            making += _user_seconds() - begin
            if batch is None:
                return
            yield _packed(batch, pipeline.key)

    with tempfile.TemporaryDirectory(prefix="pairing-") as root:
        columns = {table: re.findall(r"\w+", schemas(pipeline)[table]) for table in (COMPOUNDS, OPEN)}
        places = {
            table: FilePlace(Store(f"{root}/{table}").made(), pa.schema(arrow_fields(names)))
            for table, names in columns.items()
        }
        # Every session is over, and none was before.
        run = writing_stage(1, Rules(pipeline, clock=2**62, previous_clock=0), places)
        begin = _user_seconds()
        *refused, answer = run(timed())
        seconds = _user_seconds() - begin - making
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        written = {table: dataset(place.store.uri, format="parquet") for table, place in places.items()}
        return {"seconds": seconds, "peak_mb": peak, "exact": exact(_outcomes(written, refused, answer, events), events)}


def _outcomes(
    written: dict[str, Dataset], refused: list[pa.RecordBatch], answer: pa.RecordBatch, events: Events
) -> pa.Table:
    """What a worker wrote and answered, as outcomes with the numbers of their two sides."""
    found = []
    if written[COMPOUNDS].schema.names:
        found.append(written[COMPOUNDS].to_table(["kind", *SIDES]).rename_columns(OUTCOME))
    if written[OPEN].schema.names:
        rows = written[OPEN].to_table(["topic", "offset"])
        is_left = pc.equal(rows["topic"], CALLS.left.topic)
        found.append(one_sided(rows["offset"], is_left, pa.repeat(str(Outcome.OPEN), rows.num_rows)))
    found += [
        one_sided(rows["offset"], pc.equal(rows["side"], LEFT), pa.array(REASONS).take(rows["reason"])) for rows in refused
    ]
    collapsed = json.loads(answer["written"][0].as_py())["outcomes"].get(Outcome.COLLAPSED, 0)
    return with_collapsed(found, collapsed, events)


def one_sided(offset: pa.Array, is_left: pa.Array, outcome: pa.Array) -> pa.Table:
    """Single events as outcomes."""
    nothing = pa.scalar(None, pa.int64())
    sides = [pc.if_else(is_left, offset, nothing), pc.if_else(is_left, nothing, offset)]
    return pa.table([outcome, *sides], OUTCOME)


def with_collapsed(found: list[pa.Table], number: int, events: Events) -> pa.Table:
    """The outcomes and those of collapsed events, of which only the number is told: all that are in no other, if they are so many."""
    seen = np.concatenate([column.drop_null().to_numpy() for rows in found for column in rows.columns[1:]])
    collapsed = np.setdiff1d(np.arange(len(events.ts)), seen)
    if len(collapsed) == number:
        is_left = events.side[collapsed] == LEFT
        sides = [pa.array(collapsed, mask=~is_left), pa.array(collapsed, mask=is_left)]
        found = [*found, pa.table([pa.repeat(str(Outcome.COLLAPSED), number), *sides], OUTCOME)]
    return pa.concat_tables(found)


def _packed(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    """As `by_key` packs them, with a number for each key as Spark's hash gives one; in these shapes one key field tells the keys apart."""
    encoded = batch.column(key[0]).dictionary_encode()
    numbers = pa.array([zlib.crc32(text.encode()) for text in encoded.dictionary.to_pylist()], pa.int64())
    # All of the shapes are in partition 0 and batch 0, and no event is open yet.
    packed = batch.drop_columns(["batch_id", "partition", "is_open", "side"]).append_column(
        PACKED, batch["side"].cast(pa.int64())
    )
    return packed.append_column(KEY_HASH, numbers.take(encoded.indices))


def exact(outcomes: pa.Table, events: Events) -> bool:
    """Whether the outcomes are those that are known beforehand."""
    left, right = (outcomes.column(f"{side}_offset").fill_null(-1).to_numpy() for side in ("left", "right"))
    is_pair = pc.equal(outcomes.column("outcome"), "pair").to_numpy()
    partner = np.full(len(events.ts), -1)
    partner[left[is_pair]] = right[is_pair]
    alone = np.ones(len(events.ts), dtype=bool)
    alone[events.partner[events.partner >= 0]] = alone[events.partner >= 0] = False
    single = np.maximum(left, right)[~is_pair]
    kinds = np.where(events.side == LEFT, "left_only", "right_only")[single]
    told = outcomes.column("outcome").filter(pa.array(~is_pair))
    return (
        np.array_equal(partner, events.partner)
        and np.array_equal(np.sort(single), np.flatnonzero(alone))
        and pc.all(
            pc.equal(told, pa.array([events.rest] * len(single) if events.rest else kinds.tolist(), pa.string()))
        ).as_py()
        is not False
    )


def _fresh_processes(name: str, size: int) -> dict[str, float | bool]:
    command = [sys.executable, "-m", "tests.helpers.hostile_shapes", "--one", name, str(size)]
    runs = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(3)]
    least = {"seconds": min(run["seconds"] for run in runs), "peak_mb": max(run["peak_mb"] for run in runs)}
    return least | {"exact": all(run["exact"] for run in runs)}


def main(names: list[str]) -> int:
    """Prints a line a shape; gives the exit status."""
    failed = False
    print(f"{'shape':24} {'events':>9} {'s':>6} {'growth':>7} {'MB':>6}")
    for name in names:
        shape = SHAPES[name]
        quarter, whole = (_fresh_processes(name, size) for size in (shape.size // 4, shape.size))
        growth = whole["seconds"] / quarter["seconds"]
        wrong = [] if quarter["exact"] and whole["exact"] else ["wrong answer"]
        # Below a second, growth mostly tells which of the two sizes still fits into the machine's caches.
        wrong += ["grows too fast"] if growth > MAX_GROWTH and whole["seconds"] > 1.0 else []
        wrong += ["too much memory"] if whole["peak_mb"] > MAX_MB else []
        failed |= bool(wrong)
        figures = f"{shape.size:>9} {whole['seconds']:>6.2f} {growth:>7.1f} {whole['peak_mb']:>6.0f}"
        print(f"{name:24} {figures}  {shape.says}: {', '.join(wrong) or 'exact'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    elif unknown := [name for name in sys.argv[1:] if name not in SHAPES]:
        sys.exit(f"no such shape: {', '.join(unknown)} (there are: {', '.join(SHAPES)})")
    else:
        sys.exit(main(sys.argv[1:] or list(SHAPES)))
