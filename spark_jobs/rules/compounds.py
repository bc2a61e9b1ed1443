"""Records that are compounds of another pipeline: which compound each is, which revision of it, and which events a later revision supersedes.

A publisher names both in the headers of its messages. A retraction takes a compound back and has no value.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Side
from spark_jobs.rules.parsed_columns import HEADERS, header_texts
from spark_jobs.rules.parsing import is_utf8
from spark_jobs.rules.reasons import Reason
from spark_jobs.rules.rules import SOURCE, SOURCE_PAIR_ID, SOURCE_REVISION, SUPERSEDED

_LARGEST_REVISION = 2**31 - 1
_UPSERT, _RETRACT = b"upsert", b"retract"


def source_columns(side: Side, headers: pa.Array) -> dict[str, pa.Array]:
    """The columns of `SOURCE` of a side's records, given their headers; null where a record names no compound, or the side has none.

    >>> from dataclasses import replace
    >>> from include.config.pipeline import PIPELINES
    >>> from include.config.pipeline_file import load_pipeline
    >>> calls = load_pipeline(PIPELINES / "calls.yaml")
    >>> named = [{"key": "pair-id", "value": b"a-0-7"}, {"key": "revision", "value": b"1"}, {"key": "op", "value": b"upsert"}]
    >>> headers = [named, named[:2], None]
    >>> found = source_columns(replace(calls.left, compounds=True), pa.array(headers, HEADERS))
    >>> [column.to_pylist() for column in found.values()]
    [['a-0-7', None, None], [1, None, None]]
    """
    rows = len(headers)
    if not side.compounds:
        return {field.name: pa.nulls(rows, field.type) for field in SOURCE}
    named = zip(*(header_texts(headers, name, rows) for name in ("pair-id", "revision", "op")), strict=True)
    found = [_source(*texts) for texts in named]
    return {field.name: pa.array([each[at] for each in found], field.type) for at, field in enumerate(SOURCE)}


def _source(pair_id: bytes | None, revision: bytes | None, op: bytes | None) -> tuple[str, int] | tuple[None, None]:
    # What is no compound supersedes none.
    if op not in (_UPSERT, _RETRACT):
        return None, None
    # Ten digits are enough for any revision, and int() is slow for millions of them.
    if not pair_id or not is_utf8(pair_id) or not revision or not revision.isdigit() or len(revision) > 10:
        return None, None
    number = int(revision)
    return (pair_id.decode(), number) if number <= _LARGEST_REVISION else (None, None)


def problems_of_compounds(side: Side, problems: pa.Array, headers: pa.Array | None) -> pa.Array:
    """The problems of a side's records, with those that their headers show: a retraction, whatever else is wrong, and a record that is no compound."""
    headers = pa.nulls(len(problems), HEADERS) if headers is None else headers
    ops = pa.array(header_texts(headers, "op", len(problems)), pa.binary())
    is_compound = source_columns(side, headers)[SOURCE_PAIR_ID].is_valid()
    retracts = pc.and_(is_compound, pc.fill_null(pc.equal(ops, _RETRACT), False))
    stays = pc.or_(is_compound, problems.is_valid())
    return pc.if_else(retracts, str(Reason.RETRACTION), pc.if_else(stays, problems, str(Reason.NOT_COMPOUND)))


def mark_superseded(events: pa.Table, landed: Iterable[pa.Table]) -> pa.Table:
    """The events, `superseded` true for those of which a later revision is in one of the `landed` tables (`side` and the columns of `SOURCE`)."""
    by = ["side", SOURCE_PAIR_ID]
    revised = pa.concat_tables(rows.select([*by, SOURCE_REVISION]) for rows in landed)
    newest = revised.filter(pc.greater(revised[SOURCE_REVISION], 0)).group_by(by).aggregate([(SOURCE_REVISION, "max")])
    if not newest.num_rows:
        return events
    superseded = pa.repeat(pa.scalar(False), events.num_rows)
    for number in pc.unique(newest["side"]).to_pylist():
        mine = newest.filter(pc.equal(newest["side"], number))
        known = mine[SOURCE_PAIR_ID].combine_chunks()
        last = mine[f"{SOURCE_REVISION}_max"].take(pc.index_in(events[SOURCE_PAIR_ID], known))
        later = pc.and_(pc.greater(last, events[SOURCE_REVISION]), pc.equal(events["side"], number))
        superseded = pc.or_(superseded, pc.fill_null(later, False))
    at = events.schema.get_field_index(SUPERSEDED)
    return events.set_column(at, events.schema.field(at), superseded)
