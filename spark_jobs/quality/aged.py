"""What maintenance has given up for its age: it cannot be compared any more, and what is left is compared as far as it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_jobs.quality.delivery import ends_of
from spark_jobs.tables.ledger import (
    PAIRED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_LEDGER,
    REMOVED_RAW,
    REMOVED_REJECTED,
    Ledger,
    LedgerRow,
    removed_through,
)


class Aged(NamedTuple):
    """`removals`: as `Ledger.removals`. `waiting`: events that the batch `unchecked` left open, which later batches decided; `ends`: output
    partition -> end (exclusive) of what may be messages of compounds that went.
    """

    removals: dict[str, LedgerRow]
    waiting: int
    ends: dict[int, int]

    @property
    def raw(self) -> int:
        """The last batch without raw rows."""
        return removed_through(self.removals, REMOVED_RAW)

    @property
    def compounds(self) -> int:
        """The last batch without compounds."""
        return removed_through(self.removals, REMOVED_COMPOUNDS)

    @property
    def begins(self) -> int:
        """The first batch that the ledger still has."""
        return removed_through(self.removals, REMOVED_LEDGER) + 1

    @property
    def undecided(self) -> LedgerRow | None:
        """Up to the batch of this row outcomes may be gone, so nobody can say that a record of these batches has one."""
        return _last_outcomes(self.removals)

    @property
    def unchecked(self) -> int:
        """Its batch; 0 if all outcomes are there."""
        return self.undecided.batch_id if self.undecided else 0

    @property
    def landed_before(self) -> int:
        """Raw rows that the batches had landed which the ledger does not have any more."""
        return self.summed("landed")

    def summed(self, name: str) -> int:
        """A count, summed over the batches that the ledger does not have any more."""
        return getattr(self.removals[REMOVED_LEDGER].counts, name) if REMOVED_LEDGER in self.removals else 0

    def gone(self, step: str) -> int:
        """How many rows ever went by this one of REMOVALS."""
        return self.removals[step].removed.removed_ever if step in self.removals else 0

    def told(self) -> str | None:
        """A sentence for the report; None if every outcome is there."""
        if not self.unchecked:
            return None
        return (
            f"batches 1 to {self.unchecked:,} were removed for their age, with {self.gone(REMOVED_RAW):,} raw rows (those up to batch "
            f"{self.raw:,}), {self.gone(REMOVED_REJECTED):,} rejected events and {self.gone(REMOVED_COMPOUNDS):,} compounds: not checked"
        )


def find_aged(ledger: Ledger, topic_id: str) -> Aged:
    """What is gone at this moment. `topic_id`: that of the output topic, as two halves."""
    removals = ledger.removals()
    last, published = _last_outcomes(removals), _row(ledger, removed_through(removals, REMOVED_COMPOUNDS), (PUBLISHED,))
    paired = _row(ledger, last.batch_id if last else 0, (PAIRED,))
    # Another topic begins with the messages of later batches.
    same = published and published.output_state.topic_id == topic_id
    return Aged(removals, paired.paired.open_after if paired else 0, ends_of(published) if same else {})


def _last_outcomes(removals: dict[str, LedgerRow]) -> LedgerRow | None:
    rows = [removals[step] for step in (REMOVED_REJECTED, REMOVED_COMPOUNDS) if step in removals]
    return max(rows, key=lambda row: row.batch_id, default=None)


def _row(ledger: Ledger, batch_id: int, steps: Iterable[str]) -> LedgerRow | None:
    return next((row for row in ledger.rows(batch_id, batch_id) if row.step in steps), None) if batch_id else None
