"""The words that all parts of the report share. Importing them takes no time and needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

Metrics = dict[str, float]
SIDES = ("left", "right")
ORPHANS = ("left_only", "right_only")
# How a batch was judged, and the words for it everywhere.
PASSED, WARNED, FAILED = range(3)
WORDS = ("passed", "warning", "failed")


def of_sides(sentences: Mapping[str, str]) -> dict[str, str]:
    """Name -> sentence, each that has a {side} once for every side."""
    return {name.format(side=side): text.format(side=side) for name, text in sentences.items() for side in SIDES}


class Breakdown(NamedTuple):
    """One row of a count that is broken down, kept beside the metrics: how many of `family` are in `bucket`, or have `value` in a key `field`.

    `bucket`: an hour (epoch ms of its first moment), an upper bound in ms (inclusive; None: beyond the last one), or a partition; then
    `field` is `topic` and `value` its topic where the side has several.
    """

    family: str
    number: int
    bucket: int | None = None
    field: str | None = None
    value: str | None = None


def rows_of(breakdowns: Iterable[Breakdown], family: str) -> list[Breakdown]:
    """The rows of one family, in their order."""
    return [row for row in breakdowns if row.family == family]


class NotJudged(IntEnum):
    """Why the messages on a topic cannot be judged; the metrics `delivery_not_judged` and `dead_letters_not_judged`."""

    RECREATED = 1
    RETENTION = 2
    RIGHT = 3
    TOMBSTONES = 4
    GONE = 5

    @property
    def sentence(self) -> str:
        """Continues "not judgeable, because"."""
        return _SENTENCES[self]


_SENTENCES = {
    NotJudged.RECREATED: "the topic was deleted and created again since",
    NotJudged.GONE: "the topic, which earlier settings named, is not there any more",
    NotJudged.RETENTION: "the topic's retention has removed a part of them",
    NotJudged.RIGHT: "some are not there, and the user may not see whether the topic is compacted (the right DescribeConfigs on it)",
    NotJudged.TOMBSTONES: "the topic is compacted, and tombstones that may have taken a key's last message are gone by now",
}
