"""Pairing: every event of a batch, and every open event, gets exactly one outcome; the workers write the rows that they decide."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.faults.fault_points import fault_point
from spark_jobs.rules.conservation import check_conservation
from spark_jobs.rules.outcomes import COMPOUNDS as COMPOUND_KINDS
from spark_jobs.rules.outcomes import Outcome, outcome_batches
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.rules.rules import Rules, event_schema
from spark_jobs.spark.local_shuffle import COMPRESSED_OF_A_BUCKET, ROWS_OF_A_BUCKET, Buckets, TooLarge, shuffled
from spark_jobs.spark.local_workers import run_parts
from spark_jobs.spark.session import MANY_ROWS
from spark_jobs.spark.workers import Stage, are_few, are_for_own_workers, release_memory, skip_size_checks
from spark_jobs.stages.outcome_rows import REFUSED, make_compounds, make_open, make_refused, write_rejected
from spark_jobs.stages.pairing_input import (
    EVENTS_A_TASK,
    batch_events,
    bucket_of_key,
    by_key,
    decide_keys,
    events_to_shuffle,
    few_events,
)
from spark_jobs.tables.commit import ALL_BATCHES, commit, is_committed
from spark_jobs.tables.integrity import table_versions
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, LedgerRow
from spark_jobs.tables.parquet_files import FilePlace, FileWriter, NewFile
from spark_jobs.tables.read_files import longest_texts
from spark_jobs.tables.records import OUTCOMES, PairedCounts
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED, raw_table
from spark_jobs.tables.warehouse import Warehouse

_TABLES = (OPEN, COMPOUNDS, REJECTED)
# A worker returns a row for each event that it refuses, and one with counts and files in JSON (`written`).
_ANSWER = REFUSED.append(pa.field("written", pa.string()))


def decide_batch(
    warehouse: Warehouse, planned: LedgerRow, rules: Rules, expected: int
) -> tuple[Counter[str], pa.Table, dict[str, list[NewFile]]]:
    """Decides the batch's events, about `expected`, before any commit: returns how many rows have each outcome, the events that are rejected
    at pairing (`REFUSED`), and the files of compound_events and open_events, by table.
    """
    places = {table: warehouse.place_for_files(table) for table in (COMPOUNDS, OPEN)}
    few = few_events(warehouse, planned) if are_few(expected) else None
    if few is not None:
        decided = ((outcomes, None) for outcomes in outcome_batches(few, rules))
        answers = pa.Table.from_batches(write_outcomes(decided, planned.batch_id, rules, places), _ANSWER)
    else:
        by_workers = _decide_by_own_workers(warehouse, planned, rules, places, expected)
        answers = _decide_in_tasks(warehouse, planned, rules, places, expected) if by_workers is None else by_workers
    is_refused = pc.is_null(answers["written"])
    written = [json.loads(text) for text in answers["written"].filter(pc.invert(is_refused)).to_pylist()]
    outcomes: Counter[str] = Counter()
    for each in written:
        outcomes.update(each["outcomes"])
    files = {table: [NewFile(*each[table]) for each in written if each[table]] for table in places}
    return outcomes, answers.filter(is_refused).drop_columns(["written"]), files


def _decide_by_own_workers(
    warehouse: Warehouse, planned: LedgerRow, rules: Rules, places: Mapping[str, FilePlace], expected: int
) -> pa.Table | None:
    """None if Spark has to do it: for what only its way can do, or if the events of a few keys are too large for a worker."""
    pipeline = planned.pipeline
    if not are_for_own_workers(expected) or planned.plan.corrected is not None or pipeline.has_compounds:
        return None
    parts, read, size = events_to_shuffle(warehouse, planned)
    tasks = max(2, expected // EVENTS_A_TASK)
    count = tasks * (1 + max(expected // ROWS_OF_A_BUCKET, size // COMPRESSED_OF_A_BUCKET) // tasks)
    bucket_of, schema = partial(bucket_of_key, key=pipeline.key, buckets=count), event_schema(pipeline)

    def decide(given: tuple[Buckets, range]) -> Iterator[pa.RecordBatch]:
        release_memory()
        buckets, mine = given
        decided = ((outcomes, None) for each in buckets.read(mine) for outcomes in outcome_batches(each, rules))
        return write_outcomes(decided, planned.batch_id, rules, places)

    try:
        with shuffled(parts, read, bucket_of, schema) as buckets:
            portions = (range(number, count, tasks) for number in range(tasks))
            answers = run_parts(((buckets.only(mine), mine) for mine in portions), decide)
            return pa.Table.from_batches(answers, _ANSWER)
    except TooLarge as reason:
        print(f"Spark pairs this batch: {reason}")
        return None


def _decide_in_tasks(
    warehouse: Warehouse, planned: LedgerRow, rules: Rules, places: Mapping[str, FilePlace], expected: int
) -> pa.Table:
    stage, events = writing_stage(planned.batch_id, rules, places), batch_events(warehouse, planned)
    with skip_size_checks(warehouse.spark, _longest_texts(warehouse, planned)) if expected >= MANY_ROWS else nullcontext():
        return by_key(events, rules.pipeline, expected).mapInArrow(stage, from_arrow_schema(_ANSWER)).toArrow()


def _longest_texts(warehouse: Warehouse, planned: LedgerRow) -> int | None:
    """An upper bound of the bytes of all texts of one event; None if not known."""
    tables = {raw_table(side): warehouse.files(raw_table(side), [planned.batch_id]) for side in planned.pipeline.sides}
    tables[OPEN] = warehouse.files(OPEN, version=planned.versions[OPEN])
    known = [longest_texts(warehouse.store(table), files) for table, files in tables.items()]
    return None if None in known else max(each for each in known if each is not None)


def writing_stage(batch_id: int, rules: Rules, places: Mapping[str, FilePlace]) -> Stage:
    """A stage that decides the events of a task of `by_key`, and writes what `write_outcomes` does."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        release_memory()
        return write_outcomes(decide_keys(batches, rules), batch_id, rules, places)

    return run


def write_outcomes(
    decided: Iterable[tuple[pa.RecordBatch, pa.Table | None]], batch_id: int, rules: Rules, places: Mapping[str, FilePlace]
) -> Iterator[pa.RecordBatch]:
    """Writes compounds and open events among the outcomes into files, and yields `_ANSWER`. `decided`: see `decide_keys`."""
    counted: Counter[str] = Counter()
    with FileWriter(places[COMPOUNDS].store) as compounds, FileWriter(places[OPEN].store) as still_open:
        for outcomes, revisions in decided:
            for each in pc.value_counts(outcomes["outcome"]).to_pylist():
                counted[each["values"]] += each["counts"]
            compounds.write(make_compounds(outcomes, revisions, rules, batch_id, places[COMPOUNDS].schema))
            still_open.write(make_open(outcomes, rules, places[OPEN].schema))
            fault_point("paired_file_begun")
            refused = make_refused(outcomes)
            if refused.num_rows:
                yield pa.record_batch([*refused.columns, pa.nulls(refused.num_rows, pa.string())], schema=_ANSWER)
        answer = {"outcomes": counted, COMPOUNDS: compounds.finish(), OPEN: still_open.finish()}
    fault_point("paired_files_complete")
    yield pa.RecordBatch.from_pylist([{"written": json.dumps(answer)}], schema=_ANSWER)


def pair_batch(warehouse: Warehouse, ledger: Ledger, planned: LedgerRow, landed: LedgerRow) -> LedgerRow:
    """Pairs one landed batch and returns its `paired` row."""
    started = datetime.now(UTC)
    open_before, accepted = planned.plan.open_before, landed.landed.accepted
    rules = Rules(planned.pipeline, landed.clock, planned.clock, planned.topics)
    outcomes, refused, files = decide_batch(warehouse, planned, rules, open_before + accepted)
    check_conservation(open_before, accepted, outcomes)
    compounds = sum(outcomes[kind] for kind in COMPOUND_KINDS)
    rejected = landed.landed.landed - accepted - landed.landed.filtered + sum(outcomes[reason] for reason in AT_PAIRING)
    open_after = outcomes[Outcome.OPEN]
    batch_id = planned.batch_id

    def append_rejected() -> None:
        done = is_committed(warehouse, REJECTED, REJECTED, batch_id)
        commit(warehouse, REJECTED, [] if done else write_rejected(warehouse, planned, refused), REJECTED, batch_id)

    writes: list[Callable[[], None]] = []
    if compounds:
        writes.append(partial(commit, warehouse, COMPOUNDS, files[COMPOUNDS], COMPOUNDS, batch_id))
    if rejected:
        writes.append(append_rejected)
    if open_before or open_after:
        writes.append(partial(commit, warehouse, OPEN, files[OPEN], OPEN, batch_id, ALL_BATCHES))
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
        **{name: outcomes[name] for name in OUTCOMES},
    )
    versions = landed.versions | table_versions(warehouse, _TABLES)
    paired = landed.next_step(PAIRED, started, counts, versions=versions)
    ledger.append(paired)
    return paired
