"""Which fields of a topic are times, and in which unit or format."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from include.config.times import EPOCH_UNITS, ISO_8601, Times
from spark_jobs.joining.documents import Documents
from spark_jobs.joining.fields import ABSENT, Field
from spark_jobs.rules.times import time_reader

RECORD_TIMESTAMP = "$timestamp"
# A field is a time if so many of its values are, and lie near the records' timestamps: within a tenth of the time since 1970.
_MOST, _NEAR = 0.95, 0.1
_TRIED = 200
# The time of an event is less than this away from when its record was sent, in the median; other times are about something else.
_ABOUT_NOW_MS = 86_400_000
_LOADED_LATER_MS = 3_600_000
# Days and clocks as programs and people write them. Of days by numbers, the month may be first.
_DAYS = ("%a, %d %b %Y", "%d %b %Y", "%d/%b/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
_CLOCKS = ("%H:%M:%S", "%H:%M:%S.%f", "%H:%M", "%I:%M:%S %p")
_PATTERNS = ("%Y%m%d%H%M%S", "%d/%b/%Y:%H:%M:%S", *(f"{day} {at}" for day in _DAYS for at in _CLOCKS))
_SWAPPED: Final = {f"%d{sign}%m{sign}": f"%m{sign}%d{sign}" for sign in "/-"}
_FORMATS = (
    *((unit, None) for unit in EPOCH_UNITS),
    *((ISO_8601, zone) for zone in (None, "UTC")),
    *((f"{pattern} %z", None) for pattern in _PATTERNS),
    *((form, "UTC") for pattern in _PATTERNS for form in (f"{pattern} GMT", pattern)),
)
# A text with fewer digits is no time, and a pattern that reads none of these first values is not tried on others: there are many patterns.
_FEWEST_DIGITS, _FIRST = 8, 3


class TimeField(NamedTuple):
    """A field that is a time. `at`: epoch ms of each record, ABSENT where it cannot be read; where it is absent, the record's timestamp.

    `away_ms`: the median distance to the record's timestamp. `share`: of the records that have it. `or_format`: a pattern with day and month in
    changed places that reads the values as well, but further from the records' timestamps; None if there is none.
    """

    source: str
    format: str | None
    zone: str | None
    at: np.ndarray
    away_ms: float
    share: float
    or_format: str | None = None

    @property
    def is_about_now(self) -> bool:
        """Whether it may be the time of the event."""
        return self.away_ms < _ABOUT_NOW_MS


def find_times(documents: Documents, fields: list[Field]) -> list[TimeField]:
    """The fields that are times, the likeliest time of the event first; `$timestamp` is before those that are not about now."""
    # Records of very old brokers have no timestamp.
    typical = int(np.median(documents.stamps)) if np.median(documents.stamps) > 0 else clock.time_ns() // 1_000_000
    stamps = _plausible(documents.stamps.astype(np.int64), typical)
    found = [time for field in fields if (time := _time_of(field, stamps, typical))]
    about_now = sorted((time for time in found if time.is_about_now), key=lambda time: (time.share < _MOST, time.away_ms))
    of_records = TimeField(RECORD_TIMESTAMP, None, None, stamps, 0.0, 1.0)
    return [*about_now, of_records, *(time for time in found if not time.is_about_now)]


def is_loaded(time: TimeField, stamps: np.ndarray) -> bool:
    """Whether records were written all at once long after their times, so that the records' timestamps say nothing of the events."""
    is_sound = (time.at != ABSENT) & (stamps != ABSENT)
    at, stamped = time.at[is_sound], stamps[is_sound]
    if not len(at):
        return False
    return float(np.median(stamped - at)) > _LOADED_LATER_MS or 2 * _span(stamped) < _span(at)


def _span(times: np.ndarray) -> float:
    """Between an early and a late one; the very first and last may be strays."""
    first, last = np.quantile(times, (0.05, 0.95))
    return float(last - first)


def _time_of(field: Field, stamps: np.ndarray, typical: int) -> TimeField | None:
    rows = [row for row, value in enumerate(field.values) if value is not None]
    some = [field.values[row] for row in rows[:: max(len(rows) // _TRIED, 1)]]
    for form, zone in _FORMATS:
        if not _is_sound(form, zone, some, typical):
            continue
        found = _read_by(form, zone, field, rows, stamps, typical)
        day = next((day for day in _SWAPPED if form.startswith(day)), None)
        other = form.replace(day, _SWAPPED[day]) if day else None
        if found and other and _is_sound(other, zone, some, typical):
            theirs = _read_by(other, zone, field, rows, stamps, typical)
            if theirs:
                nearer, further = sorted((found, theirs), key=lambda each: each.away_ms)
                return nearer._replace(or_format=further.format)
        return found
    return None


def _is_sound(form: str, zone: str | None, some: list[Any], typical: int) -> bool:
    """Whether the format reads nearly all of these values as times of this age."""
    read = _reader(form, zone)
    if "%" in form and not any(_may_be_text(value) and read(value) != ABSENT for value in some[:_FIRST]):
        return False
    return _soundness(np.array(list(map(read, some)), np.int64), typical) >= _MOST


def _may_be_text(value: Any) -> bool:
    return isinstance(value, str) and sum(map(str.isdigit, value)) >= _FEWEST_DIGITS


def _read_by(
    form: str, zone: str | None, field: Field, rows: list[int], stamps: np.ndarray, typical: int
) -> TimeField | None:
    """The field as times of this format. `rows`: the records that have it."""
    read = _reader(form, zone)
    times = np.array([read(field.values[row]) for row in rows], np.int64)
    # A date that is the same in all records is about something else.
    if len(rows) > 1 and len(np.unique(times)) == 1:
        return None
    at = stamps.copy()
    at[rows] = _plausible(times, typical)
    away = np.abs(at[rows] - stamps[rows])[(at[rows] != ABSENT) & (stamps[rows] != ABSENT)]
    return TimeField(field.source, form, zone, at, float(np.median(away)) if len(away) else 0.0, field.share)


def _reader(form: str, zone: str | None) -> Callable[[Any], int]:
    read = time_reader(Times("", form, zone))

    def time(value: Any) -> int:
        # A date alone is no time of an event.
        if form == ISO_8601 and not (isinstance(value, str) and ":" in value):
            return ABSENT
        ts = read(msgspec.json.encode(value))
        return ABSENT if ts is None else ts

    return time


def _plausible(times: np.ndarray, typical: int) -> np.ndarray:
    """The times, ABSENT in place of those that lie in another age."""
    return np.where(np.abs(times.astype(float) - typical) < _NEAR * typical, times, ABSENT)


def _soundness(times: np.ndarray, typical: int) -> float:
    return float((_plausible(times, typical) != ABSENT).mean()) if len(times) else 0.0
