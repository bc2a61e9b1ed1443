"""The rules of one batch, and the schema of the events that they decide about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from include.config.pipeline import Pipeline
from spark_jobs.rules.side_topics import SideTopics, topics_of

LEFT, RIGHT = 0, 1
# The column of the direction of an event.
REVERSED = "reversed"
# The columns of an event that is a compound of another pipeline: that compound's pair_id and revision.
SOURCE_PAIR_ID, SOURCE_REVISION = "source_pair_id", "source_revision"
SOURCE = pa.schema({SOURCE_PAIR_ID: pa.string(), SOURCE_REVISION: pa.int32()})
# The column that says whether a later revision has landed.
SUPERSEDED = "superseded"

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rules:
    """The settings, the batch's clock and that of the batch before: epoch ms, None = minus infinity (nothing is closed, nothing is late).

    `read`: the topics that the batch has events of; None: those that the settings name.
    """

    pipeline: Pipeline
    clock: int | None
    previous_clock: int | None
    read: SideTopics | None = None

    @property
    def topics(self) -> SideTopics:
        """The topics by which events are numbered."""
        return self.read or topics_of(self.pipeline)

    def over_before(self, end: Ints, clock: int | None) -> Flags:
        """True for sessions with these ends (epoch ms) that are over at `clock`: end + gap + grace < clock, strictly."""
        if clock is None:
            return np.zeros(len(end), dtype=bool)
        return end < clock - self.pipeline.gap_ms - self.pipeline.grace_ms


def event_schema(pipeline: Pipeline) -> pa.Schema:
    """Accepted events of both sides; ts in epoch ms, payload as JSON text. `is_open`: from open_events; `batch_id`: the batch that landed it.

    `partition`: the number of topic and partition (`side_topics`), the partition alone where a side has one topic.
    With `key_order: any` the key fields are in the pair's order, and `reversed` says whether the event's own order is the other one. Where a side
    has `compounds`: `SOURCE`, null in events of a side without, and `superseded`.
    """
    place = {"side": pa.int32(), "partition": pa.int32(), "offset": pa.int64()}
    about = {"ts": pa.int64(), "payload": pa.string(), "batch_id": pa.int64(), "is_open": pa.bool_()}
    direction = {REVERSED: pa.bool_()} if pipeline.is_unordered else {}
    compound = {name: SOURCE.field(name).type for name in source_names(pipeline)}
    compound |= {SUPERSEDED: pa.bool_()} if pipeline.has_compounds else {}
    return pa.schema(dict.fromkeys(pipeline.key, pa.string()) | place | about | direction | compound)


def source_names(pipeline: Pipeline) -> list[str]:
    """The columns of `SOURCE`, if a side has `compounds`."""
    return SOURCE.names if pipeline.has_compounds else []
