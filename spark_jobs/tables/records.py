"""What the ledger keeps of a batch, typed: its plan, the counts of each of its steps, and where the output topic ended.

In the table a plan is the struct `plan`, counts are the map `counts`, and the state of the output topic is the struct `output`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from pyspark.sql import Column

from include.config.time_text import moment
from spark_jobs.rules.outcomes import Outcome

LIVE, REPLAY, REWIND = "live", "replay", "rewind"
# What the counts of a paired batch have a field for, each.
OUTCOMES = tuple(str(outcome) for outcome in Outcome if outcome is not Outcome.OPEN)


class Window(NamedTuple):
    """An interval of event time in epoch ms, `start` inclusive, `end` exclusive."""

    start: int
    end: int

    def has(self, ts: Column) -> Column:
        """Whether the timestamp lies in the interval."""
        return (ts >= self.start) & (ts < self.end)

    def __str__(self) -> str:
        return f"{moment(self.start)} to {moment(self.end)}"


class Corrected(NamedTuple):
    """Compounds of void batches may come back. Their last revision is in compound_events, in the rows of the batches first..last, both
    inclusive.
    """

    first: int
    last: int


class TopicIds(NamedTuple):
    """Kafka's ids of both input topics: a topic that is created again has another one."""

    left: str
    right: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every batch begins with. `open_before`: events that the batches before it left open."""

    open_before: int
    topic_ids: TopicIds
    corrected: Corrected | None = None


@dataclass(frozen=True, kw_only=True)
class LivePlan(Plan):
    """Reads new records. `gone_at_start`: offsets that the topics had lost before the pipeline's first batch; 0 in all others."""

    gone_at_start: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayPlan(Plan):
    """Pairs an interval again. `reach_ms`: how long before its own event a compound can have begun. `removed_until`: raw rows with
    events up to this event time (epoch ms, inclusive) may have been removed for their age; None if none were.
    """

    window: Window
    reach_ms: int
    removed_until: int | None = None


@dataclass(frozen=True, kw_only=True)
class RewindPlan(Plan):
    """Goes back to what batch `to_batch` left; 0: to the time before the first batch."""

    to_batch: int


AnyPlan = LivePlan | ReplayPlan | RewindPlan
KINDS: Mapping[type[Plan], str] = {LivePlan: LIVE, ReplayPlan: REPLAY, RewindPlan: REWIND}
_PLANS = {kind: plan for plan, kind in KINDS.items()}
# Only one kind of plan has them.
_OWN = ("gone_at_start", "reach_ms", "removed_until", "to_batch")
PLAN_COLUMNS = (
    "struct<open_before: bigint, left_topic_id: string, right_topic_id: string, corrected_from: bigint, corrected_to: bigint, "
    "gone_at_start: bigint, window_start: bigint, window_end: bigint, reach_ms: bigint, removed_until: bigint, to_batch: bigint>"
)


def plan_struct(plan: AnyPlan) -> dict[str, Any]:
    """The plan as a value of the column `plan`; what it does not have is null."""
    window = plan.window if isinstance(plan, ReplayPlan) else None
    return {
        "open_before": plan.open_before,
        "left_topic_id": plan.topic_ids.left,
        "right_topic_id": plan.topic_ids.right,
        "corrected_from": plan.corrected.first if plan.corrected else None,
        "corrected_to": plan.corrected.last if plan.corrected else None,
        "window_start": window.start if window else None,
        "window_end": window.end if window else None,
        **{name: getattr(plan, name, None) for name in _OWN},
    }


def plan_of_struct(kind: str, row: Mapping[str, Any]) -> AnyPlan:
    """The plan of a batch of this kind, out of a value of the column `plan`."""
    made = _PLANS[kind]
    given: dict[str, Any] = {each.name: row[each.name] for each in fields(made) if each.name in row}
    given["topic_ids"] = TopicIds(row["left_topic_id"], row["right_topic_id"])
    if row["corrected_to"] is not None:
        given["corrected"] = Corrected(row["corrected_from"], row["corrected_to"])
    if made is ReplayPlan:
        given["window"] = Window(row["window_start"], row["window_end"])
    return made(**given)  # type: ignore[return-value]  # _PLANS has no other classes


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """The counts of one step. In the table and in what a job ends with, counts that have a default are left out where they are that."""

    def flat(self) -> dict[str, int]:
        """Name -> count, in the order of the fields."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != each.default}

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        """The counts as `flat` returned them; raises TypeError on a name that is not a field, and on a missing one."""
        return cls(**counts)


@dataclass(frozen=True, kw_only=True)
class LandedCounts(StepCounts):
    """planned offsets = landed rows + offset_gaps; landed = accepted + those with a problem.

    `lost`: offsets that the operator gave up; `backlog`: offsets that were there and not planned; `held`: offsets behind open
    transactions, `held_since`: epoch ms of the oldest.
    """

    planned: int
    landed: int
    offset_gaps: int
    lost: int
    backlog: int
    accepted: int
    landed_left: int
    accepted_left: int
    landed_right: int
    accepted_right: int
    malformed_json: int = 0
    missing_key: int = 0
    bad_timestamp: int = 0
    future: int = 0
    bad_header: int = 0
    gone_at_start: int = 0
    held: int
    held_since: int | None = None


@dataclass(frozen=True, kw_only=True)
class PairedCounts(StepCounts):
    """open_before + accepted events = open_after + those of all outcomes. `rejected` rows: of the batch's landing and pairing.

    `compounds`: rows of compound_events, in a replay or rewind `new`, `changed` or `retracted` ones; `unchanged` are not written.
    """

    open_before: int
    accepted: int
    compounds: int
    rejected: int
    pair: int
    left_only: int
    right_only: int
    duplicate: int
    late: int
    collapsed: int
    open_after: int
    new: int = 0
    changed: int = 0
    retracted: int = 0
    unchanged: int = 0


def correction_counts(plan: Plan, **counts: int) -> PairedCounts:
    """The counts of a batch that landed and paired nothing and only corrected: zero, but for `counts` and its open events."""
    nothing = dict.fromkeys(("accepted", "rejected", *OUTCOMES), 0)
    return PairedCounts(open_before=plan.open_before, open_after=plan.open_before, **nothing, **counts)


@dataclass(frozen=True, kw_only=True)
class PublishedCounts(StepCounts):
    """`compounds`: acknowledged records; `refused`: those that the topic does not take for their size."""

    compounds: int
    refused: int = 0


@dataclass(frozen=True, kw_only=True)
class ReportedCounts(StepCounts):
    """`first_of_report`: the first batch of the same report."""

    failed_checks: int
    first_of_report: int


@dataclass(frozen=True, kw_only=True)
class RemovedCounts(StepCounts):
    """Rows removed for their age by this step, and ever; `first_batch`: the first batch whose rows this step removes.

    `removed_until`: the largest timestamp (epoch ms) of an event that was ever removed. `late_given_up`: late events removed before
    any replay took them in.
    """

    removed: int
    removed_ever: int
    first_batch: int
    removed_until: int | None = None
    late_given_up: int = 0


@dataclass(frozen=True, kw_only=True)
class RemovedBatches(RemovedCounts):
    """Rows of the ledger removed, and the sums over all batches that ever were: `batches` live ones, `corrections` others."""

    batches: int = 0
    corrections: int = 0
    compounds: int = 0
    published: int = 0
    landed: int = 0
    accepted: int = 0
    offset_gaps: int = 0
    lost: int = 0
    rejected: int = 0
    pair: int = 0
    left_only: int = 0
    right_only: int = 0
    duplicate: int = 0
    late: int = 0
    collapsed: int = 0


@dataclass(frozen=True)
class OutputState:
    """The output topic as publishing found it (step `publishing`) or left it (`published`).

    `ends`: partition -> end, exclusive. `sent`: partition -> acknowledged records of the batch. `position`: the last batch of the same
    transaction. `positions_kept_minutes`: for so long the broker keeps positions; None if it does not say.
    """

    topic_id: str
    partitions: int
    ends: Mapping[int, int] = field(default_factory=dict)
    sent: Mapping[int, int] = field(default_factory=dict)
    position: int | None = None
    positions_kept_minutes: int | None = None


OUTPUT_COLUMNS = (
    "struct<topic_id: string, partitions: int, ends: map<int, bigint>, sent: map<int, bigint>, position: bigint, "
    "positions_kept_minutes: bigint>"
)


def output_of_struct(row: Mapping[str, Any] | None) -> OutputState | None:
    """The state out of a value of the column `output`, whose maps are lists of pairs."""
    return None if row is None else OutputState(**{**row, "ends": dict(row["ends"]), "sent": dict(row["sent"])})
