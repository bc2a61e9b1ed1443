"""A proposed pipeline as the text of its file, with the reasons as comments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from include.config.pipeline import AS_IS, JSON, KAFKA
from include.config.sources import KEY, parse_source
from include.config.time_text import setting
from spark_jobs.joining.reasons import (
    about_durations,
    about_key,
    about_kinds,
    about_records,
    about_time,
    doubts,
)
from spark_jobs.joining.settings import FoundSettings, SampledSide
from spark_jobs.joining.times import RECORD_TIMESTAMP

_DEFAULT_TIME = "timestamp"
_DEFAULT_FORMAT = "epoch_ms"


def file_text(found: FoundSettings, output: str, connections: tuple[str, str], head: Iterable[str]) -> str:
    """The text of the file. `output`: the output topic; `connections`: of the sides' clusters; `head`: lines that it begins with, as comments."""
    lines = [*_comments(head), ""]
    for number, (name, looked) in enumerate(zip(("left", "right"), found.sides, strict=True)):
        lines += _comments([*about_records(looked), *about_time(found, number), *about_kinds(found, number)])
        lines += [*_block(name, _side(found, number, looked, connections[number])), ""]
    lines += [*_block("output", {"topic": output}), ""]
    lines += _comments(about_key(found))
    lines.append(f"key: {_flow(found.names)}")
    if found.key_text:
        lines.append(f"key_text: {_flow(list(found.key_text))}")
    if found.key_order != AS_IS:
        lines.append(f"key_order: {found.key_order}")
    lines.append("")
    durations, reasons = found.durations, about_durations(found)
    for name, ms in (
        ("tolerance", durations.tolerance),
        ("gap", durations.gap),
        ("grace", durations.grace),
        ("max_future", durations.max_future),
        ("max_session", durations.max_session),
    ):
        if ms is not None:
            lines += [*_comments(reasons[name]), f"{name}: {setting(ms)}"]
    if doubtful := doubts(found):
        lines += ["", *_comments(["Please look at:", *(f"- {line}" for line in doubtful)])]
    return "\n".join(lines) + "\n"


def _side(found: FoundSettings, number: int, looked: SampledSide, connection: str) -> dict[str, Any]:
    """The settings of a side that differ from their defaults."""
    documents, payload, time = looked.documents, found.payloads[number], found.times[number]
    side: dict[str, Any] = {"topic": documents.topic, "payload": payload.name}
    if connection != KAFKA:
        side["connection"] = connection
    if payload.source != payload.name:
        side["payload_from"] = payload.source
    columns = [field.left if number == 0 else field.right for field in found.key.fields]
    elsewhere = {
        name: column.field.source for name, column in zip(found.names, columns, strict=True) if name != column.field.source
    }
    if elsewhere:
        side["key"] = elsewhere
    if time.source != _DEFAULT_TIME:
        side["timestamp"] = time.source
    if time.source != RECORD_TIMESTAMP and time.format != _DEFAULT_FORMAT:
        side["timestamp_format"] = time.format
    if time.zone is not None:
        side["timestamp_zone"] = time.zone
    if documents.format != JSON:
        side["format"] = documents.format
    if documents.file:
        side["schema"] = documents.file.name
        side |= {"message": documents.file.message} if documents.file.message else {}
    sources = [*(column.field.source for column in columns), time.source, payload.source]
    if kinds := found.kinds[number]:
        chosen = list(kinds.pairing)
        side["only"] = {kinds.source: chosen[0] if len(chosen) == 1 else chosen}
        sources.append(kinds.source)
    if documents.key_format != JSON and any(parse_source(source).part == KEY for source in sources):
        side["key_format"] = documents.key_format
    return side


def _block(name: str, settings: Mapping[str, Any]) -> list[str]:
    text = yaml.safe_dump({name: dict(settings)}, sort_keys=False, allow_unicode=True, width=10_000)
    return text.rstrip().split("\n")


def _flow(values: list[str]) -> str:
    return yaml.safe_dump(values, default_flow_style=True, allow_unicode=True, width=10_000).strip()


def _comments(lines: Iterable[str]) -> list[str]:
    """Names come from messages and from a registry, so anything that could end a comment is shown as `?`.

    >>> _comments(["one", "two\\nkey: [x]"])
    ['# one', '# two?key: [x]']
    """
    return [f"# {''.join(letter if letter.isprintable() else '?' for letter in line)}".rstrip() for line in lines]
