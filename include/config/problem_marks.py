"""What people and commands say of a pipeline's problems: small files beside its quality pages, `problems/<name>.<kind>.json`.

Each is written as a whole by one program, so an acknowledgement, a finding and a report that come at the same moment keep each other's words
on every store.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from include.config.store import Store, list_names, read_text, write_text

FOLDER = "problems"
Severity = Literal["warning", "failed"]


class Part(BaseModel):
    """A part of a file: it never changes, and has no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Acknowledged(Part):
    """Somebody has taken over the problem that began with `batch` and was of this severity. `at`: epoch seconds."""

    by: str
    at: float
    note: str
    batch: int
    severity: Severity


class Found(Part):
    """A problem that a command found. `batch`: the newest reported one then; `since`, `last`: when it was found first and last, epoch seconds."""

    severity: Severity
    text: str
    batch: int
    since: float
    last: float
    runbook: str = ""


class HealedThrough(Part):
    """What batches up to `batch` (inclusive) showed of the problem is mended, and what those in `alone` did, which were judged again."""

    batch: int = 0
    alone: tuple[int, ...] = ()


Mark = Acknowledged | Found | HealedThrough
_M = TypeVar("_M", Acknowledged, Found, HealedThrough)
_KINDS: dict[type[Mark], str] = {Acknowledged: "acknowledged", Found: "found", HealedThrough: "healed"}


class Marks(NamedTuple):
    """All marks of a pipeline, by the problem's name."""

    acknowledged: dict[str, Acknowledged]
    found: dict[str, Found]
    healed: dict[str, HealedThrough]


def read_marks(pages: Store) -> Marks:
    """The marks that are there now. A file of another form counts as none."""
    folder = pages.at(FOLDER)
    names = list_names(folder)
    return Marks(_read(folder, names, Acknowledged), _read(folder, names, Found), _read(folder, names, HealedThrough))


def write_mark(pages: Store, name: str, mark: Mark) -> None:
    """Writes the mark in place of an earlier one of its kind."""
    write_text(pages.at(FOLDER), _file(name, type(mark)), mark.model_dump_json())


def drop_mark(pages: Store, name: str, kind: type[Mark]) -> None:
    """Deletes the mark of this kind, if there is one."""
    import obstore

    folder = pages.at(FOLDER)
    if _file(name, kind) in list_names(folder):
        obstore.delete(folder.client, _file(name, kind))


def check_name(name: str) -> None:
    """Raises ValueError if a problem cannot have this name, which is a part of a file's."""
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(f"{name!r} cannot name a problem: use letters, digits and _")


def _file(name: str, kind: type[Mark]) -> str:
    return f"{name}.{_KINDS[kind]}.json"


def _read(folder: Store, names: list[str], kind: type[_M]) -> dict[str, _M]:
    end, found = _file("", kind), {}
    for file in sorted(name for name in names if name.endswith(end)):
        try:
            found[file.removesuffix(end)] = kind.model_validate_json(read_text(folder, file) or "")
        except ValueError:
            continue
    return found
