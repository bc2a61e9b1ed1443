"""What reads the ledger, on rows that no table holds."""

from __future__ import annotations

from functools import partial

from spark_jobs.tables.ledger_rows import REMOVALS, STEPS, find_rewinds
from spark_jobs.tables.records import ERASURE


class FakeLedger:
    """A ledger in a list."""

    def __init__(self, *batches):
        self.all = [row for rows in batches for row in rows]

    def rows(self, first, last=None):
        return [row for row in self.all if row.batch_id >= first and (last is None or row.batch_id <= last)]

    def where(self, condition):
        """For conditions that mean the same of values as of columns."""
        return [row for row in self.all if condition(partial(getattr, row))]

    def last_ids(self):
        return dict.fromkeys(STEPS, 0) | {row.step: row.batch_id for row in self.all}

    def rewinds(self):
        return find_rewinds(self.all)

    def last_erasure(self):
        return max((row.batch_id for row in self.all if row.kind == ERASURE), default=0)

    def removals(self):
        return {row.step: row for row in sorted(self.all, key=lambda row: row.batch_id) if row.step in REMOVALS}
