"""A batch's events decided by the workers: each writes what it has decided into files of the tables; counts, names of files and the places
of what was rejected come back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from include.config.pipeline import Pipeline
from spark_jobs.rules.rules import Rules
from spark_jobs.spark.session import is_many
from spark_jobs.spark.workers import Stage, give_back_memory, only_counted
from spark_jobs.stages.outcome_rows import REFUSED, compound_maker, open_maker, refused_maker
from spark_jobs.stages.whole_keys import by_key, decided_keys
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.parquet_files import FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import longest_texts
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, Warehouse, raw_table

# What a worker answers: once what it has written, in JSON, and a row for each event that it has rejected.
_ANSWER = REFUSED.append(pa.field("written", pa.string()))


class Decided(NamedTuple):
    """What became of a batch's events; nothing of it is in a table yet.

    `outcomes`: how many rows there are of each. `refused`: what is rejected at pairing (`REFUSED`). `files`: of compound_events and
    open_events, by table.
    """

    outcomes: Mapping[str, int]
    refused: pa.Table
    files: Mapping[str, list[NewFile]]


def decided_batch(warehouse: Warehouse, planned: LedgerRow, events: DataFrame, rules: Rules, expected: int) -> Decided:
    """The batch's events (`event_schema`, about `expected`) decided, their compounds and what stays open written into files."""
    places = {table: warehouse.place_for_files(table) for table in (COMPOUNDS, OPEN)}
    stage = writing_stage(planned.pipeline, planned.batch_id, rules, places)
    with only_counted(warehouse.spark, _longest_texts(warehouse, planned)) if is_many(expected) else nullcontext():
        answers = by_key(events, rules.key, expected).mapInArrow(stage, from_arrow_schema(_ANSWER)).toArrow()
    is_refused = pc.is_null(answers["written"])
    written = [json.loads(text) for text in answers["written"].filter(pc.invert(is_refused)).to_pylist()]
    outcomes: Counter[str] = Counter()
    for each in written:
        outcomes.update(each["outcomes"])
    files = {table: [NewFile(*each[table]) for each in written if each[table]] for table in places}
    return Decided(outcomes, answers.filter(is_refused).drop_columns(["written"]), files)


def _longest_texts(warehouse: Warehouse, planned: LedgerRow) -> int | None:
    """No event of the batch has texts of more bytes than this together; None if that is not known."""
    tables = {raw_table(side): warehouse.files(raw_table(side), [planned.batch_id]) for side in planned.pipeline.sides}
    tables[OPEN] = warehouse.files(OPEN, version=planned.versions[OPEN])
    known = [longest_texts(warehouse.store(table), files) for table, files in tables.items()]
    return None if None in known else max(each for each in known if each is not None)


def writing_stage(pipeline: Pipeline, batch_id: int, rules: Rules, places: Mapping[str, FilePlace]) -> Stage:
    """A stage from what `by_key` gives a task to answers; its compounds and open events are in files at their places by then."""
    make_compounds: Callable[..., pa.RecordBatch] = compound_maker(pipeline, batch_id, places[COMPOUNDS].schema)
    make_open = open_maker(pipeline, places[OPEN].schema)
    make_refused = refused_maker()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        give_back_memory()
        counted: Counter[str] = Counter()
        with FileWriter(places[COMPOUNDS].store) as compounds, FileWriter(places[OPEN].store) as still_open:
            for outcomes, revisions in decided_keys(batches, rules):
                for each in pc.value_counts(outcomes["outcome"]).to_pylist():
                    counted[each["values"]] += each["counts"]
                compounds.write(make_compounds(outcomes, revisions))
                still_open.write(make_open(outcomes))
                refused = make_refused(outcomes)
                if refused.num_rows:
                    yield pa.record_batch([*refused.columns, pa.nulls(refused.num_rows, pa.string())], schema=_ANSWER)
            answer: dict[str, object] = {"outcomes": counted}
            answer |= {COMPOUNDS: compounds.finish(), OPEN: still_open.finish()}
        yield pa.RecordBatch.from_pylist([{"written": json.dumps(answer)}], schema=_ANSWER)

    return run
