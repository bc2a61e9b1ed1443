"""Which offsets a batch reads: from where the last one stopped, up to the end, at most so many records; and what is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from spark_jobs.broker.offsets import Partition, TopicsNow
from spark_jobs.problems import NeedsOperator
from spark_jobs.storage.ledger import OffsetRange


def plan_ranges(
    previous: Mapping[Partition, OffsetRange], now: TopicsNow, max_records: int, accepted_losses: Collection[str] = ()
) -> list[OffsetRange]:
    """The range of every partition, sorted; at most `max_records` (and at least one where there is anything) in all.

    `previous` are the ranges of the last batch. `accepted_losses` are ranges as `lost_range` writes them, given up by the
    operator. Raises NeedsOperator where offsets have disappeared.
    """
    for place, known in sorted(previous.items()):
        _check_reaches(place, known.until_offset, now)
    starts = {place: max(now.earliest[place], _position(previous.get(place))) for place in sorted(now.end)}
    quota = _share_out({place: now.end[place] - start for place, start in starts.items()}, max_records)
    ranges = [
        OffsetRange(
            topic=place[0],
            partition=place[1],
            from_offset=start,
            until_offset=start + quota[place],
            end_offset=now.end[place],
            max_ts=previous[place].max_ts if place in previous else None,
            lost=start - previous[place].until_offset if place in previous else 0,
        )
        for place, start in starts.items()
    ]
    _refuse_losses(ranges, accepted_losses)
    return ranges


def ranges_left(
    planned: Iterable[OffsetRange], now: TopicsNow, landed_from: Mapping[Partition, int], accepted_losses: Collection[str]
) -> tuple[OffsetRange, ...]:
    """The planned ranges without what the broker has lost since, which is added to their `lost`.

    `landed_from`: the first offset that the raw tables have of the batch already, where they have any: from there on nothing is
    lost. Raises NeedsOperator as `plan_ranges` does.
    """
    left, since = [], []
    for known in planned:
        place = (known.topic, known.partition)
        _check_reaches(place, known.until_offset, now)
        there = min(now.earliest[place], landed_from.get(place, now.earliest[place]))
        first = min(max(known.from_offset, there), known.until_offset)
        since.append(known._replace(from_offset=first, lost=first - known.from_offset))
        left.append(known._replace(from_offset=first, lost=known.lost + first - known.from_offset))
    _refuse_losses(since, accepted_losses)
    return tuple(left)


def lost_range(topic: str, partition: int, first: int, until: int) -> str:
    """How a range of lost offsets is written: ``topic-partition:first-until``, until exclusive."""
    return f"{topic}-{partition}:{first}-{until}"


def _refuse_losses(ranges: Iterable[OffsetRange], accepted: Collection[str]) -> None:
    """What is lost lies right before each range. All of it is told at once, for all of it has to be accepted at once."""
    lost = {
        lost_range(at.topic, at.partition, at.from_offset - at.lost, at.from_offset): at.lost for at in ranges if at.lost
    }
    if not lost.keys() <= set(accepted):
        told = " ".join(lost)
        raise NeedsOperator(
            f"the broker no longer has {sum(lost.values())} records that were never landed, {told} (its retention was faster): "
            f"to go on without them, run once with accept_lost_range = {told}"
        )


def _check_reaches(place: Partition, position: int, now: TopicsNow) -> None:
    """What a topic's id does not tell: a plan that is older than the ids, or a broker that was put back to an earlier state."""
    if place not in now.end:
        raise NeedsOperator(
            f"partition {place[1]} of {place[0]} is gone: the topic was created again with fewer partitions, or this is another broker, "
            "or one put back from a backup; mend that, or start a new pipeline under another name"
        )
    if now.end[place] < position:
        raise NeedsOperator(
            f"{place[0]}-{place[1]} ends at offset {now.end[place]}, but {position} was already planned: the topic was created again, or "
            "this is another broker, or one that has lost records; mend that, or start a new pipeline under another name"
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
