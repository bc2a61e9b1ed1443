"""Plans which offsets a batch reads: from where the last batch stopped, up to the end, at most so many records; and finds what is lost.

Retention removes a log's beginning. An unclean leader election, or a topic restored from a backup, removes its end; new records may have
been written there since, and then offsets below the old end name other records than before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import Partition, TopicsNow
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import PAIRED, OffsetRange, paired_batches


class LandedSpan(NamedTuple):
    """The first and the last offset of a batch in the raw tables, both inclusive."""

    first: int
    last: int


def plan_ranges(
    previous: Mapping[Partition, OffsetRange], now: TopicsNow, max_records: int, accepted_losses: Collection[str] = ()
) -> list[OffsetRange]:
    """The range of every partition, sorted; together at most `max_records`.

    `previous`: the ranges of the last batch, empty before the first. Only the partitions of a topic that is not in it may begin above 0 without
    a loss.
    `accepted_losses`: ranges as `lost_range` writes them. Raises NeedsOperator for any other loss. The caller has checked that no landed
    record is lost (`landed_beyond`).
    """
    check_partitions(previous, now)
    # A partition that is added to a topic that was read must begin at 0.
    read = {topic for topic, _ in previous}
    new = {
        place: OffsetRange(*place, 0, 0, 0, began=0 if place[0] in read else first) for place, first in now.earliest.items()
    }
    before = {place: previous.get(place, new[place]).behind() for place in sorted(now.end)}
    starts = {place: max(now.earliest[place], known.from_offset) for place, known in before.items()}
    quota = _share_out({place: now.end[place] - start for place, start in starts.items()}, max_records)
    ranges = []
    for place, known in before.items():
        start, end, epoch = starts[place], now.end[place], now.epochs.get(place, -1)
        at = known._replace(from_offset=start, until_offset=start + quota[place], end_offset=end, epoch=epoch)
        at = at._replace(lost=start - known.from_offset if place[0] in read else 0)
        ranges.append(_with_cut(at, now.same_until(place), known.end_offset))
    _refuse_losses(ranges, accepted_losses)
    return ranges


def ranges_left(
    planned: Iterable[OffsetRange], now: TopicsNow, landed: Mapping[Partition, LandedSpan], accepted_losses: Collection[str]
) -> tuple[OffsetRange, ...]:
    """The planned ranges without what the broker has lost since, which is added to their `lost` and `cut`.

    `landed`: what the raw tables already have of the batch, which is not lost; a loss beyond it is left to the next plan. Raises
    NeedsOperator as `plan_ranges` does.
    """
    left, since = [], []
    for known in planned:
        place = known.place
        check_partitions([place], now)
        mine = landed.get(place)
        there = min(now.earliest[place], mine.first) if mine else now.earliest[place]
        first = min(max(known.from_offset, there), known.until_offset)
        until, same = known.until_offset, now.same_until(place)
        at = known._replace(from_offset=first, lost=first - known.from_offset, cut_from=0, cut=0)
        if same < until and not (mine and mine.last >= same):
            until = max(same, first)
            at = _with_cut(at, same, known.end_offset)._replace(
                until_offset=until, end_offset=until, epoch=now.epochs.get(place, -1)
            )
        since.append(at)
        before = known.cut_from if known.cut else at.cut_from
        cut_from = min(before, at.cut_from) if at.cut else before
        left.append(at._replace(lost=known.lost + at.lost, cut=known.cut + at.cut, cut_from=cut_from))
    _refuse_losses(since, accepted_losses)
    return tuple(left)


def landed_beyond(known: Iterable[OffsetRange], now: TopicsNow) -> dict[Partition, int]:
    """Partition -> first offset from which its log is another one, for partitions whose landed records are no longer in the log.

    `known`: ranges as landed, or as planned behind what was landed; their `from_offset` counts.
    """
    return {
        at.place: now.same_until(at.place)
        for at in known
        if at.place in now.end and now.same_until(at.place) < at.from_offset - at.lost
    }


def batch_before(ledger: Ledger, beyond: Mapping[Partition, int]) -> int:
    """The last paired batch, not void, that read only below these offsets; 0 if there is none."""
    paired = (steps[PAIRED] for steps in paired_batches(ledger.rows(1)))
    below = (row for row in paired if all(at.until_offset <= beyond.get(at.place, at.until_offset) for at in row.offsets))
    return max((row.batch_id for row in below), default=0)


def cut_below(ledger: Ledger, beyond: Mapping[Partition, int]) -> NeedsOperator:
    """The problem of logs that lost landed records. `beyond`: as `landed_beyond` returns it."""
    cuts = ", ".join(f"{topic}-{number} at offset {offset}" for (topic, number), offset in sorted(beyond.items()))
    return NeedsOperator(
        f"the log was cut below what was landed: {cuts}; new records there have the coordinates of landed ones, so the pipeline cannot "
        f"continue from here: rewind to batch {batch_before(ledger, beyond)}, or start a new pipeline under another name"
    )


def has_lost(planned: OffsetRange, now: TopicsNow) -> bool:
    place = planned.place
    return place in now.end and (now.earliest[place] > planned.from_offset or now.same_until(place) < planned.until_offset)


def new_topics(ranges: Iterable[OffsetRange], previous: Iterable[OffsetRange]) -> list[str]:
    """The topics of ranges, by name, of which the batch before had none."""
    return sorted({at.topic for at in ranges} - {at.topic for at in previous})


def first_offsets(ranges: Iterable[OffsetRange], topics: Collection[str]) -> dict[Partition, int]:
    """Partition of these topics -> its first offset when the pipeline planned it first, where that was not 0."""
    return {at.place: at.began for at in ranges if at.began and at.topic in topics}


def lost_range(topic: str, partition: int, first: int, until: int) -> str:
    """How a range of lost offsets is written: ``topic-partition:first-until``, until exclusive."""
    return f"{topic}-{partition}:{first}-{until}"


def ranges_given_up(at: OffsetRange) -> list[str]:
    """The accepted losses of a range, as `lost_range` writes them: those before it, and those at the old end of the log."""
    lost = [lost_range(at.topic, at.partition, at.from_offset - at.lost, at.from_offset)] if at.lost else []
    return lost + ([lost_range(at.topic, at.partition, at.cut_from, at.cut_from + at.cut)] if at.cut else [])


def _with_cut(at: OffsetRange, same_until: int, old_end: int) -> OffsetRange:
    return at._replace(cut_from=same_until, cut=old_end - same_until) if same_until < old_end else at


def _refuse_losses(ranges: Iterable[OffsetRange], accepted: Collection[str]) -> None:
    """Raises NeedsOperator with all losses at once, because the operator has to accept them at once."""
    lost = [at for at in ranges if at.lost or at.cut]
    if all(_is_accepted(at, accepted) for at in lost):
        return
    listed = " ".join(each for at in lost for each in ranges_given_up(at))
    causes = ["its retention was faster"] if any(at.lost for at in lost) else []
    causes += ["the log was cut at its end"] if any(at.cut for at in lost) else []
    raise NeedsOperator(
        f"the broker no longer has {sum(at.lost + at.cut for at in lost)} records that were never landed, {listed} "
        f"({' and '.join(causes)}): to go on without them, run once with accept_lost_range = {listed}"
    )


def _is_accepted(at: OffsetRange, accepted: Collection[str]) -> bool:
    if at.lost and lost_range(at.topic, at.partition, at.from_offset - at.lost, at.from_offset) not in accepted:
        return False
    # New records may make the log longer before the operator accepts the loss of its end, so the accepted cut may begin earlier.
    end = re.compile(rf"{re.escape(at.topic)}-{at.partition}:(\d+)-{at.cut_from + at.cut}")
    return not at.cut or any(int(found[1]) <= at.cut_from for each in accepted if (found := end.fullmatch(each)))


def check_partitions(places: Iterable[Partition], now: TopicsNow) -> None:
    """Raises NeedsOperator for a missing partition: a topic's id does not show that a broker was restored to an earlier state."""
    for topic, partition in sorted(places):
        if (topic, partition) not in now.end:
            raise NeedsOperator(
                f"partition {partition} of {topic} is gone: the topic was created again with fewer partitions, or this is another broker, "
                "or one restored from a backup; correct that, or start a new pipeline under another name"
            )


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
    # Rounding down could leave small partitions with nothing in every batch, so they get the remainder first.
    for place in sorted(backlog, key=lambda place: (quota[place], place)):
        if left_over and quota[place] < backlog[place]:
            quota[place] += 1
            left_over -= 1
    return quota
