"""How a pipeline file says what an event's time looks like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from include.config.sources import VALUE, parse_source

# Format -> units in a millisecond, milliseconds in a unit.
EPOCH_UNITS: Final[Mapping[str, tuple[int, int]]] = {
    "epoch_s": (1, 1_000),
    "epoch_ms": (1, 1),
    "epoch_us": (1_000, 1),
    "epoch_ns": (1_000_000, 1),
}
ISO_8601: Final = "iso8601"
_OF_THE_MACHINE = ("localtime", "posixrules", "factory")
_ALLOWED = f"{', '.join(EPOCH_UNITS)}, {ISO_8601}, or a pattern of strptime like %Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Times:
    """`source`: where the time is. `format`: None is the unit that the schema declares, else epoch_ms. `zone`: of texts that name none."""

    source: str = "timestamp"
    format: str | None = None
    zone: str | None = None


def check_time_source(value: object) -> str:
    """The source of a time; raises ValueError."""
    if parse_source(value) == (VALUE, ()):
        raise ValueError("$value is no time; name a field, $key.FIELD, $header.NAME or $timestamp")
    return str(value)


def check_time_format(value: object) -> str | None:
    """One of the formats, a pattern, or None; raises ValueError.

    >>> check_time_format("%d.%m.%Y %H:%M:%S")
    '%d.%m.%Y %H:%M:%S'
    """
    if value is not None and value not in (*EPOCH_UNITS, ISO_8601):
        _check_pattern(value)
    return None if value is None else str(value)


def check_zone(value: object) -> str | None:
    """The name of a time zone, or None; raises ValueError."""
    if value is not None:
        _check_zone(value)
    return None if value is None else str(value)


def is_text(form: str | None) -> bool:
    """Whether times of this format are texts."""
    return form is not None and form not in EPOCH_UNITS


def zone_problem(times: Times) -> str | None:
    """Why format and zone do not fit together, None if they do.

    >>> zone_problem(Times("t", "%Y-%m-%d"))
    "the pattern '%Y-%m-%d' names no zone (%z); set timestamp_zone, or times would be off by hours"
    """
    if times.zone is not None and not is_text(times.format):
        return "is for texts (iso8601 or a pattern); numbers since 1970 mean the same everywhere"
    if times.zone is None and is_text(times.format) and times.format != ISO_8601 and "%z" not in str(times.format):
        return f"the pattern {times.format!r} names no zone (%z); set timestamp_zone, or times would be off by hours"
    return None


def _check_pattern(form: object) -> None:
    if not isinstance(form, str) or "%" not in form:
        raise ValueError(f"{form!r} is none of {_ALLOWED}")
    try:
        # What strptime cannot read back, strftime may still write.
        read = datetime.strptime(datetime(2001, 2, 3, 4, 5, 6).strftime(form.replace("%z", "+0000")), form)
    except (ValueError, re.error) as error:
        raise ValueError(f"{form!r} is no pattern of strptime: {error}") from None
    if (read.year, read.month, read.day) != (2001, 2, 3):
        raise ValueError(f"the pattern {form!r} names no whole date; every time would lie in the year 1900")


def _check_zone(zone: object) -> None:
    if str(zone).lower() in _OF_THE_MACHINE:
        raise ValueError(f"{zone!r} is another zone on each machine; name one like Europe/Berlin or UTC")
    try:
        ZoneInfo(zone)  # type: ignore[arg-type]
    except (ValueError, OSError, TypeError, KeyError):
        raise ValueError(f"{zone!r} is no time zone like Europe/Berlin or UTC") from None
