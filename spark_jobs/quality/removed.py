"""What maintenance removed for its age: it cannot be compared any more, so reconcile compares what is left, as far as it goes."""

from __future__ import annotations

from typing import NamedTuple

from spark_jobs.quality.batch import count_of, ends_of, topic_id_of
from spark_jobs.tables.ledger import (
    PAIRED,
    PUBLISHED,
    REMOVED_COMPOUNDS,
    REMOVED_EVER,
    REMOVED_LEDGER,
    REMOVED_RAW,
    REMOVED_REJECTED,
    Ledger,
    LedgerRow,
    removed_through,
)


class Removed(NamedTuple):
    """`removals`: as `Ledger.removals`. `waiting`: events that the batch `unchecked` left open, which later batches decided; `ends`: output
    partition -> end (exclusive) of the messages whose compounds were removed.
    """

    removals: dict[str, LedgerRow]
    waiting: int
    ends: dict[int, int]

    @property
    def raw(self) -> int:
        """The last batch without raw rows; 0 if all have theirs."""
        return removed_through(self.removals, REMOVED_RAW)

    @property
    def compounds(self) -> int:
        """The last batch without compounds; 0 if all have theirs."""
        return removed_through(self.removals, REMOVED_COMPOUNDS)

    @property
    def first_in_ledger(self) -> int:
        """The first batch that the ledger still has."""
        return removed_through(self.removals, REMOVED_LEDGER) + 1

    @property
    def last_outcomes(self) -> LedgerRow | None:
        """The row whose batch is the last one without all its outcomes, so that it cannot be said that its records have one."""
        return _last_outcomes(self.removals)

    @property
    def unchecked(self) -> int:
        """The batch of that row; 0 if all outcomes are there."""
        return self.last_outcomes.batch_id if self.last_outcomes else 0

    def from_ledger(self, name: str) -> int:
        """A count, summed over the batches that the ledger does not have any more."""
        return count_of(self.removals[REMOVED_LEDGER], name) if REMOVED_LEDGER in self.removals else 0

    def rows(self, step: str) -> int:
        """How many rows were ever removed by this one of REMOVALS."""
        return count_of(self.removals[step], REMOVED_EVER) if step in self.removals else 0

    def sentence(self) -> str:
        """What cannot be checked any more, for people; empty if every outcome is there."""
        if not self.unchecked:
            return ""
        return (
            f"batches 1 to {self.unchecked:,} were removed for their age, with {self.rows(REMOVED_RAW):,} raw rows (those up to batch "
            f"{self.raw:,}), {self.rows(REMOVED_REJECTED):,} rejected events and {self.rows(REMOVED_COMPOUNDS):,} compounds: not checked"
        )


def find_removed(ledger: Ledger, topic_id: tuple[int, int]) -> Removed:
    """What is removed at this moment. `topic_id`: that of the output topic, in two halves."""
    removals = ledger.removals()
    last, published = _last_outcomes(removals), _row(ledger, removed_through(removals, REMOVED_COMPOUNDS), PUBLISHED)
    paired = _row(ledger, last.batch_id if last else 0, PAIRED)
    # Another topic begins with the messages of later batches.
    same_topic = published is not None and topic_id_of(published) == topic_id
    return Removed(removals, count_of(paired, "open_after") if paired else 0, ends_of(published) if same_topic else {})


def _last_outcomes(removals: dict[str, LedgerRow]) -> LedgerRow | None:
    rows = [removals[step] for step in (REMOVED_REJECTED, REMOVED_COMPOUNDS) if step in removals]
    return max(rows, key=lambda row: row.batch_id, default=None)


def _row(ledger: Ledger, batch_id: int, step: str) -> LedgerRow | None:
    return next((row for row in ledger.rows(batch_id, batch_id) if row.step == step), None) if batch_id else None
