"""What is wrong with an OpenLineage event, by OpenLineage's own rules.

By the classes that OpenLineage generates from its schemas for its Python client: no field too many, none missing, none of another type. And by the
schemas themselves, which no package has: each is fetched once from the address that the event names, into the user's cache.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import types
import typing
import urllib.request
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

import attr
from jsonschema import Draft202012Validator
from openlineage.client import generated
from openlineage.client.generated.base import BaseFacet, RunEvent
from referencing import Registry, Resource

from include.local.tools import CACHE
from tests.helpers.stores import skip_or_fail

_SPEC = "https://openlineage.io/spec/"


def wrong_by_classes(event: dict[str, Any]) -> list[str]:
    """One line for each thing that is wrong."""
    return list(_wrong(RunEvent, event, "event"))


def wrong_by_schemas(event: dict[str, Any]) -> list[str]:
    """The same. Skips the test where a schema can neither be found nor fetched, or fails it if REQUIRED is set."""
    registry, parts = Registry(retrieve=_official), {event["schemaURL"]: [event]}  # type: ignore[call-arg]
    for facet in facets_of(event):
        parts.setdefault(facet["_schemaURL"], []).append(facet)
    found = []
    for address, values in parts.items():
        if address.startswith(_SPEC):
            judge = Draft202012Validator({"$ref": address}, registry=registry)
            found += [f"{address}: {error.message}" for value in values for error in judge.iter_errors(value)]
    return found


def facets_of(event: dict[str, Any]) -> list[dict[str, Any]]:
    """All facets of the event: of its run, its job and its datasets."""
    owners = [event["run"], event["job"], *event.get("inputs", []), *event.get("outputs", [])]
    kinds = ("facets", "inputFacets", "outputFacets")
    return [facet for owner in owners for kind in kinds for facet in (owner.get(kind) or {}).values()]


def _official(address: str) -> Resource[Any]:
    path = CACHE / "openlineage-spec" / address.removeprefix(_SPEC)
    if not path.is_file():
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                text = answer.read()
        except OSError as error:
            skip_or_fail(f"{address} cannot be fetched: {error}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return Resource.from_contents(json.loads(path.read_text(encoding="utf-8")))


@cache
def _facet_classes() -> dict[str, type]:
    """Address of a schema -> the class that was made of it."""
    for module in pkgutil.iter_modules(generated.__path__):
        importlib.import_module(f"{generated.__name__}.{module.name}")
    waiting, found = [BaseFacet], dict[str, type]()
    for kind in waiting:
        waiting += kind.__subclasses__()
        if kind.__module__.startswith(generated.__name__):
            found[kind._get_schema()] = kind
    return found


def _wrong(kind: Any, value: Any, where: str) -> Iterator[str]:
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        # What is there is judged by what it should be, not by whether it may be missing.
        wanted = [each for each in arguments if each is not types.NoneType] if value is not None else [types.NoneType]
        yield from min((list(_wrong(each, value, where)) for each in wanted), key=len)
    elif typing.get_origin(kind) is list and isinstance(value, list):
        for number, each in enumerate(value):
            yield from _wrong(arguments[0], each, f"{where}[{number}]")
    elif typing.get_origin(kind) is dict and isinstance(value, dict):
        for name, each in value.items():
            yield from _wrong(arguments[1], each, f"{where}.{name}")
    elif attr.has(kind) and isinstance(value, dict):
        yield from _wrong_fields(kind, value, where)
    elif not _is_plain(kind, value):
        yield f"{where} is {value!r}, not {kind}"


def _wrong_fields(kind: Any, value: dict[str, Any], where: str) -> Iterator[str]:
    is_facet = issubclass(kind, BaseFacet)
    kind = _facet_classes().get(value.get("_schemaURL", ""), kind) if is_facet else kind
    known, types_of = {field.name: field for field in attr.fields(kind)}, typing.get_type_hints(kind)
    # Of those facets only the common fields are fixed.
    if not (is_facet and kind.__module__.endswith(".base")):
        yield from (f"{where} has {name}, which {kind.__name__} has not" for name in value.keys() - known.keys())
    needed = [name for name, field in known.items() if field.default is attr.NOTHING or name in ("_producer", "_schemaURL")]
    yield from (f"{where} has no {name}" for name in needed if value.get(name) is None)
    for name in value.keys() & known.keys():
        yield from _wrong(types_of[name], value[name], f"{where}.{name}")


def _is_plain(kind: Any, value: Any) -> bool:
    if kind is Any or (kind is types.NoneType and value is None):
        return True
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in [each.value for each in kind]
    plain = {float: (int, float)}.get(kind, kind) if kind in (str, int, float, bool) else ()
    return isinstance(value, plain) and (kind is bool or not isinstance(value, bool))
