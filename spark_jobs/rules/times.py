"""Rule 2: the time of an event, in each format that a pipeline file can name, as whole epoch milliseconds (rounded down)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from include.config.times import EPOCH_UNITS, ISO_8601, Times

LARGEST_TS = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Some ten years.
_NEAR = 0.2
# Of the largest time in nanoseconds.
_MOST_DIGITS = len(str(LARGEST_TS * 1_000_000))


def time_reader(times: Times) -> Callable[[bytes], int | None]:
    """A function from a JSON token (number or string, not null) to epoch ms, from 0 to LARGEST_TS; None if the token is no such time.

    Integers may be in quotes. Epoch seconds may have decimals, but no exponent. A date without a time is its midnight. Of two local times with
    the same name, when clocks go back, it is the first.

    >>> [time_reader(Times("t", each))(b"1700000000123") for each in ("epoch_ms", "epoch_us", "epoch_ns", "iso8601")]
    [1700000000123, 1700000000, 1700000, None]
    >>> time_reader(Times("t", "epoch_s"))(b"1700000000.1239"), time_reader(Times("t", "iso8601"))(b'"2023-11-14T23:13:20.1239+01:00"')
    (1700000000123, 1700000000123)
    >>> time_reader(Times("t", "%d.%m.%Y %H:%M", "Europe/Berlin"))(b'"15.07.2024 14:00"')
    1721044800000
    """
    if times.format is None or times.format in EPOCH_UNITS:
        per_ms, per_unit = EPOCH_UNITS[times.format or "epoch_ms"]
        return _decimals_reader(per_unit) if per_unit > 1 else _integer_reader(per_ms)
    zone = None if times.zone is None else ZoneInfo(times.zone)
    if times.format == ISO_8601:
        return _text_reader(_iso_8601, zone)
    pattern = times.format
    return _text_reader(lambda text: datetime.strptime(text, pattern), zone)


def likelier_unit(form: str | None, latest_ts: int, now: int) -> str | None:
    """The format of numbers by which the latest time of a topic would be about now, if it is not `form`. Times in epoch ms, as read by `form`.

    >>> likelier_unit(None, 1_700_000_000, 1_700_000_000_000), likelier_unit("epoch_ms", 1_600_000_000_000_000, 1_700_000_000_000)
    ('epoch_s', 'epoch_us')
    >>> [likelier_unit(form, 1_000_000_000, 1_700_000_000_000) for form in ("epoch_ms", "epoch_s", "iso8601")]
    [None, None, None]
    """
    units = list(EPOCH_UNITS)
    if (form or "epoch_ms") not in units:
        return None
    declared = units.index(form or "epoch_ms")
    for number, unit in enumerate(units):
        # Each unit is a thousandth of the one before it.
        if number != declared and abs(latest_ts * 1000.0 ** (declared - number) / now - 1) < _NEAR:
            return unit
    return None


def _integer_reader(per_ms: int) -> Callable[[bytes], int | None]:
    def read(token: bytes) -> int | None:
        digits = token[1:-1] if token[:1] == b'"' else token
        if not digits.isdigit():
            return None
        if len(digits) > _MOST_DIGITS and len(digits := digits.lstrip(b"0") or b"0") > _MOST_DIGITS:
            return None
        ts = int(digits) // per_ms
        return ts if ts <= LARGEST_TS else None

    return read


def _decimals_reader(ms: int) -> Callable[[bytes], int | None]:
    def read(token: bytes) -> int | None:
        whole, point, part = (token[1:-1] if token[:1] == b'"' else token).partition(b".")
        if not whole.isdigit() or (point and not part.isdigit()):
            return None
        # Python refuses to read very many digits, of zeros, too.
        if len(whole := whole.lstrip(b"0") or b"0") > _MOST_DIGITS:
            return None
        ts = int(whole) * ms + int(part[:3].ljust(3, b"0"))
        return ts if ts <= LARGEST_TS else None

    return read


def _text_reader(parse: Callable[[str], datetime], zone: tzinfo | None) -> Callable[[bytes], int | None]:
    def read(token: bytes) -> int | None:
        if token[:1] != b'"':
            return None
        try:
            moment = parse(token[1:-1].decode())
            if moment.tzinfo is None:
                if zone is None:
                    return None
                moment = moment.replace(tzinfo=zone)
            since = moment - _EPOCH
        except (ValueError, OverflowError):
            return None
        ts = since.days * 86_400_000 + since.seconds * 1_000 + since.microseconds // 1_000
        return ts if ts >= 0 else None

    return read


def _iso_8601(text: str) -> datetime:
    # RFC 3339 allows a small z.
    return datetime.fromisoformat(f"{text[:-1]}Z" if text[-1:] == "z" else text)
