"""Pairing: every event of a batch, and every event still open, gets exactly one outcome; the workers write what they decided."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from include.config.pipeline import Pipeline
from spark_jobs.rules.batch_rules import batch_rules
from spark_jobs.rules.conservation import check_conservation
from spark_jobs.rules.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.rules.rules import Rules
from spark_jobs.spark.session import expect_rows, is_many
from spark_jobs.spark.workers import Stage, give_back_memory, only_counted
from spark_jobs.stages.outcome_rows import REFUSED, compound_maker, open_maker, refused_maker
from spark_jobs.stages.pairing_input import batch_events
from spark_jobs.stages.rejected_rows import write_rejected
from spark_jobs.stages.whole_keys import by_key, decided_keys
from spark_jobs.tables.agreement import table_versions
from spark_jobs.tables.commit import EVERYTHING, commit, is_committed
from spark_jobs.tables.ledger import PAIRED, Ledger, LedgerRow
from spark_jobs.tables.parquet_files import FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import longest_texts
from spark_jobs.tables.records import OUTCOMES, PairedCounts
from spark_jobs.tables.warehouse import COMPOUNDS, OPEN, REJECTED, Warehouse, raw_table

_WRITTEN = (OPEN, COMPOUNDS, REJECTED)
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


def pair_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, landed: LedgerRow) -> LedgerRow:
    """Pairs one landed batch and gives its `paired` row."""
    started = datetime.now(UTC)
    open_before, accepted = planned.plan.open_before, landed.landed.accepted
    expect_rows(warehouse.spark, open_before + accepted)
    rules = batch_rules(planned.pipeline, landed.clock, previous_clock=planned.clock)
    decided = decided_batch(warehouse, planned, batch_events(warehouse, planned), rules, open_before + accepted)
    found = decided.outcomes
    check_conservation(open_before, accepted, found)
    compounds = sum(found.get(kind, 0) for kind in COMPOUND_KINDS)
    rejected = landed.landed.landed - accepted + sum(found.get(Outcome(reason), 0) for reason in AT_PAIRING)
    open_after = found.get(Outcome.OPEN, 0)
    batch_id = planned.batch_id

    def append_rejected() -> None:
        done = is_committed(warehouse, REJECTED, REJECTED, batch_id)
        commit(warehouse, REJECTED, [] if done else write_rejected(warehouse, planned, decided.refused), REJECTED, batch_id)

    writes: list[Callable[[], None]] = []
    if compounds:
        writes.append(partial(commit, warehouse, COMPOUNDS, decided.files[COMPOUNDS], COMPOUNDS, batch_id))
    if rejected:
        writes.append(append_rejected)
    if open_before or open_after:
        writes.append(partial(commit, warehouse, OPEN, decided.files[OPEN], OPEN, batch_id, EVERYTHING))
    # Their order does not matter: until `paired` is recorded, the next run writes what is missing.
    with ThreadPoolExecutor(max_workers=len(_WRITTEN)) as beside:
        # list() waits for all and raises what any of them raised.
        list(beside.map(lambda write: write(), writes))
    counts = PairedCounts(
        open_before=open_before,
        accepted=accepted,
        compounds=compounds,
        rejected=rejected,
        open_after=open_after,
        **{name: found.get(name, 0) for name in OUTCOMES},
    )
    versions = landed.versions | table_versions(warehouse, _WRITTEN)
    paired = landed.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired
