"""Columns of Protobuf's Timestamp and Duration to JSON texts. A column has messages of seconds (int64) and nanoseconds (int32)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.formats.proto_texts import Texts, bools, rows_of

_FIRST_SECOND, _LAST_SECOND, _LONGEST_SECONDS = -62_135_596_800, 253_402_300_799, 315_576_000_000
_BILLION = 10**9


def timestamp_texts(column: pa.Array) -> Texts:
    """RFC 3339 with 0, 3, 6 or 9 digits of a second; strange outside of the years 1 to 9999.

    >>> from spark_jobs.formats.proto_texts import joined
    >>> column = pa.array([(0, 0), (-62135596800, 1), (253402300799, 5_000_000), None], pa.struct([("s", pa.int64()), ("n", pa.int32())]))
    >>> joined(timestamp_texts(column)[0]).to_pylist()[:3]
    ['"1970-01-01T00:00:00Z"', '"0001-01-01T00:00:00.000000001Z"', '"9999-12-31T23:59:59.005Z"']
    """
    seconds, nanos = _numbers_of(column)
    outside = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _BILLION)
    seconds, nanos = np.where(outside, 0, seconds), np.where(outside, 0, nanos)
    moments = pa.array(seconds).cast(pa.timestamp("s")).cast(pa.string())
    moments = pc.binary_replace_slice(moments.cast(pa.binary()), 10, 11, b"T").cast(pa.string())
    return ['"', moments, _fraction(nanos), 'Z"'], rows_of(outside)


def duration_texts(column: pa.Array) -> Texts:
    """Seconds with 0, 3, 6 or 9 digits after the point; strange beyond 10,000 years or with two signs.

    >>> from spark_jobs.formats.proto_texts import joined
    >>> column = pa.array([(0, 0), (-1, -500_000_000), (0, -1), (3, 0)], pa.struct([("s", pa.int64()), ("n", pa.int32())]))
    >>> joined(duration_texts(column)[0]).to_pylist()
    ['"0s"', '"-1.500s"', '"-0.000000001s"', '"3s"']
    """
    seconds, nanos = _numbers_of(column)
    # Not by their size: the smallest integer has none.
    outside = (seconds < -_LONGEST_SECONDS) | (seconds > _LONGEST_SECONDS) | (nanos <= -_BILLION) | (nanos >= _BILLION)
    outside |= ((seconds > 0) & (nanos < 0)) | ((seconds < 0) & (nanos > 0))
    seconds, nanos = np.where(outside, 0, seconds), np.where(outside, 0, nanos)
    sign = pc.if_else(bools((seconds < 0) | (nanos < 0)), '"-', '"')
    return [sign, pa.array(np.abs(seconds)).cast(pa.string()), _fraction(np.abs(nanos)), 's"'], rows_of(outside)


def _numbers_of(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Seconds and nanoseconds of messages that have these fields; 0 where there is no message."""
    seconds, nanos = (pc.fill_null(column.field(index).cast(pa.int64()), 0).to_numpy() for index in (0, 1))
    return seconds, nanos


def _fraction(nanos: npt.NDArray[np.int64]) -> pa.Array | str:
    """Texts as `.005`, of the fewest of 0, 3, 6 or 9 digits that show billionths (0 to 999,999,999) exactly."""
    if not nanos.any():
        return ""
    texts: pa.Array | str = ""
    for digits in (3, 6, 9):
        unit = 10 ** (9 - digits)
        spelled = pc.utf8_slice_codeunits(pa.array(nanos // unit + 10**digits).cast(pa.string()), 1)
        exact = nanos % (unit * 1000 if digits > 3 else _BILLION) == 0
        texts = pc.if_else(bools(exact), texts, pc.binary_join_element_wise(".", spelled, ""))
    return texts
