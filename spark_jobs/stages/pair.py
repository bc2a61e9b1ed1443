"""Pairing: every event of a batch, and every open event, gets exactly one outcome; the workers write the rows that they decide."""

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
from spark_jobs.spark.session import MANY_ROWS
from spark_jobs.spark.workers import Stage, release_memory, skip_size_checks
from spark_jobs.stages.outcome_rows import REFUSED, compound_maker, open_maker, refused_maker, write_rejected
from spark_jobs.stages.pairing_input import batch_events, by_key, decide_keys
from spark_jobs.tables.commit import ALL_BATCHES, commit, is_committed
from spark_jobs.tables.integrity import table_versions
from spark_jobs.tables.ledger import PAIRED, Ledger, LedgerRow
from spark_jobs.tables.parquet_files import FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import longest_texts
from spark_jobs.tables.records import OUTCOMES, PairedCounts
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

_TABLES = (OPEN, COMPOUNDS, REJECTED)
# A worker returns a row for each event that it refuses, and one with counts and files in JSON (`written`).
_ANSWER = REFUSED.append(pa.field("written", pa.string()))


class PairingResult(NamedTuple):
    """The outcomes of a batch's events, before any commit."""

    # Outcome -> number of rows.
    outcomes: Mapping[str, int]
    # Events that are rejected at pairing (`REFUSED`).
    refused: pa.Table
    # Files of compound_events and open_events, by table.
    files: Mapping[str, list[NewFile]]


def decide_batch(warehouse: Warehouse, planned: LedgerRow, events: DataFrame, rules: Rules, expected: int) -> PairingResult:
    """Decides the batch's events (`event_schema`, about `expected`), and writes compounds and open events into files."""
    places = {table: warehouse.place_for_files(table) for table in (COMPOUNDS, OPEN)}
    stage = writing_stage(planned.pipeline, planned.batch_id, rules, places)
    with skip_size_checks(warehouse.spark, _longest_texts(warehouse, planned)) if expected >= MANY_ROWS else nullcontext():
        answers = by_key(events, rules.key, expected).mapInArrow(stage, from_arrow_schema(_ANSWER)).toArrow()
    is_refused = pc.is_null(answers["written"])
    written = [json.loads(text) for text in answers["written"].filter(pc.invert(is_refused)).to_pylist()]
    outcomes: Counter[str] = Counter()
    for each in written:
        outcomes.update(each["outcomes"])
    files = {table: [NewFile(*each[table]) for each in written if each[table]] for table in places}
    return PairingResult(outcomes, answers.filter(is_refused).drop_columns(["written"]), files)


def _longest_texts(warehouse: Warehouse, planned: LedgerRow) -> int | None:
    """An upper bound of the bytes of all texts of one event; None if not known."""
    tables = {raw_table(side): warehouse.files(raw_table(side), [planned.batch_id]) for side in planned.pipeline.sides}
    tables[OPEN] = warehouse.files(OPEN, version=planned.versions[OPEN])
    known = [longest_texts(warehouse.store(table), files) for table, files in tables.items()]
    return None if None in known else max(each for each in known if each is not None)


def writing_stage(pipeline: Pipeline, batch_id: int, rules: Rules, places: Mapping[str, FilePlace]) -> Stage:
    """A stage that decides the events of a task of `by_key`, writes compounds and open events into files, and returns `_ANSWER`."""
    make_compounds: Callable[..., pa.RecordBatch] = compound_maker(pipeline, batch_id, places[COMPOUNDS].schema)
    make_open = open_maker(pipeline, places[OPEN].schema)
    make_refused = refused_maker()

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        release_memory()
        counted: Counter[str] = Counter()
        with FileWriter(places[COMPOUNDS].store) as compounds, FileWriter(places[OPEN].store) as still_open:
            for outcomes, revisions in decide_keys(batches, rules):
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
    """Pairs one landed batch and returns its `paired` row."""
    started = datetime.now(UTC)
    open_before, accepted = planned.plan.open_before, landed.landed.accepted
    rules = batch_rules(planned.pipeline, landed.clock, previous_clock=planned.clock)
    decided = decide_batch(warehouse, planned, batch_events(warehouse, planned), rules, open_before + accepted)
    outcomes = decided.outcomes
    check_conservation(open_before, accepted, outcomes)
    compounds = sum(outcomes.get(kind, 0) for kind in COMPOUND_KINDS)
    rejected = landed.landed.landed - accepted + sum(outcomes.get(Outcome(reason), 0) for reason in AT_PAIRING)
    open_after = outcomes.get(Outcome.OPEN, 0)
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
        writes.append(partial(commit, warehouse, OPEN, decided.files[OPEN], OPEN, batch_id, ALL_BATCHES))
    # The order does not matter: until `paired` is recorded, the next run makes the missing commits.
    with ThreadPoolExecutor(max_workers=len(_TABLES)) as pool:
        # list() waits for all and raises the first error.
        list(pool.map(lambda write: write(), writes))
    counts = PairedCounts(
        open_before=open_before,
        accepted=accepted,
        compounds=compounds,
        rejected=rejected,
        open_after=open_after,
        **{name: outcomes.get(name, 0) for name in OUTCOMES},
    )
    versions = landed.versions | table_versions(warehouse, _TABLES)
    paired = landed.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired
