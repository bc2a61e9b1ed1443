"""What the parts of the report say to each other, and nothing that takes time to import."""

from __future__ import annotations

from enum import IntEnum

Metrics = dict[str, float]
SIDES = ("left", "right")
ORPHANS = ("left_only", "right_only")


class NotJudged(IntEnum):
    """Why nobody can say whether all that was published is on the topic; kept as the metric `delivery_not_judged`."""

    RECREATED = 1
    RETENTION = 2
    RIGHT = 3
    TOMBSTONES = 4

    @property
    def sentence(self) -> str:
        """Continues "not judgeable, because"."""
        return _SENTENCES[self]


_SENTENCES = {
    NotJudged.RECREATED: "the topic was deleted and created again since",
    NotJudged.RETENTION: "the topic's retention has removed a part of them",
    NotJudged.RIGHT: "some are not there, and the user may not see whether the topic is compacted (the right DescribeConfigs on it)",
    NotJudged.TOMBSTONES: "the topic is compacted, and tombstones that may have taken a key's last message are gone by now",
}
