"""The ledger by itself, and the raw tables against it: every offset is planned once, and every planned offset is landed or a gap.

What maintenance removed for its age cannot be compared any more; the ledger says what that was, and what is left is compared as far as it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from spark_jobs.kafka.offsets import Partition
from spark_jobs.quality.checks import Finding, Offence, breaks, ends_of_ranges
from spark_jobs.quality.sent_compounds import SentBatch, sent_batch
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    LANDED,
    PAIRED,
    PLANNED,
    PUBLISHED,
    PUBLISHED_ORPHANS,
    PUBLISHED_REJECTED,
    PUBLISHING,
    REMOVED_COMPOUNDS,
    REMOVED_LEDGER,
    REMOVED_RAW,
    REMOVED_REJECTED,
    STEPS,
    LedgerRow,
    OffsetRange,
    Rewind,
    removed_through,
)
from spark_jobs.tables.records import LIVE

# Batches that are read at once: a row of the ledger is large, what is kept of it is small.
_AT_ONCE = 5_000


class LedgerBatch(NamedTuple):
    """A batch that no rewind gave up: what it planned (a live one), and what its steps counted."""

    is_live: bool
    is_paired: bool
    ranges: tuple[OffsetRange, ...]
    landed: int
    gaps: int
    collapsed: int
    erased: int  # events that an erasure removed from the open ones
    emptied: int  # raw rows that an erasure emptied


class RawRows(NamedTuple):
    """The raw rows of a batch and partition: how many, and their first and last offset, both inclusive."""

    batch_id: int
    topic: str
    partition: int
    rows: int
    first: int
    last: int


class RemovedRows(NamedTuple):
    """`removals`: as `Ledger.removals`. `raw`, `compounds`: the last batch without raw rows, without compounds; 0 if none is. `first_in_ledger`:
    the first batch that the ledger still has. `last_outcomes`: the row whose batch is the last one without all its outcomes, so that it cannot
    be said that its records have one. `waiting`: events that this batch left open, which later batches decided. `ends`: output partition
    -> end (exclusive) of the messages whose compounds were removed. `ends_beside`: the same of other topics, by id.
    """

    removals: dict[str, LedgerRow]
    raw: int
    compounds: int
    first_in_ledger: int
    last_outcomes: LedgerRow | None
    waiting: int
    ends: dict[int, int]
    ends_beside: Mapping[str, Mapping[int, int]] = MappingProxyType({})

    @property
    def unchecked(self) -> int:
        """The batch of `last_outcomes`; 0 if all outcomes are there."""
        return self.last_outcomes.batch_id if self.last_outcomes else 0

    def from_ledger(self, name: str) -> int:
        """A count, summed over the batches that the ledger does not have any more."""
        return int(getattr(self.removals[REMOVED_LEDGER].counts, name)) if REMOVED_LEDGER in self.removals else 0

    def rows(self, step: str) -> int:
        """How many rows were ever removed by this one of REMOVALS."""
        return self.removals[step].removed.removed_ever if step in self.removals else 0

    def sentence(self) -> str:
        """What cannot be checked any more, for people; empty if every outcome is there."""
        if not self.unchecked:
            return ""
        return (
            f"batches 1 to {self.unchecked:,} were removed for their age, with {self.rows(REMOVED_RAW):,} raw rows (those up to batch "
            f"{self.raw:,}), {self.rows(REMOVED_REJECTED):,} rejected events and {self.rows(REMOVED_COMPOUNDS):,} compounds: not checked"
        )


def find_removed(ledger: Ledger, topic_id: str) -> RemovedRows:
    """What is removed at this moment. `topic_id`: that of the output topic."""
    removals = ledger.removals()
    raw, compounds, gone = (removed_through(removals, step) for step in (REMOVED_RAW, REMOVED_COMPOUNDS, REMOVED_LEDGER))
    rows = [removals[step] for step in (REMOVED_REJECTED, REMOVED_COMPOUNDS) if step in removals]
    last = max(rows, key=lambda row: row.batch_id, default=None)
    paired, published = _row(ledger, last.batch_id if last else 0, PAIRED), _row(ledger, compounds, PUBLISHED)
    # Another topic begins with the messages of later batches.
    output = published.output_state if published else None
    waiting = paired.paired.open_after if paired else 0
    ends = dict(output.ends) if output and output.topic_id == topic_id else {}
    return RemovedRows(removals, raw, compounds, gone + 1, last, waiting, ends, _ends_beside(ledger, compounds))


def _ends_beside(ledger: Ledger, until: int) -> dict[str, dict[int, int]]:
    """Where each topic beside the output topic ended with the batches up to this one."""
    if not until:
        return {}
    published = ledger.where(lambda row: (row("step") == PUBLISHED_ORPHANS) & (row("batch_id") <= until))
    return {row.output_state.topic_id: dict(row.output_state.ends) for row in published}


def _row(ledger: Ledger, batch_id: int, step: str) -> LedgerRow | None:
    return next((row for row in ledger.rows(batch_id, batch_id) if row.step == step), None) if batch_id else None


@dataclass
class LedgerSummary:
    """The ledger up to the last published batch. `batches`: those that answer for the input, by batch_id, so none after `last`, the last one
    that no rewind gave up; `corrections`: the replays and rewinds; `sent`: all published batches; `sent_beside`: those that were sent to a topic
    beside the output topic, by its name; `sent_rejected`: those that sent dead letters to a topic and are not void, by its name.
    """

    last: int
    rewinds: Sequence[Rewind]
    batches: dict[int, LedgerBatch] = field(default_factory=dict)
    corrections: list[int] = field(default_factory=list)
    sent: list[SentBatch] = field(default_factory=list)
    sent_beside: dict[str, list[SentBatch]] = field(default_factory=dict)
    sent_rejected: dict[str, list[SentBatch]] = field(default_factory=dict)
    offences: list[Offence] = field(default_factory=list)

    def add(self, rows: Sequence[LedgerRow]) -> None:
        steps, batch_id = {row.step: row for row in rows}, rows[0].batch_id
        void, is_live = self.is_void(batch_id), all(row.kind == LIVE for row in rows)
        self.corrections += [] if is_live else [batch_id]
        self.sent += [sent_batch(steps[PUBLISHED])] if PUBLISHED in steps else []
        if beside := steps.get(PUBLISHED_ORPHANS):
            self.sent_beside.setdefault(beside.published_to, []).append(sent_batch(beside))
        if (letters := steps.get(PUBLISHED_REJECTED)) and not void:
            self.sent_rejected.setdefault(letters.published_to, []).append(sent_batch(letters))
        # A batch that was given up may have ended anywhere before it was paired.
        if not void or PAIRED in steps:
            self.offences += _wrong_steps(batch_id, rows)
        if void or batch_id > self.last:
            return
        landed, paired = steps.get(LANDED), steps.get(PAIRED)
        ranges = planned_ranges(steps[PLANNED], landed) if is_live and PLANNED in steps else ()
        counts = (landed.landed.landed, landed.landed.offset_gaps) if landed else (0, 0)
        found = paired.paired if paired else None
        gone = (found.collapsed, found.erased, found.erased_landed) if found else (0, 0, 0)
        self.batches[batch_id] = LedgerBatch(is_live, paired is not None, ranges, *counts, *gone)

    def is_void(self, batch_id: int) -> bool:
        """Whether a rewind gave the batch up: later batches read its records again, and answer for them."""
        return any(rewind.voids(batch_id) for rewind in self.rewinds)

    @property
    def ranges(self) -> Iterator[OffsetRange]:
        return (at for batch in self.batches.values() for at in batch.ranges)

    def began(self) -> int:
        """Offsets before those with which the partitions began for the pipeline."""
        return sum({at.place: at.began for at in self.ranges}.values())

    def checked(self, raw: Iterable[RawRows], removed: RemovedRows) -> Iterator[Offence]:
        """Everything that is wrong. `raw`: of all batches that still have raw rows."""
        yield from self.offences
        yield from self._contiguous(removed.first_in_ledger > 1)
        yield from self._landed(raw, removed.raw)
        landed = removed.from_ledger("landed")
        landed += sum(batch.landed for number, batch in self.batches.items() if number <= removed.raw)
        if landed != removed.rows(REMOVED_RAW):
            what = f"batches 1 to {removed.raw}: {landed} raw rows landed, {removed.rows(REMOVED_RAW)} removed"
            yield Finding.REMOVED_NOT_COUNTED, what

    def _contiguous(self, is_cut: bool) -> Iterator[Offence]:
        """`is_cut`: the ledger's first batches were removed for their age, so that those that follow begin anywhere."""
        until: dict[Partition, int] = {}
        for batch_id, batch in self.batches.items():
            if batch.ranges and is_cut:
                until = {at.place: at.from_offset - at.lost for at in batch.ranges}
                is_cut = False
            for at, before, begin in breaks(batch.ranges, until):
                finding = Finding.OFFSETS_SKIPPED if begin > before else Finding.OFFSETS_TWICE
                yield finding, f"{at.topic}-{at.partition}:{before}-{begin} before batch {batch_id}"
            until |= ends_of_ranges(batch.ranges)

    def _landed(self, raw: Iterable[RawRows], after: int) -> Iterator[Offence]:
        """Raw rows lie in their batch's ranges, and are as many as were planned less the offset gaps. Of the batches after `after`."""
        by_batch = {number: list(rows) for number, rows in groupby(sorted(raw), attrgetter("batch_id"))}
        nothing = LedgerBatch(True, False, (), 0, 0, 0, 0, 0)
        for batch_id in sorted({*by_batch, *(number for number in self.batches if number > after)}):
            batch, landed = self.batches.get(batch_id, nothing), by_batch.get(batch_id, [])
            ranges = {at.place: at for at in batch.ranges}
            for _, topic, partition, _, first, last in landed:
                at = ranges.get((topic, partition))
                if at is None or first < at.from_offset or last >= at.until_offset:
                    yield Finding.ROWS_NOT_PLANNED, f"batch {batch_id} {topic}-{partition}:{first}-{last + 1}"
            planned, rows = sum(at.planned for at in batch.ranges), sum(found.rows for found in landed)
            if planned - batch.gaps != rows:
                what = f"batch {batch_id}: {planned} offsets planned, {batch.gaps} of them gaps, {rows} raw rows"
                yield Finding.ROWS_NOT_COUNTED, what


def read_ledger(ledger: Ledger, first: int, horizon: int, last: int, rewinds: Sequence[Rewind]) -> LedgerSummary:
    """The batches first..horizon, both inclusive. `last`: see `LedgerSummary`."""
    summary = LedgerSummary(last, rewinds)
    for begin in range(first, horizon + 1, _AT_ONCE):
        rows = ledger.rows(begin, min(begin + _AT_ONCE - 1, horizon))
        for _, of_batch in groupby(rows, attrgetter("batch_id")):
            summary.add(list(of_batch))
    return summary


def planned_ranges(planned: LedgerRow, landed: LedgerRow | None) -> tuple[OffsetRange, ...]:
    """The ranges as planned, less what the broker lost before it was landed: the `landed` row says so, and adds it to `lost` and `cut`."""
    by_then = {at.place: at for at in landed.offsets} if landed else {}

    def left_of(at: OffsetRange) -> OffsetRange:
        then = by_then.get(at.place, at)
        until = then.until_offset if then.cut > at.cut else at.until_offset
        first = at.from_offset + then.lost - at.lost
        return at._replace(from_offset=first, until_offset=until, lost=then.lost, cut=then.cut)

    return tuple(map(left_of, planned.offsets))


def _wrong_steps(batch_id: int, rows: Sequence[LedgerRow]) -> Iterator[Offence]:
    """Every batch has each step once, up to `published`; a rewind or replay lands nothing."""
    # Begun again, a publication is noted again where the topic has grown meanwhile.
    steps = Counter(row.step for row in rows if row.step != PUBLISHING)
    wanted = [step for step in STEPS[: STEPS.index(PUBLISHED) + 1] if step != LANDED or rows[0].kind == LIVE]
    missing, twice = [step for step in wanted if not steps[step]], [step for step, number in steps.items() if number > 1]
    for finding, wrong in ((Finding.STEP_MISSING, missing), (Finding.STEP_TWICE, twice)):
        if wrong:
            yield finding, f"batch {batch_id} {', '.join(wrong)}"
