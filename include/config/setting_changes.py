"""Which settings differ between two versions of a pipeline, spelt as in its file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from include.config.pipeline import Pipeline
from include.config.setting_types import file_key
from include.config.time_text import setting

_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z_$/][\w.$/-]*")


class Change(NamedTuple):
    """A setting by its key in the file (`quality.silence`), and both values as the file has them."""

    setting: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.setting} {self.old} -> {self.new}"


def changed_settings(old: Pipeline, new: Pipeline) -> list[Change]:
    """The settings that differ, in the order of the fields; a pipeline's name is none."""
    before, after = setting_values(old), setting_values(new)
    return [Change(key, text, after[key]) for key, text in before.items() if text != after[key]]


def setting_values(pipeline: Pipeline) -> dict[str, str]:
    """Key in the file -> value as the file has it.

    >>> from include.config.pipeline_file import load_pipeline
    >>> values = setting_values(load_pipeline("include/pipelines/calls.yaml"))
    >>> values["gap"], values["key"], values["left.topic"], values["quality.silence"], values["maintenance.archive"]
    ('1m', '[user1, user2]', 'analyticsTopic', '30m', 'null')
    """
    found = {
        file_key(each.name): (each.name, getattr(pipeline, each.name)) for each in fields(pipeline) if each.name != "name"
    }
    texts: dict[str, str] = {}
    for key, (name, value) in found.items():
        if is_dataclass(value):
            inner = ((each.name, getattr(value, each.name)) for each in fields(value))
            texts |= {f"{key}.{file_key(field)}": _text(field, each) for field, each in inner}
        else:
            texts[key] = _text(name, value)
    return texts


def in_words(changes: Iterable[Change]) -> str:
    """One sentence without a full stop, empty without changes.

    >>> in_words([Change("gap", "1m", "2m"), Change("grace", "3m", "1m")])
    'settings changed: gap 1m -> 2m, grace 3m -> 1m'
    """
    listed = ", ".join(map(str, changes))
    return f"settings changed: {listed}" if listed else ""


def _text(field: str, value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple() if field in ("key", "only", "output_fields", "severities") and not any(
            isinstance(each, str) for each in value
        ):
            return f"{{{', '.join(f'{_plain(name)}: {_text(name, where)}' for name, where in value)}}}"
        case tuple():
            return f"[{', '.join(map(_plain, value))}]"
        case str() if field == "schema":
            return f"of hash {hashlib.sha256(value.encode()).hexdigest()[:8]}"
        case int() if field.endswith("_ms"):
            return setting(value)
        case str() if field != "schedule":
            return _plain(value)
    return str(value)


def _plain(text: str) -> str:
    """The text in quotes, if YAML would read it as something else."""
    return text if _NEEDS_NO_QUOTES.fullmatch(text) else json.dumps(text)
