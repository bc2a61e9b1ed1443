"""What stays of the batches whose ledger rows go: their sums, and every range of records that was given up as lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from spark_jobs.tables.ledger import LANDED, PAIRED, PUBLISHED, LedgerRow, OffsetRange, counting
from spark_jobs.tables.records import LIVE, OUTCOMES

# Summed by name: of landed and of paired rows.
_LANDED = ("landed", "accepted", "offset_gaps", "lost")
_PAIRED = ("rejected", *OUTCOMES)
_SUMMED = ("batches", "corrections", "compounds", "published", *_LANDED, *_PAIRED)


class Sums(NamedTuple):
    """Counts by the names of RemovedBatches, and the ranges of records that were given up as lost."""

    counts: dict[str, int]
    lost: tuple[OffsetRange, ...]


def summed(before: LedgerRow | None, rows: Iterable[LedgerRow], first: int) -> Sums:
    """The sums over all batches ahead of batch `first`.

    `rows`: the ledger's from the first batch that is left to its newest; `before`: the sums of those that went before. A lost range
    ends where its `from_offset` says, as it does in the row of its batch. What a rewind gave up does not count: its records were read
    again, and lost again.
    """
    counts = Counter({name: getattr(before.counts, name) for name in _SUMMED} if before else {})
    lost = list(before.offsets if before else ())
    for steps in counting(list(rows)):
        paired, landed = steps[PAIRED], steps.get(LANDED)
        if paired.batch_id >= first:
            break
        counts["batches"] += paired.kind == LIVE
        counts["corrections"] += paired.kind != LIVE
        counts["compounds"] += paired.paired.compounds
        counts["published"] += steps[PUBLISHED].published.compounds if PUBLISHED in steps else 0
        if landed is not None:
            counts.update({name: getattr(landed.landed, name) for name in _LANDED})
            counts.update({name: getattr(paired.paired, name) for name in _PAIRED})
            lost += map(_only_lost, (at for at in landed.offsets if at.lost or at.cut))
    return Sums(dict(counts), tuple(lost))


def _only_lost(at: OffsetRange) -> OffsetRange:
    return at._replace(until_offset=at.from_offset, end_offset=at.from_offset, max_ts=None)
