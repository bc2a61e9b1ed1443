"""A made-up history of a pipeline for the trend page: days and nights, a bad hour, replays, a rewind, a loss, other settings."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import FAILED, PASSED, SIDES, WARNED, Metrics
from spark_jobs.quality.offenders import SHOWN, Offender
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, REPORTED, LedgerRow, OffsetRange
from spark_jobs.tables.records import LIVE, REPLAY, REWIND, Window
from tests.helpers.ledger_rows import ledger_rows
from tests.helpers.timeline import CALLS

END = datetime(2026, 1, 31, 12, tzinfo=UTC)
EVERY = timedelta(minutes=5)
REPLAYED, REWOUND, LOST, RESET, BROKEN, WARNED_OF = 30, 60, 90, 120, 150, 170
_LAWS = [
    *(f"{law}_difference" for law in ("landing", "pairing", "rejection", "publishing", "delivery", "continuity")),
    *(f"{law}_difference_{side}" for law in ("landing", "pairing", "rejection", "cumulative", "identity") for side in SIDES),
]
_OTHER = replace(CALLS, tolerance_ms=90_000)
# Rejected events of a batch are fewer.
_MOST = {
    Reason.MALFORMED_JSON: 9,
    Reason.MISSING_KEY: 4,
    Reason.BAD_TIMESTAMP: 3,
    Reason.FUTURE: 3,
    Reason.DUPLICATE: 30,
    Reason.LATE: 8,
}


def history(batches: int, seed: int = 1) -> list[Batch]:
    """So many batches, the newest at END. Counted back from it, batch REPLAYED is a replay, and so on."""
    dice = random.Random(seed)
    return [_reported(number, batches - number, dice) for number in range(1, batches + 1)]


def _reported(number: int, back: int, dice: random.Random) -> Batch:
    at = END - back * EVERY
    kind = {REPLAYED: REPLAY, REWOUND: REWIND}.get(back, LIVE)
    metrics = _metrics(at, back, kind, dice)
    state = FAILED if back == BROKEN else WARNED if back == WARNED_OF else PASSED
    return Batch.of(_steps(number, at, back, kind, metrics, dice), metrics, state)


def _metrics(at: datetime, back: int, kind: str, dice: random.Random) -> Metrics:
    day = 1 + 0.8 * math.sin((at.hour + at.minute / 60 - 9) / 24 * 2 * math.pi)
    names = (
        "planned",
        "landed",
        "accepted",
        "offset_gaps",
        "pair",
        "left_only",
        "right_only",
        "collapsed",
        "compounds",
        "corrections",
    )
    counts = dict.fromkeys(names, 0.0)
    rejected = dict.fromkeys(Reason, 0.0)
    if kind == LIVE:
        landed = round(8_000 * day * dice.uniform(0.9, 1.1))
        rejected |= {reason: float(dice.randrange(most)) for reason, most in _MOST.items()} | {Reason.BAD_HEADER: 1.0}
        rejected[Reason.LATE] += 400 if 150 < back < 160 else 0
        ratio = dice.uniform(0.03, 0.06) + (0.2 if 168 < back < 176 else 0)
        compounds = round((landed - sum(rejected.values())) / 2)
        left, right = round(compounds * ratio * 0.6), round(compounds * ratio * 0.4)
        counts |= {"planned": landed, "landed": landed, "accepted": landed - sum(rejected.values()), "compounds": compounds}
        counts |= {"left_only": left, "right_only": right, "pair": compounds - left - right}
    else:
        counts |= {"compounds": 37, "corrections": 37}
    return counts | {
        **{f"rejected_{reason}": count for reason, count in rejected.items()},
        "rejected": sum(rejected.values()),
        "orphan_ratio": (counts["left_only"] + counts["right_only"]) / counts["compounds"],
        "backlog": float(round(90_000 * (1 - abs(back - 200) / 20))) if 180 < back < 220 else 0.0,
        "lost": 250.0 if back == LOST else 0.0,
        "open_before": round(1_800 * day),
        "open_after": round(1_800 * day),
        **dict.fromkeys(_LAWS, 0.0),
        **({"pairing_difference": -3.0, "pairing_difference_left": -3.0} if back == BROKEN else {}),
    }


def _steps(number: int, at: datetime, back: int, kind: str, metrics: Metrics, dice: random.Random) -> dict[str, LedgerRow]:
    settings = CALLS if back > RESET else _OTHER
    wall, behind = round(at.timestamp() * 1000), round(1_000 + metrics["backlog"] * 20)
    offsets = tuple(
        OffsetRange(
            side.topic,
            partition,
            number * 2_000,
            number * 2_000 + 2_000,
            number * 2_000 + 2_000 + round(metrics["backlog"] / 8),
        )
        for side in CALLS.sides
        for partition in range(4)
    )
    counts = {
        name: round(metrics[name]) for name in ("pair", "left_only", "right_only", "compounds", "rejected", "open_after")
    }
    hour = wall - 7_200_000
    own = {REWIND: {"to_batch": number - 12}, REPLAY: {"window": Window(hour, hour + 3_600_000)}}
    rows, start = {}, at
    # Seconds: how long the step takes, and until the next one begins.
    steps = {PLANNED: (0.4, 0.6), LANDED: (3.0, 2.0), PAIRED: (4.0, 2.0), PUBLISHED: (2.0, 2.0), REPORTED: (5.0, 2.0)}
    made = ledger_rows(
        number, [step for step in steps if step != LANDED or kind == LIVE], kind, settings, offsets=offsets, wall_time=wall,
        clock=wall - behind, open_before=1_800, **counts, **own.get(kind, {}),
    )  # fmt: skip
    for row in made:
        seconds, pause = steps[row.step]
        if row.step != PLANNED:
            seconds = seconds * dice.uniform(0.8, 1.4) + metrics["backlog"] / 4_000
        end = start + timedelta(seconds=seconds)
        rows[row.step] = replace(row, started_at=start, finished_at=end)
        start = end + timedelta(seconds=pause)
    return rows


def offenders(batch: Batch) -> list[Offender]:
    """Some of its rejected and lone events, as find_offenders would give them."""
    batch_id, at = batch.steps[PAIRED].batch_id, batch.steps[PAIRED].wall_time
    labels = {reason: batch.metrics[f"rejected_{reason}"] for reason in Reason}
    labels |= {name: batch.metrics[name] for name in ("left_only", "right_only")}
    return [
        Offender(batch_id, str(label), CALLS.left.topic, index % 4, batch_id * 2_000 + index * 7, at - 1_000 * index)
        for label, count in labels.items()
        for index in range(min(round(count), SHOWN + 1))
    ]
