"""What each metric means, in a line and with its unit: what the trend page and the OpenMetrics text say of it.

Metrics that are not here are shown by their name; rows of older batches lack some, which is no 0.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_jobs.rules.reasons import Reason

SECONDS, RATIO, NONE = "seconds", "ratio", ""


class Meaning(NamedTuple):
    """A sentence without a full stop, and the unit after multiplication by `scale`; no unit: a count, or a number of a batch."""

    sentence: str
    unit: str = NONE
    scale: float = 1.0


def _ms(sentence: str) -> Meaning:
    return Meaning(sentence, SECONDS, 0.001)


_SIDES = {"left": "of the left side", "right": "of the right side"}

# Of the ledger's rows rather than of the tables.
STEP_SECONDS = {
    "planned_seconds": Meaning("Time to plan the batch", SECONDS),
    "landed_seconds": Meaning("Time to land the batch", SECONDS),
    "paired_seconds": Meaning("Time to pair the batch", SECONDS),
    "published_seconds": Meaning("Time to publish the batch", SECONDS),
    "reported_seconds": Meaning("Time to report on the batch, up to the writing of its pages", SECONDS),
    "delay_seconds": Meaning("Time from the begin of the plan to the end of publishing", SECONDS),
    "clock_lag_seconds": Meaning("How far the batch's clock is behind its wall time", SECONDS),
}

MEANINGS: dict[str, Meaning] = {
    **STEP_SECONDS,
    "planned": Meaning("Offsets planned"),
    "offset_gaps": Meaning("Planned offsets without a record"),
    "lost": Meaning("Records given up because the broker had lost them"),
    "gone_at_start": Meaning("Offsets that were gone from the topics when the pipeline began"),
    "backlog": Meaning("Records left on the topics for the next batch"),
    "held": Meaning("Offsets of the topics that nobody could read yet, behind an open transaction"),
    "landed": Meaning("Records landed"),
    "accepted": Meaning("Records accepted as events"),
    "open_before": Meaning("Events open before the batch"),
    "open_after": Meaning("Events open after the batch"),
    "pair": Meaning("Compounds with both sides"),
    "left_only": Meaning("Compounds with a left side only"),
    "right_only": Meaning("Compounds with a right side only"),
    "collapsed": Meaning("Events collapsed"),
    "compounds": Meaning("Compounds written"),
    "corrections": Meaning("Compounds corrected by a rewind or replay"),
    "rejected": Meaning("Events rejected"),
    **{f"rejected_{reason}": Meaning(f"Events rejected because {reason.sentence}") for reason in Reason},
    "orphan_ratio": Meaning("One-sided compounds among all compounds", RATIO),
    "orphan_ratio_median": Meaning("Median of the orphan ratio over comparable batches before", RATIO),
    "orphan_ratio_spread": Meaning("Spread of the orphan ratio over comparable batches before", RATIO),
    "orphan_ratio_deviation": Meaning("How many spreads the orphan ratio is from that median"),
    "comparable_batches": Meaning("Batches before that the orphan ratio is compared with"),
    **{
        f"orphan_ratio_{side}": Meaning(f"Orphans among the events in compounds {told}", RATIO)
        for side, told in _SIDES.items()
    },
    **{f"orphan_age_median_{side}": _ms(f"Median age of the orphans {told}") for side, told in _SIDES.items()},
    **{f"orphan_age_max_{side}": _ms(f"Age of the oldest orphan {told}") for side, told in _SIDES.items()},
    "skew_median": _ms("Median of right minus left timestamp over the pairs"),
    "skew_q1": _ms("Lower quartile of right minus left timestamp over the pairs"),
    "skew_q3": _ms("Upper quartile of right minus left timestamp over the pairs"),
    "skew_before": _ms("Median skew of comparable batches before"),
    "skew_drift": _ms("Median skew less that of comparable batches before"),
    **{
        f"silent_{side}": _ms(f"How long the other side has sent while nothing came {told}") for side, told in _SIDES.items()
    },
    **{f"is_silent_{side}": Meaning(f"1 while a silence {told} lasts longer than allowed") for side, told in _SIDES.items()},
    **{f"last_record_{side}": _ms(f"Time of the last accepted record {told}, since 1970") for side, told in _SIDES.items()},
    **{
        f"orphans_since_{side}": Meaning(f"Orphans of the other side in the batches since the last record {told}")
        for side, told in _SIDES.items()
    },
    **{f"unpaired_{side}": _ms(f"How long nearly no event {told} has found a partner") for side, told in _SIDES.items()},
    **{
        f"is_unpaired_{side}": Meaning(f"1 while nearly no event {told} finds a partner for longer than allowed")
        for side, told in _SIDES.items()
    },
    "top_user_share": Meaning("Share of the orphans that the key with most of them has", RATIO),
    **{f"healed_{side}": Meaning(f"Orphans {told} that a replay made part of a pair") for side, told in _SIDES.items()},
    "late_healable": Meaning("Late events that a replay would pair"),
    "landing_difference": Meaning("Planned offsets less gaps and raw rows, 0 unless records are lost"),
    "pairing_difference": Meaning("Events in less events out, 0 unless events are lost"),
    "rejection_difference": Meaning("Events to be rejected less rows of rejected_events, 0 unless events are lost"),
    "publishing_difference": Meaning("Compounds less acknowledged records, 0 unless compounds are not published"),
    "delivery_difference": Meaning("Compounds published less messages on the output topic, 0 unless messages are missing"),
    "replaced_on_topic": Meaning("Messages that later ones of their key have replaced on a compacted output topic"),
    "delivery_not_judged": Meaning(
        "Why the messages on the output topic could not be judged, a number; absent where they were"
    ),
    "continuity_difference": Meaning("Offsets skipped or read twice since the batch before, 0 unless there are some"),
    **{
        f"identity_difference_{side}": Meaning(f"1 if other events came out than went in, {told}")
        for side, told in _SIDES.items()
    },
    **{
        f"cumulative_difference_{side}": Meaning(f"Events in less events out over all batches, {told}")
        for side, told in _SIDES.items()
    },
    "wall_time": _ms("Wall time of the batch since 1970"),
    "live": Meaning("1 for a live batch, 0 for a replay or rewind"),
    "published_through": Meaning("Number of the last published batch when the report was made"),
}


def meaning(name: str) -> Meaning:
    """What is known of a metric; of an unknown one its name, as a count."""
    return MEANINGS.get(name, Meaning(name.replace("_", " ").capitalize()))
