"""What arrived of each batch, held against what was paired."""

from __future__ import annotations

from spark_jobs.kafka.positions import Leg
from spark_jobs.kafka.publisher import SlotReport
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.records import OutputState, PublishedCounts


def check_acknowledged(topic: str, paired: list[LedgerRow], reports: list[SlotReport]) -> None:
    """Every compound that was paired must have been acknowledged by the broker before the ledger says `published`."""
    for row in paired:
        wanted = row.paired.compounds
        read = sum(report.read.get(row.batch_id, 0) for report in reports)
        acknowledged = sum(report.acknowledged.get(row.batch_id, 0) for report in reports)
        refused = sum(report.refused.get(row.batch_id, 0) for report in reports)
        if read != wanted:
            raise BrokenInvariant(
                f"batch {row.batch_id}: {wanted} compounds were paired, but {acknowledged} published: {read} are in "
                "compound_events; was it changed by hand?"
            )
        if acknowledged + refused != wanted:
            raise BrokenInvariant(
                f"batch {row.batch_id}: {wanted} compounds are in compound_events, but {topic} acknowledged {acknowledged}: "
                "reconcile lists those that are missing or there twice"
            )


def published_record(
    batch_id: int, leg: Leg, reports: list[SlotReport], ends: dict[int, int]
) -> tuple[PublishedCounts, OutputState]:
    """What the ledger keeps of a published batch: acknowledged records, in all and by partition, and the topic they are on.

    `ends`: of the output partitions, behind all batches of the leg; the report reads up to there.
    """
    sent = {report.partition: report.acknowledged.get(batch_id, 0) for report in reports}
    counts = PublishedCounts(
        compounds=sum(sent.values()), refused=sum(report.refused.get(batch_id, 0) for report in reports)
    )
    there = {number: records for number, records in sorted(sent.items()) if records}
    return counts, OutputState(leg.topic_id, leg.slots, ends=ends, sent=there, position=leg.target)
