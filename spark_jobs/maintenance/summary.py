"""What stays of the batches whose ledger rows go: their sums, and every range of records that was given up as lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spark_jobs.rules.outcomes import Outcome
from spark_jobs.tables.ledger import LANDED, LIVE, PAIRED, PUBLISHED, LedgerRow, OffsetRange, counting

_LANDED = ("landed", "accepted", "offset_gaps", "lost")
_PAIRED = ("rejected", *(str(outcome) for outcome in Outcome if outcome is not Outcome.OPEN))


def summed(
    before: LedgerRow | None, rows: Iterable[LedgerRow], first: int
) -> tuple[dict[str, int], tuple[OffsetRange, ...]]:
    """The counts, and the lost ranges, of all batches ahead of batch `first`.

    `rows`: the ledger's from the first batch that is left to its newest; `before`: the sums of those that went before. A lost range
    ends where its `from_offset` says, as it does in the row of its batch. What a rewind gave up does not count: its records were read
    again, and lost again.
    """
    counts, lost = Counter(before.counts if before else {}), list(before.offsets if before else ())
    for steps in counting(list(rows)):
        paired, landed = steps[PAIRED], steps.get(LANDED)
        if paired.batch_id >= first:
            break
        counts["batches"] += paired.kind == LIVE
        counts["corrections"] += paired.kind != LIVE
        counts["compounds"] += paired.counts["compounds"]
        counts["published"] += steps[PUBLISHED].counts["compounds"] if PUBLISHED in steps else 0
        if landed is not None:
            counts.update({name: landed.counts[name] for name in _LANDED} | {name: paired.counts[name] for name in _PAIRED})
            lost += map(_only_lost, (at for at in landed.offsets if at.lost or at.cut))
    return dict(counts), tuple(lost)


def _only_lost(at: OffsetRange) -> OffsetRange:
    return at._replace(until_offset=at.from_offset, end_offset=at.from_offset, max_ts=None)
