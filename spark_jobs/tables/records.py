"""The typed parts of a ledger row: the plan of the batch, the counts of a step, and where the output topic ended.

In the table, a plan is the struct `plan`, counts are the map `counts`, and the state of the output topic is the struct `output`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from pyspark.sql import Column

from include.config.time_text import moment
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.side_topics import SideTopics

LIVE, REPLAY, REWIND, ERASURE = "live", "replay", "rewind", "erasure"
# Each of them has a field in PairedCounts.
OUTCOMES = tuple(str(outcome) for outcome in Outcome if outcome is not Outcome.OPEN)


class Window(NamedTuple):
    """An interval of event time in epoch ms, `start` inclusive, `end` exclusive."""

    start: int
    end: int

    def has(self, ts: Column) -> Column:
        return (ts >= self.start) & (ts < self.end)

    def __str__(self) -> str:
        return f"{moment(self.start)} to {moment(self.end)}"


class CorrectedBatches(NamedTuple):
    """After a rewind, compounds of void batches may come back. The rows of the batches first..last, both inclusive, in compound_events
    have their last revision.
    """

    first: int
    last: int


class TopicIds(NamedTuple):
    """Kafka's ids of the topics of each side: a topic that is created again has another id.

    The id alone where a side has one topic, else `topic=id` of each, with blanks between: neither has any of these characters.
    """

    left: str
    right: str

    @classmethod
    def of(cls, topics: SideTopics, ids: Mapping[str, str]) -> TopicIds:
        """`ids`: topic -> id."""
        left, right = (
            ids[mine[0]] if len(mine) == 1 else " ".join(f"{topic}={ids[topic]}" for topic in mine) for mine in topics
        )
        return cls(left, right)

    def by_topic(self, topics: SideTopics) -> dict[str, str]:
        """Topic -> id. `topics`: those that they are of.

        >>> TopicIds("x", "b=y c=z").by_topic(SideTopics(("a",), ("b", "c")))
        {'a': 'x', 'b': 'y', 'c': 'z'}
        """
        found: dict[str, str] = {}
        for mine, text in zip(topics, self, strict=True):
            named = [each.partition("=") for each in text.split(" ")]
            found |= {topic: its for topic, equals, its in named if equals} or dict.fromkeys(mine[:1], text)
        return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every batch starts from."""

    open_before: int  # events that the batches before it left open
    topic_ids: TopicIds
    corrected: CorrectedBatches | None = None  # where this batch looks up revisions after a rewind


@dataclass(frozen=True, kw_only=True)
class LivePlan(Plan):
    """Reads new records."""

    gone_at_start: int = 0  # offsets that the topics that are new with this batch had lost before


@dataclass(frozen=True, kw_only=True)
class ReplayPlan(Plan):
    """Pairs an interval again."""

    window: Window
    reach_ms: int  # how long before its own event a compound can have begun
    # Raw rows with events up to this event time (epoch ms, inclusive) may have been removed for their age; None if none were.
    removed_until: int | None = None


@dataclass(frozen=True, kw_only=True)
class RewindPlan(Plan):
    """Goes back to the state after batch `to_batch`; 0: before the first batch."""

    to_batch: int


@dataclass(frozen=True, kw_only=True)
class ErasurePlan(Plan):
    """Erases what names somebody. Which rows that are is in a file beside the tables (`ErasureList`), by places and numbers alone."""


AnyPlan = LivePlan | ReplayPlan | RewindPlan | ErasurePlan
KINDS: Mapping[type[Plan], str] = {LivePlan: LIVE, ReplayPlan: REPLAY, RewindPlan: REWIND, ErasurePlan: ERASURE}
_PLANS = {kind: plan for plan, kind in KINDS.items()}
# Fields that only one kind of plan has.
_OWN = ("gone_at_start", "reach_ms", "removed_until", "to_batch")
PLAN_COLUMNS = (
    "struct<open_before: bigint, left_topic_id: string, right_topic_id: string, corrected_from: bigint, corrected_to: bigint, "
    "gone_at_start: bigint, window_start: bigint, window_end: bigint, reach_ms: bigint, removed_until: bigint, to_batch: bigint>"
)


def plan_struct(plan: AnyPlan) -> dict[str, Any]:
    """The plan as a value of the column `plan`; fields of other kinds are null."""
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
    """The plan of a batch of this kind, from a value of the column `plan`."""
    made = _PLANS[kind]
    given: dict[str, Any] = {each.name: row[each.name] for each in fields(made) if each.name in row}
    given["topic_ids"] = TopicIds(row["left_topic_id"], row["right_topic_id"])
    if row["corrected_to"] is not None:
        given["corrected"] = CorrectedBatches(row["corrected_from"], row["corrected_to"])
    if made is ReplayPlan:
        given["window"] = Window(row["window_start"], row["window_end"])
    return made(**given)  # type: ignore[return-value]  # _PLANS has no other classes


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """The counts of one step. The table and a job's last line leave out counts that equal their default."""

    def flat(self) -> dict[str, int]:
        """Name -> count, in the order of the fields."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != each.default}


@dataclass(frozen=True, kw_only=True)
class LandedCounts(StepCounts):
    """planned offsets = landed rows + offset_gaps; landed = accepted + filtered + those with a reason to be rejected."""

    planned: int
    landed: int
    offset_gaps: int
    lost: int  # offsets that the operator gave up
    backlog: int  # offsets on the broker that were not planned
    accepted: int
    landed_left: int
    accepted_left: int
    landed_right: int
    accepted_right: int
    filtered: int = 0  # not selected by `only`; in neither `accepted` nor the rejected events
    unknown_schema: int = 0
    undecodable: int = 0
    malformed_json: int = 0
    missing_key: int = 0
    bad_timestamp: int = 0
    future: int = 0
    bad_header: int = 0
    gone_at_start: int = 0
    held: int  # offsets behind open transactions
    held_since: int | None = None  # the begin of the oldest of these (epoch ms)
    # Of sides with `compounds`.
    retraction: int = 0
    not_compound: int = 0
    revised: int = 0  # records with a revision above 0, those with a problem included


@dataclass(frozen=True, kw_only=True)
class PairedCounts(StepCounts):
    """open_before + accepted events = open_after + erased + the events of all outcomes."""

    open_before: int
    accepted: int
    compounds: int  # rows of compound_events; in a replay or rewind those that are new, changed or retracted
    rejected: int  # rows of rejected_events, from landing and pairing
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
    unchanged: int = 0  # not written
    erased: int = 0  # events that were open
    erased_landed: int = 0  # raw rows emptied
    superseded: int = 0


def correction_counts(plan: Plan, **counts: int) -> PairedCounts:
    """The counts of a replay, rewind or erasure, which lands and pairs nothing: zero, except for `counts` and the open events."""
    nothing = dict.fromkeys(("accepted", "rejected", *OUTCOMES), 0)
    left = plan.open_before - counts.get("erased", 0)
    return PairedCounts(open_before=plan.open_before, open_after=left, **nothing, **counts)


@dataclass(frozen=True, kw_only=True)
class PublishedCounts(StepCounts):
    """Records on one topic."""

    compounds: int  # acknowledged records, less those withdrawn
    refused: int = 0  # records that the topic refuses because of their size
    withdrawn: int = 0  # retractions of compounds that are on another topic from this batch on


@dataclass(frozen=True, kw_only=True)
class DeadLetterCounts(StepCounts):
    """Records on the rejected topic."""

    dead_letters: int  # acknowledged records
    refused: int = 0  # rejected records that the topic refuses because of their size


@dataclass(frozen=True, kw_only=True)
class ReportedCounts(StepCounts):
    """The verdict on a batch."""

    failed_checks: int
    first_of_report: int  # the first batch of the same report


@dataclass(frozen=True, kw_only=True)
class RemovedCounts(StepCounts):
    """Rows removed for their age, by this step and ever."""

    removed: int
    removed_ever: int
    first_batch: int  # the first batch whose rows this step removes
    removed_until: int | None = None  # the largest timestamp (epoch ms) of an event that was ever removed
    late_given_up: int = 0  # late events that were removed before a replay included them


@dataclass(frozen=True, kw_only=True)
class RemovedBatches(RemovedCounts):
    """Removed rows of the ledger, and the sums over all batches whose rows were ever removed."""

    batches: int = 0  # live ones
    corrections: int = 0  # replays and rewinds
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
    superseded: int = 0


@dataclass(frozen=True, kw_only=True)
class ErasedCounts(StepCounts):
    """What an erasure emptied or deleted, rows by table."""

    raw_left: int
    raw_right: int
    open_events: int
    rejected_events: int
    compound_events: int
    quality_metrics: int
    pages: int  # quality pages in which a name was replaced
    tombstones: int  # messages without a value on the output topic
    files: int  # files of older versions


@dataclass(frozen=True)
class OutputState:
    """The output topic, or one beside it, as publishing found it (step `publishing`) or left it (`published…`)."""

    topic_id: str
    partitions: int  # number of its partitions
    ends: Mapping[int, int] = field(default_factory=dict)  # partition -> end, exclusive
    sent: Mapping[int, int] = field(default_factory=dict)  # partition -> acknowledged records of the batch
    position: int | None = None  # the last batch of the same transaction
    positions_kept_minutes: int | None = None  # how long the broker keeps positions; None if it does not say


OUTPUT_COLUMNS = (
    "struct<topic_id: string, partitions: int, ends: map<int, bigint>, sent: map<int, bigint>, position: bigint, "
    "positions_kept_minutes: bigint>"
)


def output_of_struct(row: Mapping[str, Any] | None) -> OutputState | None:
    """The state from a value of the column `output`, whose maps are lists of pairs."""
    return None if row is None else OutputState(**{**row, "ends": dict(row["ends"]), "sent": dict(row["sent"])})
