"""A row of the ledger: one step of one batch, with the batch's plan, its offsets and settings, and what the step counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from include.config.pipeline import Pipeline
from spark_jobs.rules.side_topics import SideTopics, topics_of
from spark_jobs.tables.records import (
    KINDS,
    AnyPlan,
    DeadLetterCounts,
    ErasedCounts,
    LandedCounts,
    OutputState,
    PairedCounts,
    PublishedCounts,
    RemovedBatches,
    RemovedCounts,
    ReplayPlan,
    ReportedCounts,
    RewindPlan,
    StepCounts,
    output_of_struct,
    plan_of_struct,
    plan_struct,
)

PLANNED, LANDED, PAIRED, PUBLISHED, REPORTED = STEPS = ("planned", "landed", "paired", "published", "reported")
# Written before the first message of a batch: where the output partitions end, so that messages sent from then on can be found.
PUBLISHING = "publishing"
# Of batches whose settings name such a topic, in the same commit as `published`, which is of the output topic.
PUBLISHED_ORPHANS, PUBLISHED_REJECTED = "published_orphans", "published_rejected"
# Of compounds; and of all messages.
PUBLICATIONS = (PUBLISHED, PUBLISHED_ORPHANS)
ALL_PUBLICATIONS = (*PUBLICATIONS, PUBLISHED_REJECTED)
# Only some batches have these. They remove rows for their age: of raw rows, rejected rows and compounds those of the batch and of all
# before it; of the ledger and the metrics those of all before it, so that the batch's own rows are the first that are left.
REMOVALS = ("removed_raw", "removed_rejected", "removed_compounds", "removed_ledger")
REMOVED_RAW, REMOVED_REJECTED, REMOVED_COMPOUNDS, REMOVED_LEDGER = REMOVALS
# The last step of an erasure: nothing of what it erases is left.
ERASED = "erased"
_IN_ORDER = (
    PLANNED,
    LANDED,
    PAIRED,
    PUBLISHING,
    PUBLISHED_REJECTED,
    PUBLISHED_ORPHANS,
    PUBLISHED,
    REPORTED,
    *REMOVALS,
    ERASED,
)
_COUNTS: Mapping[str, type[StepCounts]] = {
    LANDED: LandedCounts,
    PAIRED: PairedCounts,
    **dict.fromkeys(PUBLICATIONS, PublishedCounts),
    PUBLISHED_REJECTED: DeadLetterCounts,
    REPORTED: ReportedCounts,
    **dict.fromkeys(REMOVALS, RemovedCounts),
    REMOVED_LEDGER: RemovedBatches,
    ERASED: ErasedCounts,
}
_T = TypeVar("_T")


class OffsetRange(NamedTuple):
    """The offsets of one partition that a batch reads."""

    topic: str
    partition: int
    from_offset: int  # inclusive
    until_offset: int  # exclusive
    end_offset: int  # the end for read_committed, exclusive, asked for after W
    max_ts: int | None = None  # largest accepted timestamp landed from the partition so far (epoch ms; None: none yet)
    lost: int = 0  # records before from_offset that the broker no longer had and the operator gave up
    # The first offset that the partition had when the pipeline planned its first batch; the same in all batches.
    began: int = 0
    # How many offsets, from `cut_from` on, the log had at its end and then lost; the operator gave them up.
    cut_from: int = 0
    cut: int = 0
    epoch: int = -1  # the leader epoch of end_offset, -1 if the broker did not say

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def planned(self) -> int:
        """Offsets in the range."""
        return self.until_offset - self.from_offset

    def behind(self) -> OffsetRange:
        """The empty range behind this one, for a batch that reads nothing."""
        return self._replace(from_offset=self.until_offset, lost=0, cut_from=0, cut=0)


class Rewind(NamedTuple):
    """A rewind as it was planned: the batches between `to_batch` and `batch_id`, both exclusive, are void."""

    batch_id: int
    to_batch: int

    def voids(self, batch_id: int) -> bool:
        return self.to_batch < batch_id < self.batch_id


def find_rewinds(rows: Iterable[LedgerRow]) -> list[Rewind]:
    """The rewinds planned in these rows, by batch_id."""
    plans = ((row.batch_id, row.plan) for row in rows if row.step == PLANNED)
    return sorted(Rewind(batch_id, plan.to_batch) for batch_id, plan in plans if isinstance(plan, RewindPlan))


class _TypedField(Generic[_T]):
    """A field of a row as the type that it has in rows of one step or in batches of one kind; raises TypeError in others."""

    def __init__(self, field: str, wanted: type[_T]) -> None:
        self.field, self.wanted = field, wanted

    def __get__(self, row: LedgerRow, owner: type[LedgerRow]) -> _T:
        value = getattr(row, self.field)
        if not isinstance(value, self.wanted):
            raise TypeError(f"the row has a {type(value).__name__}, not a {self.wanted.__name__}")
        return value


@dataclass(frozen=True)
class LedgerRow:
    """One step of one batch."""

    batch_id: int
    step: str
    plan: AnyPlan  # the batch's plan, in all of its rows
    offsets: tuple[OffsetRange, ...]
    wall_time: int  # W, in epoch ms
    clock: int | None  # the batch's clock, in epoch ms; None: minus infinity
    config: str  # the settings in JSON
    config_hash: str
    started_at: datetime
    counts: StepCounts = field(default_factory=StepCounts)
    output: OutputState | None = None
    versions: dict[str, int] = field(default_factory=dict)
    finished_at: datetime | None = None

    @property
    def kind(self) -> str:
        """`live`, `replay`, `rewind` or `erasure`."""
        return KINDS[type(self.plan)]

    @property
    def pipeline(self) -> Pipeline:
        """The settings that the batch was planned with; it is finished with these even if the file has changed since."""
        return Pipeline.from_json(self.config)

    @property
    def topics(self) -> SideTopics:
        """The topics of both sides that the batch knows of."""
        return topics_of(self.pipeline, {at.topic for at in self.offsets})

    @property
    def topic_ids(self) -> dict[str, str]:
        """Kafka's id of each topic that the batch or one before it has read; the settings of a correction may name others already."""
        read = {at.topic for at in self.offsets}
        left, right = (tuple(topic for topic in mine if topic in read) for mine in self.topics)
        return self.plan.topic_ids.by_topic(SideTopics(left, right))

    @property
    def published_to(self) -> str:
        """The topic that a row of a publication is of."""
        pipeline = self.pipeline
        beside = {PUBLISHED_ORPHANS: pipeline.output_orphans_topic, PUBLISHED_REJECTED: pipeline.output_rejected_topic}
        return beside.get(self.step) or pipeline.output_topic

    replay = _TypedField("plan", ReplayPlan)
    rewind = _TypedField("plan", RewindPlan)
    landed = _TypedField("counts", LandedCounts)
    paired = _TypedField("counts", PairedCounts)
    published = _TypedField("counts", PublishedCounts)
    dead_letters = _TypedField("counts", DeadLetterCounts)
    reported = _TypedField("counts", ReportedCounts)
    removed = _TypedField("counts", RemovedCounts)
    output_state = _TypedField("output", OutputState)

    def planned_next(self, plan: AnyPlan, pipeline: Pipeline) -> LedgerRow:
        """The plan of the batch after this `paired` row, as a row: one that reads nothing from the topics and goes on from here."""
        now = datetime.now(UTC)
        return LedgerRow(
            batch_id=self.batch_id + 1,
            step=PLANNED,
            plan=plan,
            offsets=tuple(at.behind() for at in self.offsets),
            wall_time=int(now.timestamp() * 1000),
            clock=self.clock,
            versions=self.versions,
            config=pipeline.to_json(),
            config_hash=pipeline.config_hash,
            started_at=now,
        )

    def next_step(self, step: str, started_at: datetime, counts: StepCounts, **changes: Any) -> LedgerRow:
        return replace(self, step=step, started_at=started_at, counts=counts, **({"output": None} | changes))


COLUMNS = tuple(each.name for each in fields(LedgerRow))


def in_order(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    return sorted(rows, key=lambda row: (row.batch_id, _IN_ORDER.index(row.step)))


def row_struct(row: LedgerRow) -> dict[str, Any]:
    return {
        **vars(row),
        "kind": row.kind,
        "plan": plan_struct(row.plan),
        "offsets": [offsets._asdict() for offsets in row.offsets],
        "counts": row.counts.flat(),
        "output": asdict(row.output) if row.output else None,
    }


def row_of_struct(row: dict[str, Any]) -> LedgerRow:
    # Arrow has maps as lists of pairs.
    typed = {
        "plan": plan_of_struct(row["kind"], row["plan"]),
        "offsets": tuple(OffsetRange(**offsets) for offsets in row["offsets"]),
        "counts": _COUNTS.get(row["step"], StepCounts)(**dict(row["counts"])),
        "output": output_of_struct(row["output"]),
        "versions": dict(row["versions"]),
    }
    return LedgerRow(**{name: row[name] for name in COLUMNS} | typed)


def landing_of(steps: Mapping[str, LedgerRow]) -> LandedCounts:
    """The counts of a batch's landing; for a correction, which lands nothing, zeros and the backlog of its ranges.

    `steps`: the batch's rows by step, with the `paired` one.
    """
    if LANDED in steps:
        return steps[LANDED].landed
    counts = dict.fromkeys((each.name for each in fields(LandedCounts) if each.default is MISSING), 0)
    backlog = sum(known.end_offset - known.until_offset for known in steps[PAIRED].offsets)
    return LandedCounts(**counts | {"backlog": backlog})


def acknowledged_compounds(steps: Mapping[str, LedgerRow]) -> int:
    """The compounds of a batch that are on its topics, 0 before it is published. `steps`: its rows by step."""
    return sum(steps[step].published.compounds for step in PUBLICATIONS if step in steps)


def removed_through(removals: Mapping[str, LedgerRow], step: str) -> int:
    """The last batch whose rows this one of REMOVALS removed for their age; 0 if there is none."""
    return removals[step].batch_id - (step == REMOVED_LEDGER) if step in removals else 0


def paired_batches(rows: Iterable[LedgerRow]) -> list[dict[str, LedgerRow]]:
    """The paired batches among these rows, as step -> row, by batch_id; without void ones, whose rows are gone from the tables."""
    known = list(rows)
    rewinds = find_rewinds(known)
    steps: dict[int, dict[str, LedgerRow]] = {}
    for row in known:
        if not any(rewind.voids(row.batch_id) for rewind in rewinds):
            steps.setdefault(row.batch_id, {})[row.step] = row
    return [batch for _, batch in sorted(steps.items()) if PAIRED in batch]
