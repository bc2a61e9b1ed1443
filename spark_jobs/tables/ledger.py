"""The ledger: one row for each step of every batch. It is the record of what happened; every job reads it first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.rules.side_topics import SideTopics, topics_of
from spark_jobs.tables.batch_settings import BatchSettings
from spark_jobs.tables.commit import commit_rows
from spark_jobs.tables.records import (
    ERASURE,
    KINDS,
    REWIND,
    AnyPlan,
    DeadLetterCounts,
    ErasedCounts,
    LandedCounts,
    LivePlan,
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
from spark_jobs.tables.schemas import LEDGER
from spark_jobs.tables.tables import Condition, Tables

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
# What this process has recorded, in that order.
_recorded: list[LedgerRow] = []
# A step seldom lags behind by more batches than the first number, hardly ever by more than the second, and never by the last.
_RECENT = (1, 20, 2**40)


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


_COLUMNS = tuple(each.name for each in fields(LedgerRow))


class Ledger:
    """Reads and appends ledger rows of one pipeline."""

    def __init__(self, warehouse: Tables) -> None:
        self.warehouse = warehouse

    def last_batch(self) -> dict[str, LedgerRow]:
        """Step -> row of the batch with the largest id; empty before the first plan."""
        return {row.step: row for row in self._checked(self.warehouse.newest_rows(LEDGER, 0))}

    def last_ids(self) -> dict[str, int]:
        """Step -> the largest batch_id with this step; 0 if there is none."""
        found = dict.fromkeys(STEPS, 0)
        for before in _RECENT:
            recent = self.warehouse.newest_rows(LEDGER, before, ["batch_id", "step"])
            for row in recent:
                if row["step"] in found:
                    found[row["step"]] = max(found[row["step"]], row["batch_id"])
            if all(found.values()) or min((row["batch_id"] for row in recent), default=1) == 1:
                break
        return found

    def rows(self, first: int, last: int | None = None) -> list[LedgerRow]:
        """All rows of the batches first..last, both inclusive, by batch and step; `last` None: up to the newest."""
        return self._checked(self.warehouse.small_rows(LEDGER, first, last))

    def where(self, condition: Condition) -> list[LedgerRow]:
        """The rows that fit, by batch and step."""
        return _in_order(map(_from_row, self.warehouse.select_rows(LEDGER, ["kind", *_COLUMNS], condition)))

    def rewinds(self) -> list[Rewind]:
        """Every rewind that was ever planned, by batch_id."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "kind", "step"])
        ids = [row["batch_id"] for row in known if (row["kind"], row["step"]) == (REWIND, PLANNED)]
        return find_rewinds(row for batch_id in ids for row in self.rows(batch_id, batch_id))

    def last_erasure(self) -> int:
        """The last erasure that was ever planned; 0 if there is none."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "kind"])
        return max((row["batch_id"] for row in known if row["kind"] == ERASURE), default=0)

    def settings(self) -> list[Pipeline]:
        """The different settings that batches were planned with."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["config"])
        return [Pipeline.from_json(text) for text in sorted({row["config"] for row in known})]

    def batch_settings(self) -> BatchSettings:
        """The settings of every batch. Call only when there is one."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "config"])
        return BatchSettings.of((row["batch_id"], row["config"]) for row in known)

    def topics(self) -> SideTopics:
        """The topics of both sides that the settings name or that a batch has read; none is ever taken away."""
        pipeline = self.warehouse.pipeline
        if all(side.topic_pattern is None for side in pipeline.sides):
            return topics_of(pipeline)
        return topics_of(pipeline, {at.topic for row in self.last_batch().values() for at in row.offsets})

    def wall_times(self) -> dict[int, int]:
        """Batch -> its wall time, in epoch ms."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step", "wall_time"])
        return {row["batch_id"]: row["wall_time"] for row in known if row["step"] == PLANNED}

    def removals(self) -> dict[str, LedgerRow]:
        """Step -> its last row, for each of REMOVALS: which rows are removed for their age, and up to which batch."""
        known = self.warehouse.small_rows(LEDGER, 1, columns=["batch_id", "step"])
        removed = sorted((row["batch_id"], row["step"]) for row in known if row["step"] in REMOVALS)
        last = {step: batch_id for batch_id, step in removed}
        return {step: row for step, batch_id in last.items() for row in self.rows(batch_id, batch_id) if row.step == step}

    def _checked(self, found: list[dict[str, Any]]) -> list[LedgerRow]:
        rows = [_from_row(row) for row in found]
        if rows:
            check_identity(rows[0].pipeline, self.warehouse.pipeline)
        return _in_order(rows)

    def plan(self, plan: LedgerRow) -> LedgerRow:
        """Writes the plan of a batch before any work on it, and returns the row that is in the table, which counts.

        Raises JobProblem if another job has planned this batch otherwise.
        """
        self.append(plan)
        written = next(row for row in self.rows(plan.batch_id, plan.batch_id) if row.step == PLANNED)
        # Two live plans may differ in what they read; either will do. Plans of other kinds say what the operator wants; an erasure's is in the list
        # that its wall time names.
        is_other = written.plan != plan.plan and not isinstance(plan.plan, LivePlan)
        if written.kind != plan.kind or is_other or (plan.kind == ERASURE and written.wall_time != plan.wall_time):
            raise JobProblem(
                f"batch {plan.batch_id} was planned by another job meanwhile, nothing was changed: run this again"
            )
        return written

    def append(self, *rows: LedgerRow, among: str = "") -> None:
        """Records one step of one or more batches in one commit, fenced by the largest batch_id. Repetitions do nothing.

        `among`: the same step with another text is not a repetition. Of two planners with one batch_id only one writes, so a plan is read
        again before it is used. Later steps follow from the plan and the tables, so a repetition would write the same.
        """
        now = datetime.now(UTC)
        found = [_to_row(replace(row, finished_at=now)) for row in rows]
        commit_rows(self.warehouse, LEDGER, found, rows[-1].step, max(row.batch_id for row in rows), among)
        _recorded.extend(rows)


def recorded_steps() -> list[LedgerRow]:
    """The steps that this process has recorded, in that order; a job is a process of its own."""
    return list(_recorded)


def check_identity(ran_with: Pipeline, now: Pipeline) -> None:
    """Raises NeedsOperator if a pipeline that ran with the first settings cannot go on with the others."""
    if not now.goes_on_from(ran_with):
        raise NeedsOperator(
            f"pipeline {now.name}: its tables were made with topics, payloads and key {ran_with.identity}, the file "
            f"now says {now.identity}: put it back, or give the changed pipeline a file name of its own, and so its own tables"
        )


def _in_order(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    return sorted(rows, key=lambda row: (row.batch_id, _IN_ORDER.index(row.step)))


def _to_row(row: LedgerRow) -> dict[str, Any]:
    return {
        **vars(row),
        "kind": row.kind,
        "plan": plan_struct(row.plan),
        "offsets": [offsets._asdict() for offsets in row.offsets],
        "counts": row.counts.flat(),
        "output": asdict(row.output) if row.output else None,
    }


def _from_row(row: dict[str, Any]) -> LedgerRow:
    # Arrow has maps as lists of pairs.
    typed = {
        "plan": plan_of_struct(row["kind"], row["plan"]),
        "offsets": tuple(OffsetRange(**offsets) for offsets in row["offsets"]),
        "counts": _COUNTS.get(row["step"], StepCounts)(**dict(row["counts"])),
        "output": output_of_struct(row["output"]),
        "versions": dict(row["versions"]),
    }
    return LedgerRow(**{name: row[name] for name in _COLUMNS} | typed)


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
