"""What people and commands say of a pipeline's problems: small files beside its quality pages, `problems/<name>.<kind>.json`.

Each is written as a whole by one program, so an acknowledgement, a finding and a report that come at the same moment keep each other's words
on every store.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from include.config.store import Store, list_names, read_text, write_text

FOLDER = "problems"
Severity = Literal["warning", "failed"]


class Part(BaseModel):
    """A part of a file: it never changes, and has no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Acknowledgement(Part):
    """Who has taken a problem over, when (epoch seconds), and what they say of it."""

    by: str
    at: float
    note: str


class AcknowledgementMark(Acknowledgement):
    """It is of the problem that began with `batch`, while it is of this severity."""

    batch: int
    severity: Severity


class ProblemRecord(Part):
    """`text`: one sentence without a full stop. `batch`, `since`: where and when (epoch seconds) it began; `last`: when it was seen last.
    `runbook`: a path in the project, empty if there is none.
    """

    severity: Severity
    text: str
    batch: int
    since: float
    last: float
    runbook: str = ""


class FindingMark(ProblemRecord):
    """A problem that a command found. `batch`: the newest reported one then."""


class HealMark(Part):
    """What batches up to `batch` (inclusive) showed of the problem is mended, and what those in `alone` did, which were judged again."""

    batch: int = 0
    alone: tuple[int, ...] = ()


class LookMark(Part):
    """A replay of the interval (epoch ms, start inclusive, end exclusive) that corrected nothing, after `batch`."""

    start: int
    end: int
    batch: int


class LookMarks(Part):
    """All of a pipeline by which late events were healed. Only replays write them, one after the other."""

    looks: tuple[LookMark, ...] = ()


Mark = AcknowledgementMark | FindingMark | HealMark | LookMarks
_M = TypeVar("_M", AcknowledgementMark, FindingMark, HealMark, LookMarks)
_KINDS: dict[type[Mark], str] = {
    AcknowledgementMark: "acknowledged",
    FindingMark: "found",
    HealMark: "healed",
    LookMarks: "looked",
}
_LATE = "late_healable"


class Marks(NamedTuple):
    """All marks of a pipeline, by the problem's name."""

    acknowledged: dict[str, AcknowledgementMark]
    found: dict[str, FindingMark]
    healed: dict[str, HealMark]
    looked: tuple[LookMark, ...] = ()


def read_marks(pages: Store) -> Marks:
    """The marks that are there now. A file of another form counts as none."""
    folder = pages.at(FOLDER)
    names = list_names(folder)
    looks = _read(folder, names, LookMarks).get(_LATE, LookMarks()).looks
    return Marks(
        _read(folder, names, AcknowledgementMark), _read(folder, names, FindingMark), _read(folder, names, HealMark), looks
    )


def add_look(pages: Store, look: LookMark) -> None:
    """Adds it to those that are there."""
    known = read_marks(pages).looked
    if look not in known:
        write_mark(pages, _LATE, LookMarks(looks=(*known, look)))


def write_mark(pages: Store, name: str, mark: Mark) -> None:
    """Writes the mark in place of an earlier one of its kind."""
    write_text(pages.at(FOLDER), _file(name, type(mark)), mark.model_dump_json())


def drop_mark(pages: Store, name: str, kind: type[Mark]) -> None:
    """Deletes the mark of this kind, if there is one."""
    import obstore

    # Somebody else may have deleted it meanwhile.
    with suppress(FileNotFoundError):
        obstore.delete(pages.at(FOLDER).client, _file(name, kind))


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
