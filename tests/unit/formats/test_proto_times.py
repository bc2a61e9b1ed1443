"""Times at their limits, alone and together."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from spark_jobs.formats.proto_texts import Render, joined
from spark_jobs.formats.proto_times import duration_texts, timestamp_texts

NANOS = (-(10**9), -999_999_999, -1_000, -1, 0, 1, 999, 1_000, 50_000_000, 999_999_999, 10**9)


@pytest.mark.parametrize(
    ("render", "kind", "seconds"),
    [
        (
            timestamp_texts,
            Timestamp,
            (-62135596801, -62135596800, -1, 0, 951782400, 253402300799, 253402300800, 2**63 - 1, -(2**63)),
        ),
        (
            duration_texts,
            Duration,
            (-315576000001, -315576000000, -1, 0, 1, 315576000000, 315576000001, 2**63 - 1, -(2**63)),
        ),
    ],
)
def test_times_are_spelled_as_protobuf_spells_them_or_strange_where_it_refuses_them(
    render: Render, kind: Any, seconds: tuple[int, ...]
) -> None:
    pairs = [(second, nano) for second in seconds for nano in NANOS]
    expected: list[str | None] = []
    for second, nano in pairs:
        try:
            expected.append(f'"{kind(seconds=second, nanos=nano).ToJsonString()}"')
        except ValueError:
            expected.append(None)
    # Alone and together: some texts are made only if a row needs them.
    for some in [pairs, *([pair] for pair in pairs)]:
        parts, strange = render(pa.array(some, pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])))
        rows = [False] * len(some) if strange is None else strange.to_pylist()
        # A text alone may consist of parts for all rows only.
        found = joined([*parts, pa.repeat("", len(some))]).to_pylist()
        assert [None if odd else text for text, odd in zip(found, rows, strict=True)] == [
            expected[pairs.index(pair)] for pair in some
        ]
