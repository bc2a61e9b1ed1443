"""Records of one side in their format, as the columns that landing writes.

Every format becomes JSON texts first, which one parser reads: what a key, a time and a payload are is said once, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import AVRO, JSON, Format, Pipeline, Side
from include.config.sources import KEY, VALUE, Source
from spark_jobs.faults.problems import NeedsOperator, warn
from spark_jobs.formats.avro import AvroBodies
from spark_jobs.formats.frames import HeaderName, SchemaKey, split_frames, split_message_indexes
from spark_jobs.formats.proto_schemas import ProtoSchema, compile_source
from spark_jobs.formats.protobuf import ProtobufBodies
from spark_jobs.formats.registry import VARIABLE, RegisteredSchema, Registry, registry_settings
from spark_jobs.formats.wanted import Tree
from spark_jobs.rules.compounds import problems_of_compounds
from spark_jobs.rules.layout import Layout, Path, layout_of
from spark_jobs.rules.parsed_columns import Columns, ParsedColumns, parse_columns
from spark_jobs.rules.reasons import FILTERED, Reason
from spark_jobs.rules.rules import Ints


class Bodies(Protocol):
    """Bodies of one schema."""

    def to_json(self, bodies: pa.Array) -> pa.Array:
        """The JSON text (string) of each body (binary); null where the body is no message of the schema."""

    def timestamp_unit(self, path: Path) -> str | None:
        """The format of times (`include.config.times`) that the schema declares for the field; None if it says nothing."""

    def json_path(self, path: Path) -> Path:
        """Where the field is in the texts."""


class JsonBodies:
    """JSON, which the parser judges."""

    def to_json(self, bodies: pa.Array) -> pa.Array:
        """The bodies."""
        return bodies

    def timestamp_unit(self, path: Path) -> str | None:
        """Nothing."""
        return None

    def json_path(self, path: Path) -> Path:
        """The path."""
        return path


class _Group(NamedTuple):
    """Records of one schema, by their indexes. `texts`: null where there is none, because of `problem`."""

    rows: Ints
    texts: pa.Array
    schema: Bodies
    problem: Reason


Decoder = Callable[[pa.Array, pa.Array | None], Iterator[_Group]]
Parser = Callable[[Columns], ParsedColumns]
T = TypeVar("T")
_JSON = JsonBodies()


def event_parser(pipeline: Pipeline, side: Side, latest_ts: int, registry: Registry | None) -> Parser:
    """A function from the records of a side to what they say. `latest_ts` = W + max_future (epoch ms, inclusive).

    `registry`: needed where the side's `needs_registry` holds. Raises NeedsOperator if the side's schema file cannot be used. The function
    raises RegistryProblem if a schema that was never seen cannot be asked for, and NeedsOperator if the registry refuses.
    """
    layout = layout_of(pipeline, side)
    decode_values = _decoder(side.format, "__value_schema_id", layout, registry, side)
    decode_keys = _decoder(side.key_format, "__key_schema_id", layout, registry)
    has_keys = side.key_format != JSON
    # Of a key that cannot be read nobody knows whether it is selected.
    is_selected_by_key = any(source.part == KEY for source, _ in layout.only)

    def parse(records: Columns) -> ParsedColumns:
        if not side.compounds:
            return parse_bodies(records)
        # A compound without a time is wrong: that of its record is when it was published.
        parsed = parse_bodies(records._replace(timestamp=pa.nulls(len(records.value), pa.int64())))
        return parsed._replace(problem=problems_of_compounds(side, parsed.problem, records.headers))

    def parse_bodies(records: Columns) -> ParsedColumns:
        parts = []
        keys = decode_keys(records.key, records.headers) if has_keys else [_all_json(records.value)]
        for of_key in keys:
            some = _rows(records, of_key.rows)
            some = some._replace(key=of_key.texts.cast(pa.binary())) if has_keys else some
            for of_value in decode_values(some.value, some.headers):
                own = _in_texts(_in_texts(layout, KEY, of_key.schema), VALUE, of_value.schema)
                texts = of_value.texts.cast(pa.binary())
                parsed = parse_columns(_rows(some, of_value.rows)._replace(value=texts), own, latest_ts)
                if of_value.problem != Reason.MALFORMED_JSON:
                    parsed = _with_problem(parsed, texts.is_null(), of_value.problem)
                if of_key.problem == Reason.UNKNOWN_SCHEMA:
                    everything = pa.repeat(pa.scalar(True), len(texts))
                    parsed = _with_problem(parsed, everything, of_key.problem, also_filtered=is_selected_by_key)
                parts.append((of_key.rows[of_value.rows], parsed))
        return _joined(parts)

    return parse


def check_schema_files(pipeline: Pipeline) -> None:
    """Raises NeedsOperator if a side's schema file cannot be used, or the settings of a registry are missing that records or messages need."""
    for side in pipeline.sides:
        if side.schema:
            _of_file(side, None)
    if pipeline.output_format != JSON or pipeline.key_has_schema or any(side.needs_registry for side in pipeline.sides):
        registry_settings()


def _decoder(
    form: Format, header: HeaderName, layout: Layout, registry: Registry | None, side: Side | None = None
) -> Decoder:
    """A function from values and headers of records to groups. `side`: None for the records' keys."""
    part = VALUE if side else KEY
    if form == JSON:
        return lambda values, _: iter([_all_json(values)])
    if side and side.schema:
        schema = _of_file(side, _wanted(layout, part))
        return lambda values, _: iter([_Group(np.arange(len(values)), schema.to_json(values), schema, Reason.UNDECODABLE)])
    if registry is None:
        raise NeedsOperator(
            f"format {form} needs a schema registry: set the connection schema_registry_default ({VARIABLE} outside Airflow)"
        )
    schemas = _Schemas(_wanted(layout, part))

    def decode(values: pa.Array, headers: pa.Array | None) -> Iterator[_Group]:
        frames = split_frames(values, headers, header)
        rest, unknown = np.ones(len(values), bool), [np.arange(0)]
        for key, rows in frames.groups():
            registered = registry.schema(key)
            if registered is None:
                # Producers choose the ids, so there may be as many as records.
                unknown.append(rows)
                continue
            told = None if frames.told is None else _take(frames.told, rows)
            for group in schemas.decode(key, registered, _take(frames.bodies, rows), told):
                yield group._replace(rows=rows[group.rows])
                rest[rows[group.rows]] = False
        if len(rows := np.sort(np.concatenate(unknown))):
            yield _without_texts(rows, Reason.UNKNOWN_SCHEMA)
            rest[rows] = False
        if rest.any() or not len(values):
            yield _without_texts(np.flatnonzero(rest), Reason.UNDECODABLE)

    return decode


class _Schemas:
    """The schemas that records name, each compiled once."""

    def __init__(self, wanted: Tree | None) -> None:
        self._wanted = wanted
        # Avro and JSON schemas, and messages of Protobuf schemas. None: it cannot be used.
        self._usable: dict[SchemaKey, Bodies | None] = {}
        self._files: dict[SchemaKey, ProtoSchema | None] = {}
        self._messages: dict[tuple[SchemaKey, tuple[int, ...]], Bodies] = {}
        self._warned: set[SchemaKey] = set()

    def decode(
        self, key: SchemaKey, registered: RegisteredSchema, bodies: pa.Array, told: pa.Array | None
    ) -> Iterator[_Group]:
        """The groups of records of one schema, without those that cannot be messages of it. `told`: see `Frames`."""
        if registered.kind == "PROTOBUF":
            if file := self._once(self._files, key, lambda: compile_source(registered.text, dict(registered.references))):
                messages = split_message_indexes(bodies, told)
                for path, rows in messages.groups():
                    if schema := self._message(key, file, path):
                        yield _Group(rows, schema.to_json(_take(messages.bodies, rows)), schema, Reason.UNDECODABLE)
        elif schema := self._once(self._usable, key, lambda: _of_registry(registered, self._wanted)):
            reason = Reason.MALFORMED_JSON if schema is _JSON else Reason.UNDECODABLE
            yield _Group(np.arange(len(bodies)), schema.to_json(bodies), schema, reason)

    def _once(self, known: dict[SchemaKey, T | None], key: SchemaKey, make: Callable[[], T]) -> T | None:
        if key not in known:
            try:
                known[key] = make()
            except ValueError as problem:
                # One bad schema must not keep the records of the others from being landed.
                self._warn(key, str(problem))
                known[key] = None
        return known[key]

    def _message(self, key: SchemaKey, file: ProtoSchema, path: tuple[int, ...]) -> Bodies | None:
        """None if the file has no such message: nothing is kept of that, since producers choose the path."""
        if (key, path) not in self._messages:
            try:
                self._messages[key, path] = ProtobufBodies(file.message_at(path), self._wanted)
            except ValueError as problem:
                self._warn(key, str(problem))
                return None
        return self._messages[key, path]

    def _warn(self, key: SchemaKey, problem: str) -> None:
        if key not in self._warned:
            warn(f"records of schema {key} of the registry are rejected: {problem}")
            self._warned.add(key)


def _of_registry(registered: RegisteredSchema, wanted: Tree | None) -> Bodies:
    if registered.kind == "AVRO":
        return AvroBodies(registered.text, [text for _, text in registered.references], wanted)
    return _JSON


def _of_file(side: Side, wanted: Tree | None) -> Bodies:
    try:
        if side.format == AVRO:
            return AvroBodies(side.schema or "", (), wanted)
        return ProtobufBodies(compile_source(side.schema or "", {}).message_named(side.message or ""), wanted)
    except ValueError as problem:
        raise NeedsOperator(f"the schema file of {side.input} cannot be used: {problem}") from None


def _wanted(layout: Layout, part: str) -> Tree | None:
    """The fields of the part that the layout reads; None: all of it."""
    paths = [source.path for source in layout.all_sources if source.part == part]
    if part == VALUE and () in paths:
        return None
    tree: dict[str, Tree] = {}
    # A path that ends where another one goes on wants all that is there, so the shortest come last.
    for path in sorted(filter(None, paths), key=len, reverse=True):
        at = tree
        for name in path[:-1]:
            at = at.setdefault(name, {})  # type: ignore[assignment]
        at[path[-1]] = {}
    return tree


def _in_texts(layout: Layout, part: str, schema: Bodies) -> Layout:
    """The layout by the names of fields in the texts, with the format of times that the schema declares, if the pipeline says none."""
    if schema is _JSON:
        return layout

    def there(source: Source) -> Source:
        return source._replace(path=schema.json_path(source.path)) if source.part == part and source.path else source

    times, time = layout.times, layout.time
    if times.format is None and time.part == part and time.path:
        times = replace(times, format=schema.timestamp_unit(time.path))
    return layout._replace(
        sources=tuple(map(there, layout.sources)),
        time=there(time),
        times=times,
        payload=there(layout.payload),
        only=tuple((there(source), allowed) for source, allowed in layout.only),
    )


def _rows(records: Columns, rows: Ints) -> Columns:
    if len(rows) == len(records.value):
        return records
    return Columns(*(None if column is None else _take(column, rows) for column in records))


def _take(column: pa.Array, rows: Ints) -> pa.Array:
    # Groups ascend, so as many are all.
    return column if len(rows) == len(column) else column.take(pa.array(rows))


def _all_json(values: pa.Array) -> _Group:
    return _Group(np.arange(len(values)), values, _JSON, Reason.MALFORMED_JSON)


def _without_texts(rows: Ints, problem: Reason) -> _Group:
    return _Group(rows, pa.nulls(len(rows), pa.binary()), _JSON, problem)


def _with_problem(parsed: ParsedColumns, where: pa.Array, problem: Reason, also_filtered: bool = False) -> ParsedColumns:
    """The columns with this problem in these rows (bool), unless they are filtered."""
    rows = where if also_filtered else pc.and_(where, pc.fill_null(pc.not_equal(parsed.problem, FILTERED), True))
    return parsed._replace(problem=pc.if_else(rows, str(problem), parsed.problem)) if pc.any(rows).as_py() else parsed


def _joined(parts: list[tuple[Ints, ParsedColumns]]) -> ParsedColumns:
    """The columns of all groups, in the order of the records."""
    if len(parts) == 1:
        return parts[0][1]
    order = pa.array(np.argsort(np.concatenate([rows for rows, _ in parts])))

    def together(columns: Iterable[pa.Array]) -> pa.Array:
        return pa.concat_arrays(list(columns)).take(order)

    keys = [together(key) for key in zip(*(parsed.key for _, parsed in parts), strict=True)]
    return ParsedColumns(
        keys, *(together(getattr(each, name) for _, each in parts) for name in ("ts", "payload", "problem"))
    )
