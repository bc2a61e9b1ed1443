"""What a publication has sent: its counts, and what its topics refused."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import Counts
from spark_jobs.kafka.publisher import PartitionReport
from spark_jobs.tables.ledger_rows import PUBLISHED_REJECTED, LedgerRow

_SHOWN = 20


class SentToTopic(NamedTuple):
    """What was sent to one topic, and the rows that say so in the ledger, by batch."""

    topic: str
    step: str
    reports: list[PartitionReport]
    rows: list[LedgerRow]

    @property
    def too_large(self) -> list[str]:
        return [name for report in self.reports for name in report.too_large]


def counts_of(done: list[SentToTopic]) -> Counts:
    counts = Counter({"compounds": 0, "sent": 0})
    for each in done:
        sent = sum(report.sent for report in each.reports)
        if each.step == PUBLISHED_REJECTED:
            counts["dead_letters"] += sent
        else:
            counts["sent"] += sent
            counts["compounds"] += sum(row.published.compounds for row in each.rows)
    return dict(counts)


def refuse_too_large(done: list[SentToTopic]) -> None:
    """Raises NeedsOperator if a topic refused messages for their size."""
    refused = Counter[str]()
    for each in done:
        what = "dead letters" if each.step == PUBLISHED_REJECTED else "compounds"
        refused[what] += sum(sum(report.refused.values()) for report in each.reports)
    if not refused.total():
        return
    numbers = ", ".join(f"{what}: {number}" for what, number in refused.items() if number)
    topics = " and ".join(dict.fromkeys(each.topic for each in done if each.too_large))
    listed = sorted(name for each in done for name in each.too_large)
    raise NeedsOperator(
        f"messages too large for {topics} were left out for good, all others are published ({numbers}): {', '.join(listed[:_SHOWN])}; raise "
        "the topic's max.message.bytes before more come"
    )
