"""The topics of both sides in a batch, and one number for topic and partition of an event: all that the rules carry of where it came from.

Where a side has one topic, the number is the partition. Otherwise it is the topic's place among those of its side, by name, in front of the
partition. A batch with other topics has other numbers, so no table keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline

# Topics a side, and partitions a topic where a side has several topics: both together are below 2^31.
MOST_TOPICS = 2**11
MOST_PARTITIONS = 2**20


class SideTopics(NamedTuple):
    """The topics of the left and the right side, each by name."""

    left: tuple[str, ...]
    right: tuple[str, ...]

    def ranks(self, side: npt.NDArray, place: npt.NDArray) -> npt.NDArray[np.int64]:
        """The rank by name, among the topics of both sides, of the topic of events with these sides (LEFT, RIGHT) and numbers (`pack`).

        >>> SideTopics(("b",), ("a", "c")).ranks(np.array([0, 1, 1]), np.array([7, 7, 7 + MOST_PARTITIONS])).tolist()
        [1, 0, 2]
        """
        by_name = np.argsort(np.argsort(np.array([*self.left, *self.right])))
        is_right, number = side == 1, np.zeros(len(place), dtype=np.int64)
        for mine, topics in ((~is_right, self.left), (is_right, self.right)):
            if len(topics) > 1:
                number[mine] = place[mine] // MOST_PARTITIONS
        return by_name[number + is_right * len(self.left)]


def has_several(topics: SideTopics) -> bool:
    """Whether a side has more than one topic, so that events have to say which."""
    return max(map(len, topics)) > 1


def topics_of(pipeline: Pipeline, read: Iterable[str] = ()) -> SideTopics:
    """Those that the settings name, and of `read` those that are of a side."""
    known = set(read)
    left, right = (tuple(sorted({*side.named_topics, *filter(side.has, known)})) for side in pipeline.sides)
    return SideTopics(left, right)


def pack(topics: tuple[str, ...], topic: pa.Array, partition: pa.Array) -> pa.Array:
    """The numbers of events of one side (int32). `topics`: of the side; not looked at where there is one.

    >>> pack(("a", "b"), pa.array(["b", "a"]), pa.array([3, 4], pa.int32())).to_pylist()
    [1048579, 4]
    """
    if len(topics) < 2:
        return partition
    number = pc.index_in(topic, value_set=pa.array(topics, pa.string()))
    return pc.add(pc.multiply(number, pa.scalar(MOST_PARTITIONS, pa.int32())), partition)


def unpack(topics: tuple[str, ...], place: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Topic and partition of events of one side by their numbers; null where the number is.

    >>> [column.to_pylist() for column in unpack(("a", "b"), pa.array([1048579, None, 4], pa.int32()))]
    [['b', None, 'a'], [3, None, 4]]
    """
    if len(topics) < 2:
        name = pa.scalar(topics[0] if topics else None, pa.string())
        return pc.if_else(pc.is_valid(place), name, pa.scalar(None, pa.string())), place
    number = pc.divide(place, pa.scalar(MOST_PARTITIONS, pa.int32()))
    partition = pc.subtract(place, pc.multiply(number, pa.scalar(MOST_PARTITIONS, pa.int32())))
    return pa.array(topics, pa.string()).take(number), partition


def located(topics: tuple[str, ...], place: int) -> tuple[str, int]:
    """Topic and partition of one number, as `unpack`.

    >>> located(("a", "b"), 1048579), located(("a",), 7)
    (('b', 3), ('a', 7))
    """
    if len(topics) < 2:
        return topics[0], place
    number, partition = divmod(place, MOST_PARTITIONS)
    return topics[number], partition


def renumbered(events: pa.Table, before: SideTopics, now: SideTopics) -> pa.Table:
    """Events (`event_schema`) as they are numbered in a batch with other topics, among which theirs are."""
    if before == now:
        return events
    at, schema = events.schema.get_field_index("partition"), events.schema
    parts = []
    for side, (old, new) in enumerate(zip(before, now, strict=True)):
        mine = events.filter(pc.equal(events["side"], side))
        place = pack(new, *unpack(old, mine["partition"].combine_chunks()))
        parts.append(mine.set_column(at, schema.field(at), place))
    return pa.concat_tables(parts)
