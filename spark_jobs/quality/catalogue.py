"""What each metric means, in a line and with its unit, for the trend page and the OpenMetrics text.

A metric that is not here is shown by its name. Rows of older batches lack some metrics; a missing one is not 0.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_jobs.quality.numbers import of_sides
from spark_jobs.rules.reasons import Reason

SECONDS, RATIO, NONE = "seconds", "ratio", ""


class Meaning(NamedTuple):
    """A sentence without a full stop, and the unit after multiplication by `scale`; no unit: a count, or a number of a batch."""

    sentence: str
    unit: str = NONE
    scale: float = 1.0


_COUNTS = {
    "planned": "Offsets planned",
    "offset_gaps": "Planned offsets without a record",
    "lost": "Records given up because the broker had lost them",
    "gone_at_start": "Offsets that were gone from new topics when the pipeline began with them",
    "backlog": "Records left on the topics for the next batch",
    "held": "Offsets of the topics behind an open transaction, which could not be read yet",
    "landed": "Records landed",
    "accepted": "Records accepted as events",
    "filtered": "Records that only does not select",
    "revised": "Records that correct or retract a compound of another pipeline",
    "open_before": "Events open before the batch",
    "open_after": "Events open after the batch",
    "pair": "Compounds with both sides",
    "left_only": "Compounds with a left side only",
    "right_only": "Compounds with a right side only",
    "collapsed": "Events collapsed",
    "compounds": "Compounds written",
    "corrections": "Compounds corrected by a rewind, replay or erasure",
    "rejected": "Events rejected",
    "erased_{side}": "Open events of the {side} side erased",
    "orphan_ratio_deviation": "How many spreads the orphan ratio is from that median",
    "comparable_batches": "Batches before that the orphan ratio is compared with",
    "is_silent_{side}": "1 while a silence of the {side} side lasts longer than allowed",
    "orphans_since_{side}": "Orphans of the other side in the batches since the last record of the {side} side",
    "is_unpaired_{side}": "1 while nearly no event of the {side} side finds a partner for longer than allowed",
    "healed_{side}": "Orphans of the {side} side that a replay made part of a pair",
    "late_healable": "Late events that a replay would pair",
    "late_healed": "Late events of earlier batches that a replay would pair, in the interval of this replay for the first time",
    "landing_difference": "Planned offsets less gaps and raw rows, 0 unless records are lost",
    "pairing_difference": "Events in less events out, 0 unless events are lost",
    "rejection_difference": "Events to be rejected less rows of rejected_events, 0 unless events are lost",
    "publishing_difference": "Compounds less acknowledged records, 0 unless compounds are not published",
    "delivery_difference": "Compounds published less messages on the output topic, 0 unless messages are missing",
    "replaced_on_topic": "Messages that later ones of their key have replaced on a compacted output topic",
    "delivery_not_judged": "Why the messages on the output topic could not be judged, a number; absent where they were",
    "dead_letters_due": "Rejected events of published batches, less those too large for the rejected topic",
    "dead_letters_on_topic": "Dead letters of these batches on the rejected topic",
    "dead_letter_difference": "Dead letters that were due less those on the rejected topic, 0 unless some are missing or there twice",
    "dead_letters_not_judged": "Why the dead letters could not be judged, a number; absent where they were",
    "continuity_difference": "Offsets skipped or read twice since the batch before, 0 unless there are some",
    "identity_difference_{side}": "1 if other events came out than went in, of the {side} side",
    "cumulative_difference_{side}": "Events in less events out over all batches, of the {side} side",
    "foreign_changes": "Changes of the tables' rows by other programs since the batch before",
    "live": "1 for a live batch, 0 for a replay, rewind or erasure",
    "published_through": "Number of the last published batch when the report was made",
    **{f"rejected_{reason}": f"Events rejected because {reason.sentence}" for reason in Reason},
}
_RATIOS = {
    "orphan_ratio": "One-sided compounds among all compounds",
    "orphan_ratio_median": "Median of the orphan ratio over comparable batches before",
    "orphan_ratio_spread": "Spread of the orphan ratio over comparable batches before",
    "orphan_ratio_{side}": "Orphans among the events in compounds of the {side} side",
    "top_user_share": "Share of the orphans that the key with most of them has",
}
# From the ledger's rows.
_SECONDS = {
    "planned_seconds": "Time to plan the batch",
    "landed_seconds": "Time to land the batch",
    "paired_seconds": "Time to pair the batch",
    "published_seconds": "Time to publish the batch",
    "reported_seconds": "Time to report on the batch, up to the writing of its pages",
    "delay_seconds": "Time from the begin of the plan to the end of publishing",
    "clock_lag_seconds": "How far the batch's clock is behind its wall time",
}
# Kept in ms, shown in seconds.
_MILLISECONDS = {
    "orphan_age_median_{side}": "Median age of the orphans of the {side} side",
    "orphan_age_max_{side}": "Age of the oldest orphan of the {side} side",
    "skew_median": "Median of right minus left timestamp over the pairs",
    "skew_q1": "Lower quartile of right minus left timestamp over the pairs",
    "skew_q3": "Upper quartile of right minus left timestamp over the pairs",
    "skew_before": "Median skew of comparable batches before",
    "skew_drift": "Median skew less that of comparable batches before",
    "silent_{side}": "How long the other side has sent while nothing came of the {side} side",
    "last_record_{side}": "Time of the last accepted record of the {side} side, since 1970",
    "unpaired_{side}": "How long nearly no event of the {side} side has found a partner",
    "wall_time": "Wall time of the batch since 1970",
}
MEANINGS = {
    name: Meaning(sentence, unit, scale)
    for sentences, unit, scale in (
        (_COUNTS, NONE, 1.0),
        (_RATIOS, RATIO, 1.0),
        (_SECONDS, SECONDS, 1.0),
        (_MILLISECONDS, SECONDS, 0.001),
    )
    for name, sentence in of_sides(sentences).items()
}
