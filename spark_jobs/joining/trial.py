"""Plays a proposed pipeline over the sample by the real rules, to see what share of each side would pair."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from include.config.pipeline import Pipeline
from spark_jobs.kafka.newest import NewestRecords
from spark_jobs.rules.outcomes import COMPOUNDS, Outcome
from spark_jobs.story.from_topics import messages_of
from spark_jobs.story.history import Batch
from spark_jobs.story.play import SIDES, PlayedBatch, Rehearsal

# A few early or late times do not say where a sample begins and ends.
_STRAYS = 0.01


class Share(NamedTuple):
    """Of `judged` events of a side, those far enough from the sample's ends, `paired` are in pairs.

    `outcomes`: of all its events. `rejected`: its records that are no events, by reason.
    """

    judged: int
    paired: int
    outcomes: dict[str, int]
    rejected: dict[str, int]

    @property
    def ratio(self) -> float:
        """From 0 to 1."""
        return self.paired / self.judged if self.judged else 0.0


def play_sample(pipeline: Pipeline, samples: tuple[NewestRecords, NewestRecords], wall_time: int) -> tuple[Share, Share]:
    """The shares of both sides, as one batch of this wall time (epoch ms) would pair them if its clock closed every session."""
    messages = [message for sample in samples for message in messages_of(sample.records)]
    clock = wall_time + pipeline.max_future_ms + pipeline.gap_ms + pipeline.grace_ms + 1
    played = Rehearsal(pipeline).play(Batch(1, messages, clock, wall_time, pipeline))
    begin, end = _both_there(played)
    # What an event near an end waits for may be outside of the sample.
    inside = (begin + pipeline.tolerance_ms, end - pipeline.tolerance_ms)
    if inside[0] >= inside[1]:
        inside = (begin, end)
    return _share(played, 0, inside), _share(played, 1, inside)


def _both_there(played: PlayedBatch) -> tuple[int, int]:
    """From when until when both sides have events (epoch ms, inclusive)."""
    side, at = (played.events.column(name).to_numpy() for name in ("side", "ts"))
    spans = [np.quantile(at[side == number], (_STRAYS, 1 - _STRAYS)) for number, _ in SIDES if (side == number).any()]
    if len(spans) < len(SIDES):
        return 0, 0
    return int(max(first for first, _ in spans)), int(min(last for _, last in spans))


def _share(played: PlayedBatch, number: int, inside: tuple[int, int]) -> Share:
    name = SIDES[number][1]
    found = zip(played.outcomes.column("outcome").to_pylist(), played.outcomes.column(f"{name}_ts").to_pylist(), strict=True)
    mine = [(outcome, at) for outcome, at in found if at is not None]
    judged = Counter(outcome for outcome, at in mine if outcome in COMPOUNDS and inside[0] <= at <= inside[1])
    messages = played.messages
    problems = [
        problem
        for problem, side in zip(messages.column("problem").to_pylist(), messages.column("side").to_pylist(), strict=True)
        if side == number and problem is not None
    ]
    return Share(
        judged.total(), judged[Outcome.PAIR], dict(Counter(outcome for outcome, _ in mine)), dict(Counter(problems))
    )
