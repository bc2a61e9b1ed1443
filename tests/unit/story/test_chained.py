"""The story of a call in a chain: revisions, copies and retractions of the compounds that it is made of."""

from __future__ import annotations

import json
from dataclasses import replace

from spark_jobs.story.history import Batch, Message
from spark_jobs.story.play import fates, play
from spark_jobs.story.sentences import EventStory
from tests.helpers.timeline import SMALL, T0

CHAINED = replace(SMALL, left=replace(SMALL.left, compounds=True))


def compound(offset, pair_id, revision, at=None, spaces=None):
    """A record of the left topic; without a time a retraction."""
    body = {"user1": "u", "user2": "v", "ts": T0 + (at or 0), "analytics": {"n": 1}}
    value = None if at is None else json.dumps(body, indent=spaces).encode()
    op = b"retract" if value is None else b"upsert"
    headers = (("pair-id", pair_id), ("revision", str(revision).encode()), ("kind", b"pair"), ("op", op))
    return Message(CHAINED.left.topic, 0, offset, T0, value, headers=headers)


def test_each_record_has_its_fate():
    first = [compound(0, b"a-0-0", 0, 0), compound(1, b"a-0-1", 0, 50), compound(2, b"a-0-2", 0, 60)]
    # A correction, a copy that a mirror wrote anew, and a retraction.
    second = [compound(3, b"a-0-0", 1, 10), compound(4, b"a-0-1", 0, 50, spaces=2), compound(5, b"a-0-2", 1)]
    clocks = (T0, T0 + 10_000)
    batches = [
        Batch(n, mine, clock, clock, CHAINED) for n, (mine, clock) in enumerate(zip((first, second), clocks, strict=True), 1)
    ]
    events = EventStory(CHAINED, batches, play(batches))
    (copy,) = (fate for fate in events.fates if fate.verdict == "duplicate")
    # What they say differs in their spaces, and might in more.
    assert list(events.paragraph(copy))[-1].endswith("same side, key, timestamp and compound")
    told = {fate.source.rpartition("-")[2]: (fate.verdict, fate.batch, fate.partner) for fate in fates(play(batches))}
    assert told == {
        "0": ("superseded", 2, None),
        "1": ("left_only", 2, None),
        "2": ("superseded", 2, None),
        "3": ("left_only", 2, None),
        "4": ("duplicate", 2, f"{CHAINED.left.topic}-0-1"),
        "5": ("retraction", 2, None),
    }
