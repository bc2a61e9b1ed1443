"""The numbers of a batch, counted afresh from the tables and the topics rather than taken from the jobs that wrote them.

Numbers that belong together, such as a histogram's, are named `family:bucket`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame

from include.config.pipeline import AFTER_PUBLISH
from spark_jobs.quality.delivery import Due, delivered, message_facts
from spark_jobs.quality.facts import Facts, count, open_facts, table_facts
from spark_jobs.quality.gaps import Ranges, record_facts, with_gaps
from spark_jobs.quality.history import Past, comparable, drift_against, ratio_against
from spark_jobs.quality.laws import Steps, continuity, counted_ids, side_laws, totals
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.orphan_metrics import orphan_metrics
from spark_jobs.quality.orphans import look, orphan_facts
from spark_jobs.quality.recheck import recheck_delivery
from spark_jobs.quality.report_input import Known
from spark_jobs.quality.silence import silence_metrics
from spark_jobs.rules.reasons import AT_PAIRING, Reason
from spark_jobs.spark.session import expect_rows
from spark_jobs.tables.ledger import LANDED, PAIRED, PLANNED, PUBLISHED, landing_of
from spark_jobs.tables.records import LIVE, REPLAY, REWIND
from spark_jobs.tables.warehouse import OPEN, Warehouse


def measure(warehouse: Warehouse, known: Known) -> list[Metrics]:
    """The metrics of the batches. The same Spark jobs for all of them."""
    batches, gaps = known.batches, with_gaps(known.batches, known.topics)
    expect_rows(warehouse.spark, sum(rows[PAIRED].paired.accepted for rows in batches))
    counted = count(list(_tables(warehouse, known)), _orphans(warehouse, known), list(_topics(warehouse, gaps, known)))
    found: list[Metrics] = []
    history, previous = list(known.history), next(iter(reversed(known.earlier)), None)
    published = [rows for rows in batches if rows[PAIRED].batch_id <= known.published]
    tells_of_delivery = (published or batches)[-1]
    for rows in batches:
        metrics = _counts(rows, counted, known, warehouse.pipeline.quality.gate) | side_laws(
            rows, counted, rows[PAIRED].batch_id in gaps
        )
        metrics |= continuity(rows, previous)
        before = _goes_on_from(rows, previous, history)
        metrics |= totals(metrics, before, rows[PAIRED].batch_id)
        metrics |= silence_metrics(rows, counted, metrics, before, warehouse.pipeline.quality)
        if rows[PAIRED].kind == LIVE:
            window = history[-warehouse.pipeline.quality.history_batches :]
            metrics |= orphan_metrics(rows, counted) | _against(metrics, rows, counted, window)
        if rows is tells_of_delivery:
            metrics |= _delivery(warehouse, known, counted)
        metrics = {name: float(value) for name, value in metrics.items()}
        found.append(metrics)
        history.append(Past(rows[PAIRED].batch_id, rows[PAIRED].wall_time, metrics))
        previous = rows
    return found


def _delivery(warehouse: Warehouse, known: Known, counted: Facts) -> Metrics:
    if not isinstance(known.due, Due):
        return {"delivery_not_judged": known.due} if known.due else {}
    found = delivered(known.due, counted)
    return recheck_delivery(warehouse, known.due, found) if found["delivery_difference"] else found


def _tables(warehouse: Warehouse, known: Known) -> Iterator[DataFrame]:
    batches = known.batches
    first, last = min(counted_ids(rows[PAIRED])[0] for rows in batches), batches[-1][PAIRED].batch_id
    sent_from = min(first, known.due.after + 1) if isinstance(known.due, Due) else first
    yield from table_facts(warehouse, first, last, sent_from, batches[-1][PLANNED].wall_time)
    yield from open_facts(warehouse, [rows[step].versions[OPEN] for rows in batches for step in (PLANNED, PAIRED)])


def _orphans(warehouse: Warehouse, known: Known) -> list[DataFrame]:
    looked = look(known.batches, list(known.earlier))
    return orphan_facts(warehouse, looked) if looked else []


def _topics(warehouse: Warehouse, gaps: Ranges, known: Known) -> Iterator[DataFrame]:
    if gaps:
        yield record_facts(warehouse, gaps)
    if isinstance(known.due, Due):
        yield message_facts(warehouse, known.due)


def _goes_on_from(rows: Steps, previous: Steps | None, history: Sequence[Past]) -> Metrics:
    """The metrics of the batch that this one goes on from: the one before it; after a rewind, its target."""
    paired = rows[PAIRED]
    number = paired.rewind.to_batch if paired.kind == REWIND else previous[PAIRED].batch_id if previous else 0
    return next((past.metrics for past in reversed(history) if past.batch_id == number), {})


def _counts(rows: Steps, counted: Facts, known: Known, gate: str) -> Metrics:
    planned, paired = rows[PLANNED], rows[PAIRED]
    landed, counts = rows.get(LANDED, paired), landing_of(rows)
    corrects, ids = paired.kind != LIVE, (paired.batch_id,)
    kinds = {kind: counted.number("hour", ids, kind) for kind in ("pair", "left_only", "right_only")}
    compounds, rejected = sum(kinds.values()), counted_ids(paired)

    def refused(*reasons: str) -> int:
        return sum(counted.number(f"rejected_{side}", rejected, *reasons) for side in ("left", "right"))

    raw = [counted.number(f"raw_{side}", rejected) for side in ("left", "right")]
    accepted = [counted.number(f"raw_{side}", rejected, "accepted") for side in ("left", "right")]
    open_counts = {
        name: sum(counted.number(f"open_{side}", (row.versions[OPEN],)) for side in ("left", "right"))
        for name, row in (("open_before", planned), ("open_after", paired))
    }
    orphans = 0 if corrects else kinds["left_only"] + kinds["right_only"]
    metrics: Metrics = {
        "wall_time": planned.wall_time,
        "live": not corrects,
        # Less than was planned where the broker lost some of it before it was landed, which `lost` counts.
        "planned": sum(at.planned for at in landed.offsets),
        "offset_gaps": counts.offset_gaps,
        "lost": counts.lost,
        "gone_at_start": counts.gone_at_start,
        "backlog": counts.backlog,
        "held": counts.held,
        "landed": sum(raw),
        "accepted": sum(accepted),
        **open_counts,
        # Corrections are no outcomes of events.
        **{kind: 0 if corrects else number for kind, number in kinds.items()},
        "collapsed": paired.paired.collapsed,
        "compounds": compounds,
        "corrections": compounds if corrects else 0,
        "rejected": refused(*Reason),
        **{f"rejected_{reason}": refused(reason) for reason in Reason},
        **{
            f"{reason}_{side}": counted.number(f"rejected_{side}", ids, reason)
            for reason in AT_PAIRING
            for side in ("left", "right")
        },
        "orphan_ratio": orphans / compounds if compounds else 0.0,
    }
    metrics |= {
        f"healed_{side}": counted.number("compound", ids, told) for side, told in _HEALED.items() if paired.kind == REPLAY
    }
    metrics["published_through"] = known.published
    # Before it may be published, nothing can be said of that.
    if gate == AFTER_PUBLISH:
        published = rows[PUBLISHED].published.compounds if PUBLISHED in rows else 0
        metrics["publishing_difference"] = compounds - published
    return metrics


# What a correction says of an orphan that has its partner now: the left one keeps its pair_id, the right one goes.
_HEALED = {"left": "upsert pair again", "right": "retract right_only again"}


def _against(metrics: Metrics, rows: Steps, counted: Facts, history: Sequence[Past]) -> Metrics:
    """The orphan ratio and the sides' clocks against those of the comparable batches before."""
    others = comparable(rows[PLANNED].wall_time, history)
    found: Metrics = {"comparable_batches": len(others.batches), "comparable_by": others.by}
    ratios = [past.metrics["orphan_ratio"] for past in others.batches]
    found |= ratio_against(metrics["orphan_ratio"], metrics["compounds"], ratios)
    if skew := counted.of("skew", (rows[PAIRED].batch_id,)):
        apart = skew[0][2]
        found |= {"skew_q1": apart.low, "skew_median": apart.middle, "skew_q3": apart.high}
        medians = [past.metrics["skew_median"] for past in others.batches if "skew_median" in past.metrics]
        found |= drift_against(apart.middle, medians)
    return found
