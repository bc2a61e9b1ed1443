"""What a job read and wrote, for its outcome: topics and tables, with versions and rows, from the steps that it recorded in the ledger.

Airflow's operator makes OpenLineage's datasets of it (`include/airflow/lineage.py`). Nothing is read for it, so it costs no request.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from include.config.pipeline import Pipeline
from spark_jobs.kafka.clusters import settings_of
from spark_jobs.kafka.settings import address
from spark_jobs.rules.side_topics import SideTopics, topics_of
from spark_jobs.tables.ledger import recorded_steps
from spark_jobs.tables.ledger_rows import ALL_PUBLICATIONS, LANDED, PAIRED, PUBLISHED_REJECTED, REMOVALS, LedgerRow
from spark_jobs.tables.records import LIVE, LandedCounts, ReplayPlan
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, OPEN, REJECTED, declared_columns, raw_table, schemas
from spark_jobs.tables.tables import Tables

# They stand for the raw tables, the input topics and the topics that are published to.
_RAW, _INPUTS, _OUTPUTS = "raw tables", "input topics", "output topics"
_EVERYTHING = (_INPUTS, _RAW, OPEN, COMPOUNDS, REJECTED, _OUTPUTS)
# What each job reads, and what it writes, whether there was anything to do or not. The ledger is left out: every job reads and writes it, so it
# would lead from everything to everything.
_JOBS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "land_events": ((_INPUTS,), (_RAW,)),
    "pair_events": ((_RAW, OPEN), (COMPOUNDS, REJECTED, OPEN)),
    "replay_interval": ((_RAW, COMPOUNDS), (COMPOUNDS,)),
    "publish_compounds": ((COMPOUNDS,), (_OUTPUTS,)),
    "report_quality": (_EVERYTHING, (METRICS,)),
    "replay_late": ((REJECTED,), ()),
    "maintain_tables": ((), (_RAW, OPEN, COMPOUNDS, REJECTED, METRICS)),
    "reconcile": (_EVERYTHING, ()),
}
Dataset = dict[str, Any]


def lineage(job: str, tables: Tables) -> dict[str, Any]:
    """`batches`, `kind` and `interval` of what the job recorded, as texts, and its `inputs` and `outputs`; empty of a job that is no task.

    A dataset is `{"table": uri, …}` or `{"topic": name, "servers": bootstrap.servers, …}`, with its `version`, its `rows` and its `columns`
    ([name, SQL type]) where these are known. The version of a topic is the end of each partition, exclusive: `0:17,1:12`. Rows are those that
    the job read or wrote, not all that are there. Never raises: the work is done and recorded, and what tells of it fails no job.
    """
    if job not in _JOBS:
        return {}
    try:
        return _lineage(job, tables)
    except Exception as error:
        print(f"{job}: no lineage: {error}", file=sys.stderr)
        return {}


def _lineage(job: str, tables: Tables) -> dict[str, Any]:
    # Rows of maintenance have the versions of the batch that it went up to, which it changes.
    steps = [row for row in recorded_steps() if row.step not in REMOVALS]
    inputs, outputs = (list(dict.fromkeys(each)) for each in _of_jobs(job, steps))
    ends, read, written = _ends(steps), _rows_read(steps, tables.pipeline), _rows_written(steps)
    versions = steps[-1].versions if steps else {}
    # A table that is read and changed was read at an earlier version.
    before = {name: at for name, at in versions.items() if name not in _tables(outputs, tables.pipeline)}
    topics = topics_of(tables.pipeline, {at.topic for row in steps for at in row.offsets})
    return _of_run(steps) | {
        "inputs": _datasets(inputs, tables, topics, before, read, ends),
        "outputs": _datasets(outputs, tables, topics, versions, written, ends),
    }


def _of_jobs(job: str, steps: Iterable[LedgerRow]) -> tuple[list[str], list[str]]:
    """What the job reads and writes, with the work of others that it finished for them."""
    jobs = [job]
    for row in steps:
        if row.step == LANDED:
            jobs.append("land_events")
        if row.step == PAIRED:
            jobs.append("pair_events" if row.kind == LIVE else "replay_interval")
    inputs, outputs = ([name for each in jobs for name in _JOBS[each][side]] for side in (0, 1))
    return inputs + [REJECTED] * any(row.step == PUBLISHED_REJECTED for row in steps), outputs


def _of_run(steps: Sequence[LedgerRow]) -> dict[str, str]:
    if not steps:
        return {}
    first, last = (which(steps, key=lambda row: row.batch_id) for which in (min, max))
    both = first.batch_id < last.batch_id
    found = {"batches": f"{first.batch_id} to {last.batch_id}" if both else str(last.batch_id), "kind": last.kind}
    return found | ({"interval": str(last.plan.window)} if isinstance(last.plan, ReplayPlan) else {})


def _tables(names: Iterable[str], pipeline: Pipeline) -> list[str]:
    """The names of the tables among these."""
    raw = [raw_table(side) for side in pipeline.sides]
    return [table for name in names for table in (raw if name == _RAW else [name]) if table in schemas(pipeline)]


def _datasets(
    names: Sequence[str],
    tables: Tables,
    topics: SideTopics,
    versions: Mapping[str, int],
    rows: Mapping[str, int],
    ends: Mapping[str, str],
) -> list[Dataset]:
    pipeline, found = tables.pipeline, list[Dataset]()
    for topic in [topic for side in topics for topic in side] if _INPUTS in names else []:
        found.append(_topic(topic, pipeline, rows, ends))
    for table in _tables(names, pipeline):
        columns = declared_columns(pipeline, table)
        found.append(
            {"table": tables.path(table), "version": versions.get(table), "rows": rows.get(table), "columns": columns}
        )
    for topic in pipeline.output_topics if _OUTPUTS in names else ():
        columns = _message_fields(pipeline) if topic in pipeline.compound_topics else []
        found.append(_topic(topic, pipeline, rows, ends) | {"columns": columns})
    return found


def _topic(topic: str, pipeline: Pipeline, rows: Mapping[str, int], ends: Mapping[str, str]) -> Dataset:
    servers = address(settings_of(pipeline, topic))
    return {"topic": topic, "servers": servers, "version": ends.get(topic), "rows": rows.get(topic)}


def _message_fields(pipeline: Pipeline) -> list[tuple[str, str]]:
    """The fields of a message's value, with the types of the columns that they come from."""
    columns = dict(declared_columns(pipeline, COMPOUNDS))
    return [(name, columns[pipeline.value_sources[source]]) for name, source in pipeline.value_fields]


def _ends(steps: Iterable[LedgerRow]) -> dict[str, str]:
    """Topic -> where it was read to, or where it ended after publishing; a later step counts."""
    found: dict[str, dict[int, int]] = {}
    for row in steps:
        for at in row.offsets:
            found.setdefault(at.topic, {})[at.partition] = at.until_offset
        if row.step in ALL_PUBLICATIONS and row.output:
            found[row.published_to] = dict(row.output.ends)
    return {topic: ",".join(f"{number}:{end}" for number, end in sorted(each.items())) for topic, each in found.items()}


def _rows_read(steps: Iterable[LedgerRow], pipeline: Pipeline) -> Counter[str]:
    """Table or topic -> rows read. Where a side has several topics, the ledger does not count the records of each."""
    rows: Counter[str] = Counter()
    for row in steps:
        if row.step == LANDED:
            for side, number in zip(pipeline.sides, _landed(row.landed), strict=True):
                if side.topic_pattern is None and len(side.named_topics) == 1:
                    rows[side.named_topics[0]] += number
        if row.step == PAIRED and row.kind == LIVE:
            rows[OPEN] += row.paired.open_before
        if row.step in ALL_PUBLICATIONS:
            rows[REJECTED if row.step == PUBLISHED_REJECTED else COMPOUNDS] += _sent(row)
    return rows


def _rows_written(steps: Iterable[LedgerRow]) -> Counter[str]:
    """Table or topic -> rows written."""
    rows: Counter[str] = Counter()
    for row in steps:
        if row.step == LANDED:
            for side, number in zip(row.pipeline.sides, _landed(row.landed), strict=True):
                rows[raw_table(side)] += number
        if row.step == PAIRED:
            rows[COMPOUNDS] += row.paired.compounds
            rows[REJECTED] += row.paired.rejected
            # Each batch writes all of it.
            rows[OPEN] = row.paired.open_after
        if row.step in ALL_PUBLICATIONS:
            rows[row.published_to] += _sent(row)
    return rows


def _landed(counts: LandedCounts) -> tuple[int, int]:
    return counts.landed_left, counts.landed_right


def _sent(row: LedgerRow) -> int:
    return row.dead_letters.dead_letters if row.step == PUBLISHED_REJECTED else row.published.compounds
