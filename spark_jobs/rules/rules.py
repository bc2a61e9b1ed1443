"""The settings of the pairing rules, and the schema of the events they decide about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

LEFT, RIGHT = 0, 1

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rules:
    """Durations in ms; clocks in epoch ms, None = minus infinity (nothing is closed, nothing is late)."""

    key: tuple[str, ...]
    tolerance_ms: int
    gap_ms: int
    grace_ms: int
    max_session_ms: int
    matching: str
    drop_duplicates: bool
    left_topic_first: bool
    clock: int | None
    previous_clock: int | None

    def over_before(self, end: Ints, clock: int | None) -> Flags:
        """True for sessions with these ends (epoch ms) that are over at `clock`: end + gap + grace < clock, strictly."""
        if clock is None:
            return np.zeros(len(end), dtype=bool)
        return end < clock - self.gap_ms - self.grace_ms


def event_schema(key: tuple[str, ...]) -> pa.Schema:
    """Accepted events of both sides; ts in epoch ms, payload as JSON text. `is_open`: from open_events; `batch_id`: the batch that landed it."""
    return pa.schema(
        [
            *((name, pa.string()) for name in key),
            ("side", pa.int32()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("ts", pa.int64()),
            ("payload", pa.string()),
            ("batch_id", pa.int64()),
            ("is_open", pa.bool_()),
        ]
    )
