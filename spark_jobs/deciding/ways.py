"""The two ways in which a batch's events are decided and its rows come into the tables.

By the workers: each writes what it has decided into files of the tables, and all that comes back are counts, names of files and the places
of what was rejected. By Spark: outcomes come back through Arrow, are kept, counted and written; twice the time, on any file system,
and able to look up which revision a compound comes with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from include.pipeline_config import Pipeline
from spark_jobs.deciding.rows import REFUSED, as_stage, compound_maker, compound_rows, open_maker, open_rows, refused_maker
from spark_jobs.deciding.whole_keys import by_key, decide, decider
from spark_jobs.pairing.reasons import AT_PAIRING
from spark_jobs.pairing.rules import Rules
from spark_jobs.rewinding.revisions import next_revisions
from spark_jobs.rewinding.target import CORRECTED_TO
from spark_jobs.session import is_many
from spark_jobs.stages import Stage, give_back_memory, only_counted
from spark_jobs.storage.commit import commit, commit_files
from spark_jobs.storage.ledger import LedgerRow
from spark_jobs.storage.table_files import FilePlace, FileWriter, NewFile
from spark_jobs.storage.tables import COMPOUNDS, OPEN, Warehouse

# What a worker tells: once what it has written, in JSON, and a row for each event that it has rejected.
_ANSWER = REFUSED.append(pa.field("told", pa.string()))


class Decided(NamedTuple):
    """What became of a batch's events; nothing of it is in a table yet.

    `outcomes`: how many rows there are of each. `refused`: what is rejected at pairing (`REFUSED`), landed in the batches `landed_in`.
    The last two functions commit what their names say, once for the batch.
    """

    outcomes: Mapping[str, int]
    refused: DataFrame
    landed_in: set[int]
    append_compounds: Callable[[], None]
    replace_open: Callable[[], None]


def decided_batch(
    warehouse: Warehouse, planned: LedgerRow, events: DataFrame, rules: Rules, expected: int
) -> AbstractContextManager[Decided]:
    """The batch's events (`event_schema`, about `expected`) decided, the faster way if it can be gone."""
    compounds, still_open = warehouse.place_for_files(COMPOUNDS), warehouse.place_for_files(OPEN)
    if compounds is None or still_open is None or CORRECTED_TO in planned.counts:
        return decided_by_spark(warehouse, planned, events, rules, expected)
    places = {COMPOUNDS: compounds, OPEN: still_open}
    return decided_by_workers(warehouse, planned, events, rules, expected, places)


@contextmanager
def decided_by_workers(
    warehouse: Warehouse, planned: LedgerRow, events: DataFrame, rules: Rules, expected: int, places: Mapping[str, FilePlace]
) -> Iterator[Decided]:
    """`places`: of the two tables that the workers write."""
    batch_id = planned.batch_id
    stage = writing_stage(planned.pipeline, batch_id, rules, places)
    # Kept, for whoever asked a second time would have the files written a second time.
    answers = (
        by_key(events, rules.key, expected).mapInArrow(stage, from_arrow_schema(_ANSWER)).persist(StorageLevel.DISK_ONLY)
    )
    try:
        with only_counted(events) if is_many(expected) else nullcontext():
            told = [json.loads(row["told"]) for row in answers.where(F.col("told").isNotNull()).select("told").collect()]
        outcomes: Counter[str] = Counter()
        for each in told:
            outcomes.update(each["outcomes"])
        files = {table: [NewFile(*each[table]) for each in told if each[table]] for table in places}
        yield Decided(
            outcomes=outcomes,
            refused=answers.where(F.col("told").isNull()).drop("told"),
            landed_in={batch for each in told for batch in each["landed_in"]},
            append_compounds=partial(commit_files, warehouse, COMPOUNDS, files[COMPOUNDS], COMPOUNDS, batch_id),
            replace_open=partial(commit_files, warehouse, OPEN, files[OPEN], OPEN, batch_id, "overwrite"),
        )
    finally:
        answers.unpersist()


def writing_stage(pipeline: Pipeline, batch_id: int, rules: Rules, places: Mapping[str, FilePlace]) -> Stage:
    """A stage from what `by_key` gives a task to answers; its compounds and open events are in files at their places by then."""
    make_compounds = compound_maker(pipeline, batch_id, places[COMPOUNDS].schema)
    make_open = open_maker(pipeline, places[OPEN].schema)
    make_refused, decide_all = refused_maker(pipeline), decider(rules)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        give_back_memory()
        counted: Counter[str] = Counter()
        landed_in: set[int] = set()
        with FileWriter(places[COMPOUNDS].folder) as compounds, FileWriter(places[OPEN].folder) as still_open:
            for outcomes in decide_all(batches):
                for each in pc.value_counts(outcomes["outcome"]).to_pylist():
                    counted[each["values"]] += each["counts"]
                compounds.write(make_compounds(outcomes))
                still_open.write(make_open(outcomes))
                refused = make_refused(outcomes)
                if refused.num_rows:
                    landed_in.update(pc.unique(refused["landed_in"]).to_pylist())
                    yield pa.record_batch([*refused.columns, pa.nulls(refused.num_rows, pa.string())], schema=_ANSWER)
            told: dict[str, object] = {"outcomes": counted, "landed_in": sorted(landed_in)}
            told |= {COMPOUNDS: compounds.finish(), OPEN: still_open.finish()}
        yield pa.RecordBatch.from_pylist([{"told": json.dumps(told)}], schema=_ANSWER)

    return run


@contextmanager
def decided_by_spark(
    warehouse: Warehouse, planned: LedgerRow, events: DataFrame, rules: Rules, expected: int
) -> Iterator[Decided]:
    """As `decided_by_workers`, the slower way."""
    pipeline, batch_id = planned.pipeline, planned.batch_id
    outcomes = decide(events, rules, expected).persist(StorageLevel.DISK_ONLY)

    def append_compounds() -> None:
        rows = next_revisions(warehouse, compound_rows(outcomes, pipeline, batch_id), planned.counts)
        commit(warehouse, COMPOUNDS, rows, COMPOUNDS, batch_id)

    def replace_open() -> None:
        commit(warehouse, OPEN, open_rows(outcomes, pipeline), OPEN, batch_id, "overwrite")

    try:
        counted = outcomes.groupBy("outcome").agg(F.count("*").alias("rows")).collect()
        found = {row["outcome"]: row["rows"] for row in counted}
        refused = outcomes.mapInArrow(as_stage(refused_maker(pipeline)), from_arrow_schema(REFUSED))
        landed_in = refused.select("landed_in").distinct().collect() if found.keys() & AT_PAIRING else []
        yield Decided(
            outcomes=found,
            refused=refused,
            landed_in={row["landed_in"] for row in landed_in},
            append_compounds=append_compounds,
            replace_open=replace_open,
        )
    finally:
        outcomes.unpersist()
