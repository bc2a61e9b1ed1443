"""The conservation laws of a batch, a side each, in numbers that have to be 0.

What a law compares was counted by two: on one side stand the tables, counted afresh, on the other what Kafka's offsets say, or another
table. No count of the job that is judged is on either, but for collapsed events, which no table holds.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_jobs.quality.facts import Facts
from spark_jobs.quality.numbers import SIDES, Metrics
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_LANDING, AT_PAIRING
from spark_jobs.tables.ledger import LANDED, PAIRED, PLANNED, LedgerRow
from spark_jobs.tables.records import LIVE, REWIND
from spark_jobs.tables.warehouse import OPEN

Steps = dict[str, LedgerRow]


class _Side(NamedTuple):
    """Events of one side in a batch; `collapsed` is what is missing, as far as the batch collapsed so many."""

    planned: int
    have: int
    landed: int
    accepted: int
    broken: int
    before: int
    paired: int
    alone: int
    refused: int
    rejected: int
    after: int
    mark: int

    @property
    def missing(self) -> int:
        """Events that went in and came out nowhere."""
        return self.before + self.accepted - self.paired - self.alone - self.refused - self.after


def counted_ids(paired: LedgerRow) -> range:
    """The batches whose rows are counted: the batch itself; a rewind answers for those that it gave up, which must have none."""
    return range(paired.rewind.to_batch + 1 if paired.kind == REWIND else paired.batch_id, paired.batch_id + 1)


def side_laws(rows: Steps, facts: Facts, looked_up: bool) -> Metrics:
    """`…_left` and `…_right` of every law and of its parts, and their sums.

    `looked_up`: the offsets that hold no record were looked for on the topics (facts `record_left` and `record_right`).
    """
    found = [_side(rows, facts, name, looked_up) for name in SIDES]
    collapsed = rows[PAIRED].paired.collapsed
    left = min(max(found[0].missing, 0), collapsed)
    metrics: Metrics = {}
    for name, side, gone in zip(SIDES, found, (left, collapsed - left), strict=True):
        told: Metrics = {
            "planned": side.planned,
            "landed": side.landed,
            "accepted": side.accepted,
            "open_before": side.before,
            "open_after": side.after,
            "rejected": side.rejected,
            "out": side.paired + side.alone + side.refused + gone,
            "landing_difference": side.have - side.landed,
            "pairing_difference": side.missing - gone,
            "rejection_difference": side.broken + side.refused - side.rejected,
        }
        if not collapsed:
            told["identity_difference"] = int(side.mark != 0)
        if rows[PAIRED].kind == LIVE:
            told["orphan_ratio"] = side.alone / (side.alone + side.paired) if side.alone else 0.0
        metrics |= {f"{what}_{name}": number for what, number in told.items()}
    for law in ("landing", "pairing", "rejection"):
        metrics[f"{law}_difference"] = sum(metrics[f"{law}_difference_{name}"] for name in SIDES)
    return metrics


def _side(rows: Steps, facts: Facts, name: str, looked_up: bool) -> _Side:
    planned, paired = rows[PLANNED], rows[PAIRED]
    landed, ids = rows.get(LANDED, paired), counted_ids(paired)
    topic = planned.pipeline.left.topic if name == "left" else planned.pipeline.right.topic
    offsets = sum(known.planned for known in landed.offsets if known.topic == topic)
    # Compounds of a rewind or replay are corrections, no outcomes of events.
    out = ids if paired.kind == LIVE else ()
    raw, rejected, came_out = f"raw_{name}", f"rejected_{name}", f"out_{name}"
    open_before, open_after = ((row.versions[OPEN],) for row in (planned, paired))
    waiting = f"open_{name}"
    mark = facts.mark(raw, ids, "accepted") ^ facts.mark(rejected, ids, *AT_PAIRING) ^ facts.mark(came_out, out)
    return _Side(
        planned=offsets,
        have=facts.number(f"record_{name}", ids) if looked_up else offsets,
        landed=facts.number(raw, ids),
        accepted=facts.number(raw, ids, "accepted"),
        broken=facts.number(raw, ids, *AT_LANDING),
        before=facts.number(waiting, open_before),
        paired=facts.number(came_out, out, Outcome.PAIR),
        alone=facts.number(came_out, out, Outcome.LEFT_ONLY, Outcome.RIGHT_ONLY),
        refused=facts.number(rejected, out, *AT_PAIRING),
        rejected=facts.number(rejected, ids),
        after=facts.number(waiting, open_after),
        mark=mark ^ facts.mark(waiting, open_before) ^ facts.mark(waiting, open_after),
    )


def continuity(rows: Steps, previous: Steps | None) -> Metrics:
    """Offsets that lie between this batch and the one before it, or are in both; a batch of another kind reads none.

    A partition that is new begins at 0: only the first batch, which goes on from none, may begin anywhere.
    """
    until = {(at.topic, at.partition): at.until_offset for at in previous[PAIRED].offsets} if previous else {}
    apart = [
        abs(at.from_offset - at.lost - until.get((at.topic, at.partition), 0))
        for at in rows.get(LANDED, rows[PAIRED]).offsets
        if rows[PAIRED].kind == LIVE and previous
    ]
    return {"continuity_difference": sum(apart)}


def totals(batch: Metrics, before: Metrics, batch_id: int) -> Metrics:
    """All events in and out since the totals began, with this batch; `before`: the metrics of the batch it goes on from.

    The law over them is also broken where a batch was left out, or begins with other open events than the one before it left. After it
    was broken the totals begin anew: one batch is to fail for it, not all that follow.
    """
    goes_on = "total_since" in before and not any(before[f"cumulative_difference_{name}"] for name in SIDES)
    metrics: Metrics = {"total_since": before["total_since"] if goes_on else batch_id}
    for name in SIDES:
        start = before[f"total_in_{name}"] if goes_on else batch[f"open_before_{name}"]
        came_in = start + batch[f"accepted_{name}"]
        came_out = (before[f"total_out_{name}"] if goes_on else 0) + batch[f"out_{name}"]
        metrics |= {f"total_in_{name}": came_in, f"total_out_{name}": came_out}
        metrics[f"cumulative_difference_{name}"] = came_in - came_out - batch[f"open_after_{name}"]
    return metrics
