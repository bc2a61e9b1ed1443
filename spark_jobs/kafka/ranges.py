"""Which offsets a batch reads: from where the last one stopped, up to the end, at most so many records; and what is lost.

Retention takes a log's beginning. An unclean election of a leader, or a topic put back from a backup, takes its end, and new records may
have been written there since: then offsets below the old end name other records than they did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.tables.ledger import PAIRED, Ledger, OffsetRange, paired_batches


class Landed(NamedTuple):
    """The first and the last offset that the raw tables have of a batch in a partition, both inclusive."""

    first: int
    last: int


def plan_ranges(
    previous: Mapping[Partition, OffsetRange], now: TopicsNow, max_records: int, accepted_losses: Collection[str] = ()
) -> list[OffsetRange]:
    """The range of every partition, sorted; at most `max_records` (and at least one where there is anything) in all.

    `previous` are the ranges of the last batch, none before the first: only then the partitions may begin anywhere. `accepted_losses` are
    ranges as `lost_range` writes them, given up by the operator. Raises NeedsOperator where offsets have disappeared. What was landed
    must still be there (`landed_beyond`).
    """
    _check_partitions(previous, now)
    starts = {place: max(now.earliest[place], _position(previous.get(place))) for place in sorted(now.end)}
    quota = _share_out({place: now.end[place] - start for place, start in starts.items()}, max_records)
    ranges = []
    for place, start in starts.items():
        known = previous.get(place)
        at = OffsetRange(
            topic=place[0],
            partition=place[1],
            from_offset=start,
            until_offset=start + quota[place],
            end_offset=now.end[place],
            max_ts=known.max_ts if known else None,
            # A partition that is added later begins at 0 for the pipeline, too.
            lost=start - _position(known) if previous else 0,
            began=known.began if known else 0 if previous else start,
            epoch=now.epochs.get(place, -1),
        )
        ranges.append(_cut(at, now.same_until(place), known.end_offset) if known else at)
    _refuse_losses(ranges, accepted_losses)
    return ranges


def ranges_left(
    planned: Iterable[OffsetRange], now: TopicsNow, landed: Mapping[Partition, Landed], accepted_losses: Collection[str]
) -> tuple[OffsetRange, ...]:
    """The planned ranges without what the broker has lost since, which is added to their `lost` and `cut`.

    `landed`: what the raw tables have of the batch already: from there on nothing is lost, and what lies beyond a log's end is the next
    plan's to refuse. Raises NeedsOperator as `plan_ranges` does.
    """
    left, since = [], []
    for known in planned:
        place = (known.topic, known.partition)
        _check_partitions([place], now)
        mine = landed.get(place)
        there = min(now.earliest[place], mine.first if mine else now.earliest[place])
        first = min(max(known.from_offset, there), known.until_offset)
        until, same = known.until_offset, now.same_until(place)
        at = known._replace(from_offset=first, lost=first - known.from_offset, cut_from=0, cut=0)
        if same < until and not (mine and mine.last >= same):
            until = max(same, first)
            at = _cut(at, same, known.end_offset)._replace(
                until_offset=until, end_offset=until, epoch=now.epochs.get(place, -1)
            )
        since.append(at)
        before = known.cut_from if known.cut else at.cut_from
        cut_from = min(before, at.cut_from) if at.cut else before
        left.append(at._replace(lost=known.lost + at.lost, cut=known.cut + at.cut, cut_from=cut_from))
    _refuse_losses(since, accepted_losses)
    return tuple(left)


def landed_beyond(known: Iterable[OffsetRange], now: TopicsNow) -> dict[Partition, int]:
    """Partitions of which records were landed that the log no longer has at its end, with the first offset from which it is another one.

    `known`: ranges as they were landed, or as planned behind what was landed, whose `from_offset` counts.
    """
    found = {}
    for at in known:
        place = (at.topic, at.partition)
        if place in now.end and now.same_until(place) < at.from_offset - at.lost:
            found[place] = now.same_until(place)
    return found


def batch_before(ledger: Ledger, beyond: Mapping[Partition, int]) -> int:
    """The last batch that was paired and is not void and read nothing from these offsets on; 0 for the time before the first."""
    fits = [
        steps[PAIRED].batch_id
        for steps in paired_batches(ledger.rows(1))
        if all(at.until_offset <= beyond.get((at.topic, at.partition), at.until_offset) for at in steps[PAIRED].offsets)
    ]
    return max(fits, default=0)


def cut_below(ledger: Ledger, beyond: Mapping[Partition, int]) -> NeedsOperator:
    """The problem of logs that lost records which were landed. `beyond`: partitions, with the first offset of what is another log now."""
    told = ", ".join(f"{topic}-{number} at offset {offset}" for (topic, number), offset in sorted(beyond.items()))
    return NeedsOperator(
        f"the log was cut below what was landed: {told}; what is written there now has the coordinates of records that are landed, so "
        f"nothing goes on from here: rewind to batch {batch_before(ledger, beyond)}, or start a new pipeline under another name"
    )


def has_lost(planned: OffsetRange, now: TopicsNow) -> bool:
    """Whether the broker lost something of a planned range since."""
    place = (planned.topic, planned.partition)
    return place in now.end and (now.earliest[place] > planned.from_offset or now.same_until(place) < planned.until_offset)


def begun(ranges: Iterable[OffsetRange]) -> dict[Partition, int]:
    """Partitions that did not begin at 0 when the pipeline began, with the first offset that they had."""
    return {(at.topic, at.partition): at.began for at in ranges if at.began}


def lost_range(topic: str, partition: int, first: int, until: int) -> str:
    """How a range of lost offsets is written: ``topic-partition:first-until``, until exclusive."""
    return f"{topic}-{partition}:{first}-{until}"


def ranges_given_up(at: OffsetRange) -> list[str]:
    """What was given up for the range, as `lost_range` writes it: right before it, and at the end that the log had."""
    lost = [lost_range(at.topic, at.partition, at.from_offset - at.lost, at.from_offset)] if at.lost else []
    return lost + ([lost_range(at.topic, at.partition, at.cut_from, at.cut_from + at.cut)] if at.cut else [])


def _cut(at: OffsetRange, same: int, end: int) -> OffsetRange:
    """`end`: where the log once ended; `same`: from where it is another one now, or ends."""
    return at._replace(cut_from=same, cut=end - same) if same < end else at


def _refuse_losses(ranges: Iterable[OffsetRange], accepted: Collection[str]) -> None:
    """All of it is told at once, for all of it has to be accepted at once."""
    lost = [at for at in ranges if at.lost or at.cut]
    if not all(_is_accepted(at, accepted) for at in lost):
        told = " ".join(each for at in lost for each in ranges_given_up(at))
        causes = " and ".join(cause for cause, is_so in _CAUSES.items() if any(map(is_so, lost)))
        raise NeedsOperator(
            f"the broker no longer has {sum(at.lost + at.cut for at in lost)} records that were never landed, {told} ({causes}): "
            f"to go on without them, run once with accept_lost_range = {told}"
        )


_CAUSES: Mapping[str, Callable[[OffsetRange], bool]] = {
    "its retention was faster": lambda at: at.lost > 0,
    "the log was cut at its end": lambda at: at.cut > 0,
}


def _is_accepted(at: OffsetRange, accepted: Collection[str]) -> bool:
    if at.lost and lost_range(at.topic, at.partition, at.from_offset - at.lost, at.from_offset) not in accepted:
        return False
    # A log that is written on may have more by the time that the loss of its end is accepted, never less.
    end = re.compile(rf"{re.escape(at.topic)}-{at.partition}:(\d+)-{at.cut_from + at.cut}")
    return not at.cut or any(int(found[1]) <= at.cut_from for each in accepted if (found := end.fullmatch(each)))


def _check_partitions(places: Iterable[Partition], now: TopicsNow) -> None:
    """What a topic's id does not tell: a broker that was put back to an earlier state."""
    for topic, partition in sorted(places):
        if (topic, partition) not in now.end:
            raise NeedsOperator(
                f"partition {partition} of {topic} is gone: the topic was created again with fewer partitions, or this is another broker, "
                "or one put back from a backup; mend that, or start a new pipeline under another name"
            )


def _position(previous: OffsetRange | None) -> int:
    return previous.until_offset if previous else 0


def _share_out(backlog: Mapping[Partition, int], max_records: int) -> dict[Partition, int]:
    """Records to read of each partition, in proportion to its backlog.

    >>> _share_out({("a", 0): 900, ("a", 1): 100, ("b", 0): 0}, 100)
    {('a', 0): 90, ('a', 1): 10, ('b', 0): 0}
    """
    total = sum(backlog.values())
    if total <= max_records:
        return dict(backlog)
    quota = {place: waiting * max_records // total for place, waiting in backlog.items()}
    left_over = max_records - sum(quota.values())
    # Rounding down may leave small partitions with nothing for ever; what it left over goes to them first.
    for place in sorted(backlog, key=lambda place: (quota[place], place)):
        if left_over and quota[place] < backlog[place]:
            quota[place] += 1
            left_over -= 1
    return quota
