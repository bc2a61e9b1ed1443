"""Finds what names somebody in every table and on the quality pages: a whole key, or a value in one key field or in any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import escape

from include.config.pipeline import Pipeline, Side
from include.config.store import Store, list_names, read_text
from spark_jobs.corrections.healed_events import Batches, batches_with_unknown, decoded_rows, unknown_records
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.orphan_section import named
from spark_jobs.quality.orphans import user_labels
from spark_jobs.rules.parsing import normal_key
from spark_jobs.rules.reasons import ERASED, Reason
from spark_jobs.tables.erased_rows import NO_NAME, RowId, id_columns, row_ids
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import REMOVED_RAW, removed_through
from spark_jobs.tables.outbox import UPSERT
from spark_jobs.tables.read_files import InWorker
from spark_jobs.tables.schemas import COMPOUNDS, METRICS, OPEN, REJECTED, raw_table
from spark_jobs.tables.tables import Condition
from spark_jobs.tables.warehouse import Warehouse

# Of a raw row.
_PLACE = ["topic", "partition", "offset", "batch_id"]


class Person(NamedTuple):
    """Whose data it is. `fields`: names of key fields. With `together` the values are a key, one for each field in order, or with `either` also the
    other way round; otherwise there is one value, in any of the fields. `key_texts`: what was done to key fields, now and earlier in the pipeline's life.
    """

    fields: tuple[str, ...]
    values: tuple[str, ...]
    together: bool
    either: bool = False
    key_texts: tuple[tuple[str, ...], ...] = ((),)

    def _stored(self) -> dict[tuple[str, ...], bool]:
        """The values as tables have them, and whether records may write them in other case."""
        found: dict[tuple[str, ...], bool] = {}
        for key_text in self.key_texts:
            values = tuple(normal_key(value, key_text) for value in self.values)
            # What is trimmed to nothing is no key, and would be found everywhere.
            if all(values):
                found[values] = found.get(values, False) or not {"lower", "upper"}.isdisjoint(key_text)
        return found

    def _keys(self) -> list[tuple[tuple[str, str], ...]]:
        """Fields with their values; a row is theirs if it has all of one of these."""
        if not self.together:
            return [((field, value),) for field in self.fields for (value,) in sorted(self._stored())]
        orders = {each for values in self._stored() for each in ({values, values[::-1]} if self.either else {values})}
        return [tuple(zip(self.fields, each, strict=True)) for each in sorted(orders)]

    def has(self, column: Callable[[str], Any]) -> Any:
        """Whether a row's key is theirs, as a condition on columns."""
        keys = (reduce(and_, (column(name) == value for name, value in key)) for key in self._keys())
        return reduce(or_, keys)

    def named(self) -> set[tuple[str, str]]:
        """Label (see `user_labels`) and value of each that a breakdown or page may name."""
        labels = dict(zip(self.fields, user_labels(self.fields, self.either), strict=True))
        return {(labels[field], value) for key in self._keys() for field, value in key}

    def is_key(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Which rows have their key; null fields do not count."""
        keys = ([pc.fill_null(pc.equal(rows[name], value), False) for name, value in key] for key in self._keys())
        return reduce(pc.or_, (reduce(pc.and_, each) for each in keys))

    def is_in(self, texts: pa.Array) -> pa.BooleanArray:
        """Which byte strings have all of the values somewhere, as they are or as JSON writes them, in any case where keys are in one case."""
        stored = self._stored().items()
        return reduce(pc.or_, ((_has_in_any_case if any_case else _has)(texts, values) for values, any_case in stored))


def of_pipeline(warehouse: Warehouse, person: Person) -> Person:
    """The same person, with what the pipeline does to key fields and ever did."""
    settings = [warehouse.pipeline, *Ledger(warehouse).settings()]
    return person._replace(key_texts=tuple(sorted({each.key_text for each in settings})))


def person(pipeline: Pipeline, values: Sequence[str], field: str | None = None) -> Person:
    """Whose data the values name; raises ValueError with one line.

    >>> from include.config.pipeline import PIPELINES
    >>> from include.config.pipeline_file import load_pipeline
    >>> calls = load_pipeline(PIPELINES / "calls.yaml")
    >>> person(calls, ["ann", "bob"])
    Person(fields=('user1', 'user2'), values=('ann', 'bob'), together=True, either=False, key_texts=((),))
    >>> person(calls, ["ann"], "user2")
    Person(fields=('user2',), values=('ann',), together=False, either=False, key_texts=((),))
    """
    key = pipeline.key
    if not all(normal_key(value, pipeline.key_text) for value in values):
        raise ValueError("a value is empty, and no key field ever is")
    if field is not None and field not in key:
        raise ValueError(f"--field {field} is no field of the key: name one of {', '.join(key)}")
    if field is not None and pipeline.is_unordered:
        raise ValueError("with key_order: any a value may be in either field of the key: leave --field out")
    if len(values) == 1 and (field is not None or len(key) > 1):
        fields = (field,) if field else key
        return Person(fields, tuple(values), together=False, either=pipeline.is_unordered, key_texts=(pipeline.key_text,))
    if len(values) != len(key) or field is not None:
        raise ValueError(
            f"give one value for each of {', '.join(key)}, in this order, or one alone with or without --field; {len(values)} given"
        )
    return Person(key, tuple(values), together=True, either=pipeline.is_unordered, key_texts=(pipeline.key_text,))


class PersonalData(NamedTuple):
    """What names them. `rows`: by table, what each row is known by. `retract`: pair_id and revision of the compounds that hold now."""

    rows: dict[str, list[RowId]]
    retract: list[RowId]
    breakdowns: list[RowId]  # batch_id and key field
    pages: list[str]
    undecodable: int  # records of schemas that are still unknown

    @property
    def is_empty(self) -> bool:
        return not any((*self.rows.values(), self.breakdowns, self.pages))


def search(warehouse: Warehouse, person: Person, pages: Store) -> PersonalData:
    """Everything that names them now. Only reads."""
    pipeline = warehouse.pipeline
    batches, rows, undecodable = batches_with_unknown(warehouse), dict[str, list[RowId]](), 0
    for side in pipeline.sides:
        rows[raw_table(side)] = _raw_rows(warehouse, person, raw_table(side), batches)
        if batches:
            theirs, unknown = rows_of_unknown_schemas(warehouse, person, side, batches)
            rows[raw_table(side)] += theirs
            undecodable += unknown
    rows[OPEN] = _rows(warehouse, OPEN, pipeline.key, person.is_key, person.has)
    places, removed = {each[:3] for found in rows.values() for each in found}, Ledger(warehouse).removals()
    rows[REJECTED] = _rejected(warehouse, person, places, removed_through(removed, REMOVED_RAW))
    rows[COMPOUNDS] = _rows(warehouse, COMPOUNDS, pipeline.key, person.is_key, person.has)
    named = person.named()
    breakdowns = [
        (row["batch_id"], each["field"])
        for row in warehouse.small_rows(METRICS, 1, columns=["batch_id", "breakdowns"])
        for each in row["breakdowns"] or ()
        if (each["field"], each["value"]) in named
    ]
    return PersonalData(rows, _valid(warehouse, rows[COMPOUNDS]), breakdowns, sorted(_pages(pages, person)), undecodable)


def _rows(
    warehouse: Warehouse,
    table: str,
    columns: Sequence[str],
    found: Callable[[pa.RecordBatch], pa.BooleanArray],
    where: Condition | None = None,
) -> list[RowId]:
    """The rows of the newest version that `found` finds by these columns. `where`: a condition that all of them fit."""
    ids = id_columns(table)
    known, wanted = warehouse.place_for_files(table).schema, list(dict.fromkeys((*columns, *ids)))
    returned = pa.schema([known.field(name) for name in ids])
    made = InWorker(lambda rows: rows.filter(found(rows)).select(ids), returned, is_summary=True)
    table_of_ids = warehouse.reading(table, wanted, where=where, made=made).to_arrow()
    return [each for batch in table_of_ids.to_batches() for each in row_ids(batch, table)]


def _raw_rows(warehouse: Warehouse, person: Person, table: str, batches: Batches) -> list[RowId]:
    """By their key; rows that have a problem, and so perhaps no key, by their bytes, too. Without those of `rows_of_unknown_schemas`."""
    key, apart = warehouse.pipeline.key, pa.array(sorted(batches), pa.int64())

    def found(rows: pa.RecordBatch) -> pa.BooleanArray:
        of_unknown = pc.and_(
            pc.equal(rows["problem"], str(Reason.UNKNOWN_SCHEMA)), pc.is_in(rows["batch_id"], value_set=apart)
        )
        others = pc.and_(pc.not_equal(rows["problem"], ERASED), pc.invert(of_unknown))
        return pc.and_(_is_theirs(person, key, rows, rows), pc.fill_null(others, True))

    columns = [*key, "key", "value", "headers", "problem"]
    return _rows(warehouse, table, columns, found, lambda column: column("problem").is_valid() | person.has(column))


def rows_of_unknown_schemas(warehouse: Warehouse, person: Person, side: Side, batches: Batches) -> tuple[list[RowId], int]:
    """Raw rows whose schema was unknown when these batches landed them: theirs, and how many are undecodable still.

    By their key as replays read it now, without asking the registry; where there is none, by their bytes.
    """
    read, key, place = decoded_rows(warehouse, batches, side, vain_requests=0), warehouse.pipeline.key, _PLACE
    returned = pa.schema([("topic", pa.string()), *((name, pa.int64()) for name in place[1:]), ("undecodable", pa.int64())])

    def make(rows: pa.RecordBatch) -> pa.RecordBatch:
        # In this order `read` leaves them.
        rows = rows.take(pc.sort_indices(rows["batch_id"]))
        decoded = read(rows)
        theirs = decoded.filter(_is_theirs(person, key, decoded, rows)).select(place).to_pylist()
        unknown = pc.sum(pc.equal(decoded["problem"], str(Reason.UNKNOWN_SCHEMA))).as_py() or 0
        return pa.RecordBatch.from_pylist([*theirs, {"undecodable": unknown}], schema=returned)

    found = unknown_records(warehouse, side, batches, InWorker(make, returned, is_summary=True)).toArrow().to_pylist()
    theirs = [tuple(row[name] for name in place) for row in found if row["undecodable"] is None]
    return theirs, sum(row["undecodable"] or 0 for row in found)


def _is_theirs(person: Person, key: Sequence[str], keys: pa.RecordBatch, records: pa.RecordBatch) -> pa.BooleanArray:
    """By the key; records without a whole one by their bytes, too."""
    has_key = reduce(pc.and_, (pc.is_valid(keys[name]) for name in key))
    return pc.or_(person.is_key(keys), pc.and_(pc.invert(has_key), person.is_in(_bytes(records))))


def _rejected(warehouse: Warehouse, person: Person, places: set[RowId], removed: int) -> list[RowId]:
    """Those of the records at these places; by their bytes those of the batches up to `removed`, whose raw rows were removed for their age."""

    def found(rows: pa.RecordBatch) -> pa.BooleanArray:
        here = pa.array([each[:3] in places for each in row_ids(rows, REJECTED)], pa.bool_())
        alone = pc.less_equal(rows["batch_id"], removed)
        return pc.or_(here, pc.and_(alone, person.is_in(_joined([rows["key"], rows["value"]]))))

    return _rows(warehouse, REJECTED, ["key", "value"], found)


def _valid(warehouse: Warehouse, rows: Sequence[RowId]) -> list[RowId]:
    """Of these compounds those that are the last revision of their pair_id, and no retraction."""
    mine, ids = set(rows), {pair_id for pair_id, *_ in rows}
    last: dict[str, tuple[int, RowId, str]] = {}
    for row in _revisions(warehouse, ids):
        known = (row["revision"], (row["pair_id"], row["revision"], row["batch_id"]), row["op"])
        last[row["pair_id"]] = max(last.get(row["pair_id"], known), known)
    return [row[:2] for _, row, op in last.values() if op == UPSERT and row in mine]


def _revisions(warehouse: Warehouse, ids: set[str]) -> list[dict[str, Any]]:
    columns, wanted = ["pair_id", "revision", "batch_id", "op"], pa.array(sorted(ids), pa.string())
    made = InWorker(lambda rows: rows.filter(pc.is_in(rows["pair_id"], value_set=wanted)))
    return list(warehouse.reading(COMPOUNDS, columns, made=made).to_arrow().to_pylist())


def _bytes(rows: pa.RecordBatch) -> pa.Array:
    """Key, value and the values of the headers of each record, one behind the other."""
    headers = rows["headers"]
    values = [b" ".join(each["value"] or b"" for each in row or ()) for row in headers.to_pylist()]
    return _joined([rows["key"], rows["value"], pa.array(values, pa.binary())])


def _joined(columns: list[pa.Array]) -> pa.Array:
    parts = [pc.fill_null(column, b"") for column in columns]
    return pc.binary_join_element_wise(*parts, pa.scalar(b" ", columns[0].type))


def _has(texts: pa.Array, values: Sequence[str]) -> pa.BooleanArray:
    found = [reduce(pc.or_, (pc.match_substring(texts, each.encode()) for each in _spelled(value))) for value in values]
    return pc.fill_null(reduce(pc.and_, found), False)


def _has_in_any_case(texts: pa.Array, values: Sequence[str]) -> pa.BooleanArray:
    folded = [value.casefold() for value in values]
    beyond_ascii = {each for value in folded for each in value if not each.isascii()}
    # As JSON may write such a letter, and as it is.
    escapes = {json.dumps(each)[1:-1]: letter for letter in beyond_ascii for each in (letter, letter.upper())}

    def is_there(text: bytes | None) -> bool:
        read = (text or b"").decode(errors="replace").casefold()
        for spelled, letter in escapes.items():
            read = read.replace(spelled, letter)
        return all(any(each in read for each in _spelled(value)) for value in folded)

    return pa.array(map(is_there, texts.to_pylist()), pa.bool_())


def _spelled(value: str) -> set[str]:
    """A value as messages write it: plain, and as JSON does, with or without escapes beyond ASCII.

    >>> sorted(_spelled("é")), _spelled("ann")
    (['\\\\u00e9', 'é'], {'ann'})
    """
    return {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}


def _pages(pages: Store, person: Person) -> Iterator[str]:
    """The pages that name them."""
    for name in list_names(pages):
        if name.endswith(".html") and nameless(read_text(pages, name) or "", person) is not None:
            yield name


def nameless(page: str, person: Person) -> str | None:
    """The page without their names; None if it has none of them."""
    replaced = page
    for field, value in sorted(person.named()):
        there, instead = (str(escape(named(Breakdown("", 0, field=field, value=each)))) for each in (value, NO_NAME))
        # Values may end alike.
        replaced = replaced.replace(f" {there}", f" {instead}")
    return None if replaced == page else replaced
