"""Reads a pipeline's YAML file and refuses what could not work.

The first error in a file is raised as a `PipelineError`: one line that names the file, the key and the consequence.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from include.config import setting_types as kinds
from include.config.pipeline import AVRO, JSON, ON_DATA, PROTOBUF, Maintenance, Pipeline, PipelineError, Side
from include.config.sources import KEY, RECORD_TIME, Source, parse_source
from include.config.times import zone_problem

# Schema files of the pipelines in a folder, in a folder in it.
SCHEMAS = "schemas"
_PIPELINE = TypeAdapter(Pipeline)
_UNKNOWN = "unknown key; nothing reads it, so it would silently do nothing"


class _EachKeyOnce(yaml.SafeLoader):
    """Refuses a repeated key; YAML would use its last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.MarkedYAMLError(problem=f"{key} is there twice", problem_mark=node.value[number][0].start_mark)
        return super().construct_mapping(node, deep)


def load_pipeline(path: str | Path) -> Pipeline:
    """The pipeline in a YAML file, its name the file's stem; raises PipelineError."""
    path = Path(path)
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _EachKeyOnce)
    except FileNotFoundError:
        raise PipelineError(f"{path}: no such file; a pipeline is a YAML file like include/pipelines/calls.yaml") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PipelineError(f"{path}: cannot be read as YAML: {_one_line(error)}") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{path}: holds no settings; start from include/pipelines/calls.yaml")
    # The keys of `output` are fields of the pipeline itself.
    if unknown := [key for key in document if str(key).startswith("output.")]:
        raise _refused(path, unknown[0], _UNKNOWN)
    for name in ("left", "right"):
        _read_schema(path, name, document.get(name))
    output = document.pop("output", None)
    if not isinstance(output, dict):
        raise _refused(path, "output", "missing; write {topic: …}, compounds would have nowhere to go")
    document |= {f"output.{key}": value for key, value in output.items()} | {"file name": path.stem}
    try:
        pipeline = _PIPELINE.validate_python(kinds.required_keys(Pipeline) | document)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        raise _refused(path, ".".join(map(str, first["loc"])), _problem(first)) from None
    for key, problem in _contradictions(pipeline):
        raise _refused(path, key, problem)
    return pipeline


def _read_schema(path: Path, name: str, side: object) -> None:
    """Puts the content of a side's schema file in the place of its name: a plan has to carry it, and clusters have no such file."""
    if not isinstance(side, dict) or side.get("schema") is None:
        return
    file = side["schema"]
    if not isinstance(file, str) or Path(file).name != file:
        raise _refused(path, f"{name}.schema", f"{file!r} is no name of a file in the folder {SCHEMAS} beside this one")
    try:
        side["schema"] = (path.parent / SCHEMAS / file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(path, f"{name}.schema", f"{SCHEMAS}/{file} cannot be read: {error}") from None


def _problem(error: ErrorDetails) -> object:
    """What is wrong with a value, or with a key that no setting has."""
    match error["type"]:
        case "value_error":
            return error["ctx"]["error"]
        case "literal_error":
            allowed = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
            return f"{error['input']!r} is none of {allowed}"
        case "bool_type":
            return f"{error['input']!r} is neither true nor false"
        case "unexpected_keyword_argument" | "invalid_key":
            return _UNKNOWN
    return error["msg"]


def _refused(path: Path, key: str, problem: object) -> PipelineError:
    return PipelineError(f"{path}: {key}: {_one_line(problem)}")


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _contradictions(p: Pipeline) -> Iterator[tuple[str, str]]:
    """Settings that cannot work together: the key, and why not."""
    yield from _contradictions_of_topics(p)
    for _, source in p.output_fields or ():
        if source not in p.value_sources:
            yield "output.fields", f"{source!r} is in no compound; write one of {', '.join(p.value_sources)}"
    columns = [*p.key, p.left.payload, p.right.payload]
    lower = [name.lower() for name in columns]
    for name in columns:
        # Delta's columns do not differ by case alone.
        if lower.count(name.lower()) > 1:
            yield name, "used twice among key and payloads; one column of the tables would hide the other"
    if p.is_unordered:
        yield from _contradictions_of_order(p, columns)
    for name, side in (("left", p.left), ("right", p.right)):
        yield from ((f"{name}.{key}", problem) for key, problem in _contradictions_of_side(p, side))
        if side.compounds:
            yield from ((key.format(name), problem) for key, problem in _contradictions_of_compounds(side, columns))
    if p.timestamp_zone is not None and not any(p.times(side).zone == p.timestamp_zone for side in p.sides):
        yield (
            "timestamp_zone",
            "nothing reads it: it is for texts (iso8601 or a pattern), and neither side has them without a zone of its own",
        )
    yield from _contradictions_of_values(p)
    if p.max_session_ms < p.gap_ms:
        yield "max_session", "must not be shorter than gap; sessions would be cut before they could end"
    if p.schedule == ON_DATA and p.consumer_group is None:
        yield "schedule", f"{ON_DATA} needs consumer_group; nobody would see what was landed, and what waits"
    if p.quality.silence_ms is None:
        for check, _ in p.quality.severities:
            if check in ("silent", "unpaired"):
                yield (
                    "quality.severities",
                    f"{check}: nothing judges it, because quality.silence is null; set a duration, or leave it out",
                )
    yield from _ages_in_the_wrong_order(p.maintenance)


def _contradictions_of_topics(p: Pipeline) -> Iterator[tuple[str, str]]:
    for name, side in (("left", p.left), ("right", p.right)):
        if (side.topic is None) == (side.topic_pattern is None):
            yield f"{name}.topic", "write a topic, a list of topics, or topic_pattern instead; one of them says what is read"
    places = [("left.topic", topic) for topic in p.left.named_topics]
    places += [("right.topic", topic) for topic in p.right.named_topics]
    places.append(("output.topic", p.output_topic))
    if p.output_orphans_topic is not None:
        places.append(("output.orphans_topic", p.output_orphans_topic))
    if p.output_rejected_topic is not None:
        places.append(("output.rejected_topic", p.output_rejected_topic))
    for (first, one), (second, other) in combinations(places, 2):
        if one == other:
            is_input = not second.startswith("output.") or not first.startswith("output.")
            otherwise = "their events could not be told apart" if is_input else "leave it out, for that is the default"
            if second == "output.rejected_topic":
                otherwise = "rejected records would be read again" if is_input else "they would stand among compounds"
            known = first.removesuffix(".topic").removesuffix("_topic")
            yield second, f"{other} is already the {known} topic; {otherwise}"
    for name, side in (("left", p.left), ("right", p.right)):
        for where, topic in places if side.topic_pattern is not None else ():
            if side.has(topic):
                yield (
                    f"{name}.topic_pattern",
                    f"{side.topic_pattern!r} matches {where}, {topic}; it would be read as {name} events",
                )


def _contradictions_of_order(p: Pipeline, columns: list[str]) -> Iterator[tuple[str, str]]:
    """What `key_order: any` cannot work with. `columns`: the names of key and payloads."""
    if len(p.key) != 2:
        yield (
            "key_order",
            f"any needs exactly two key fields, and key has {len(p.key)}; which of them change places would not be known",
        )
    taken = {name.lower() for name in (*kinds.DIRECTION_COLUMNS, *p.reversed_fields)}
    for name in columns:
        if name.lower() in taken:
            yield name, "with key_order: any a column or a field of messages has this name; one would hide the other"


def _contradictions_of_compounds(side: Side, columns: list[str]) -> Iterator[tuple[str, str]]:
    """What `compounds: true` cannot work with, `{}` for the side's name. `columns`: the names of key and payloads."""
    if side.timestamp is not None and parse_source(side.timestamp).part == RECORD_TIME:
        yield (
            "{}.timestamp",
            "the record of a compound has the time at which it was published, long after the call; name the field with ts",
        )
    if not isinstance(side.topic, str):
        yield (
            "{}.compounds",
            "true needs a side of one topic; each output topic is corrected on its own, so corrections on one would take back compounds on "
            "another; give each a pipeline of its own",
        )
    taken = {name.lower() for name in kinds.COMPOUND_COLUMNS}
    for name in columns:
        if name.lower() in taken:
            yield name, "with compounds: true a column of the tables has this name; one would hide the other"


def _contradictions_of_values(p: Pipeline) -> Iterator[tuple[str, str]]:
    """Names that a generated schema cannot have beside each other."""
    if p.key_has_schema:
        yield from _contradictions_of_names(p.output_key, p.key, "output.key", "escaped")
    if p.output_format == JSON:
        return
    typed = {f"{name}.payload" for name, side in (("left", p.left), ("right", p.right)) if side.format == p.output_format}
    for name, side in (("left", p.left), ("right", p.right)):
        if f"{name}.payload" in typed and side.schema is None and not isinstance(side.topic, str):
            yield (
                f"{name}.schema",
                f"missing; with output.format: {p.output_format} the payload's type comes from the subject of one topic, and this side may "
                "have several; name a schema file, or set output.format: json",
            )
    # Beside a payload with a type is a field for the text of one that does not fit it.
    names = [*(name for name, _ in p.value_fields), *(f"{name}_json" for name, source in p.value_fields if source in typed)]
    yield from _contradictions_of_names(p.output_format, names, "output.format", JSON)


def _contradictions_of_names(form: str, names: Iterable[str], setting: str, instead: str) -> Iterator[tuple[str, str]]:
    known: dict[str, str] = {}
    for name in names:
        # Protobuf compares the names that its JSON has: without underscores, in camel case.
        spelled = name if form == AVRO else "".join(part[:1].upper() + part[1:] for part in name.split("_"))
        if spelled in known:
            yield setting, f"{known[spelled]} and {name} would be fields of one name in {form}; rename one, or set {instead}"
        known[spelled] = name


def _contradictions_of_side(p: Pipeline, side: Side) -> Iterator[tuple[str, str]]:
    if unknown := [name for name, _ in side.key if name not in p.key]:
        yield "key", f"{unknown[0]} is no field of the pipeline's key; nothing would read it"
    sources = {name: parse_source(name) for name in p.key} | {name: parse_source(where) for name, where in side.key}
    used: dict[Source, str] = {}
    for name, where in sources.items():
        if where in used:
            yield "key", f"{used[where]} and {name} come from the same place; every key would be a pair of equals"
        used[where] = name
    times = p.times(side)
    if (at := parse_source(times.source)) in used or at == parse_source(side.payload_from or side.payload):
        yield "timestamp", f"{times.source} is a key or payload field already"
    if problem := zone_problem(times):
        yield "timestamp_zone", problem
    if side.schema and side.format not in (AVRO, PROTOBUF):
        yield "schema", f"nothing reads it: format is {side.format}; set avro or protobuf, or leave it out"
    if (side.format == PROTOBUF and side.schema is not None) != (side.message is not None):
        yield "message", "goes with format: protobuf and a schema file: it says which message of the file a record is"
    in_key = [
        *sources.values(),
        at,
        parse_source(side.payload_from or side.payload),
        *(parse_source(where) for where, _ in side.only),
    ]
    if side.key_format != JSON and (KEY, ()) in in_key:
        yield "key_format", f"a key in {side.key_format} is no text; name fields of it, like $key.FIELD, instead of $key"
    if side.key_format != JSON and not any(each.part == KEY and each.path for each in in_key):
        yield "key_format", "nothing reads it: no setting names a field of the record's key ($key.FIELD)"


def _ages_in_the_wrong_order(care: Maintenance) -> Iterator[tuple[str, str]]:
    """No row may be deleted before the rows that explain it or depend on it. None, for ever, is the longest."""
    rejected, compounds = "rejected_retention", "compound_retention"
    for name, other, otherwise in (
        ("raw_retention", "time_travel", "batches to go back to would lack their records"),
        (rejected, "raw_retention", "records that were rejected would look lost"),
        (compounds, "raw_retention", "a replay would publish again what it does not find"),
        ("ledger_retention", rejected, "rejected events would be left that no batch of the ledger explains"),
        ("ledger_retention", compounds, "compounds would be left of which nobody knows whether they are published"),
    ):
        kept, at_least = getattr(care, f"{name}_ms"), getattr(care, f"{other}_ms")
        if kept is not None and (at_least is None or kept < at_least):
            for_ever = f" (null: for ever; set {other}, too)" if at_least is None else ""
            yield f"maintenance.{name}", f"must not be shorter than {other}{for_ever}; {otherwise}"
    # Every other retention needs that of the raw rows, so without it nothing is ever deleted.
    if care.archive is not None and care.raw_retention_ms is None:
        yield "maintenance.archive", "nothing would come into it; set raw_retention, or leave it out"
