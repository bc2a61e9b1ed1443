"""Times, durations and counts as text for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from include.config.pipeline import MS_PER_UNIT

_LAST_MS = 253_402_300_799_999
_MILLISECOND = timedelta(milliseconds=1)


def moment(ms: int) -> str:
    """UTC and epoch ms; before 1970 and after the year 9999 only epoch ms.

    >>> moment(1767225600000), moment(2**62)
    ('2026-01-01T00:00:00.000Z (1767225600000)', '4611686018427387904')
    """
    return f"{utc(ms)} ({ms})" if 0 <= ms <= _LAST_MS else str(ms)


def utc(ms: int) -> str:
    """UTC alone, for a time whose epoch ms the reader has nearby.

    >>> utc(1767225600001)
    '2026-01-01T00:00:00.001Z'
    """
    if not 0 <= ms <= _LAST_MS:
        return str(ms)
    seconds = datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{seconds}.{ms % 1_000:03}Z"


def duration(ms: int) -> str:
    """The duration in all its units.

    >>> duration(90_001), duration(0), duration(3_600_000)
    ('1m30s1ms', '0ms', '1h')
    """
    parts, rest = [], ms
    for unit, length in reversed(MS_PER_UNIT.items()):
        if rest >= length:
            parts.append(f"{rest // length}{unit}")
            rest %= length
    return "".join(parts) or "0ms"


def rough(ms: float) -> str:
    """In the largest unit in which it is short, to one decimal place.

    >>> rough(90_000), rough(60_000), rough(250), rough(7_500_000), rough(86_400_000)
    ('90 s', '1 min', '250 ms', '2.1 h', '1 d')
    """
    for unit, name, least in (("d", "d", 1), ("h", "h", 1), ("m", "min", 2), ("s", "s", 1)):
        size = MS_PER_UNIT[unit]
        if ms >= least * size or (unit == "m" and ms == size):
            return f"{ms / size:.1f}".removesuffix(".0") + f" {name}"
    return f"{ms:.0f} ms"


def away(ms: int) -> str:
    """The distance of two times, with its direction.

    >>> away(50), away(-50), away(0)
    ('50ms later', '50ms earlier', 'at the same time')
    """
    return f"{duration(abs(ms))} {'later' if ms > 0 else 'earlier'}" if ms else "at the same time"


def setting(ms: int) -> str:
    """The duration as in a pipeline file: a whole number and one unit, the largest that divides it.

    >>> setting(90_000), setting(90_001), setting(0)
    ('90s', '90001ms', '0s')
    """
    if not ms:
        return "0s"
    unit, length = next((unit, length) for unit, length in reversed(MS_PER_UNIT.items()) if ms % length == 0)
    return f"{ms // length}{unit}"


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural where that is right.

    >>> count(1, "batch"), count(2, "batch"), count(0, "event")
    ('1 batch', '2 batches', '0 events')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def point_in_time(text: str) -> int:
    """Epoch ms of a time as people and Airflow write it: ISO 8601, UTC if it names no zone, or epoch ms; raises ValueError.

    >>> point_in_time("2026-01-01T01:00:00+01:00"), point_in_time("2026-01-01"), point_in_time("1767225600000")
    (1767225600000, 1767225600000, 1767225600000)
    """
    if text.isascii() and text.isdecimal() and len(text) > 8:
        return int(text)
    at = datetime.fromisoformat(text)
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    # Not by timestamp(), whose fractions of a second are inexact.
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND
