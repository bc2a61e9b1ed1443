"""The pairing rules once more, slow and word for word: what the tests compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from spark_jobs.rules.rules import LEFT, RIGHT, Rules

Pairs = list[tuple[int, int]]


def every_matching(left: list[int], right: list[int], tolerance: int, i: int = 0, j: int = 0) -> Iterator[Pairs]:
    """All non-crossing matchings of the lefts from i and the rights from j, as lists of (left rank, right rank)."""
    if i == len(left):
        yield []
        return
    yield from every_matching(left, right, tolerance, i + 1, j)
    for k in range(j, len(right)):
        if abs(left[i] - right[k]) <= tolerance:
            for rest in every_matching(left, right, tolerance, i + 1, k + 1):
                yield [(i, k), *rest]


def best_of_all(left: list[int], right: list[int], tolerance: int) -> Pairs:
    """Most pairs, then the smallest sum of distances, then the lexicographically first list. For a handful of events."""
    return min(
        every_matching(left, right, tolerance),
        key=lambda pairs: (-len(pairs), sum(abs(left[i] - right[k]) for i, k in pairs), pairs),
    )


def best_matching(left: list[int], right: list[int], tolerance: int) -> Pairs:
    """The same for hundreds of events: the best of what follows each (i, j), then the first pair that keeps to it."""
    best = [[(0, 0)] * (len(right) + 1) for _ in range(len(left) + 1)]

    def with_pair(i: int, j: int) -> tuple[int, int]:
        distance = abs(left[i] - right[j])
        pairs, nearness = best[i + 1][j + 1]
        return (pairs + 1, nearness - distance) if distance <= tolerance else (-1, 0)

    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], with_pair(i, j))
    found: Pairs = []
    i = j = 0
    while best[i][j] != (0, 0):
        wanted = best[i][j]
        i, j = next((a, b) for a in range(i, len(left)) for b in range(j, len(right)) if with_pair(a, b) == wanted)
        found.append((i, j))
        i, j = i + 1, j + 1
    return found


def slow_outcomes(events: list[dict[str, Any]], rules: Rules) -> Counter:
    """How often each (outcome, left event, right event) has to come out; an event is (its pair's key fields, side, partition, offset).

    `events`: rows of `event_schema`, but with the key fields as the events have them; with `key_order: any` the direction ends an event. Where
    they have a `topic`, as they must where a side has several, it stands behind the side, and `partition` is the topic's own.
    """

    def order(event: dict[str, Any]) -> tuple[int, str, int, int]:
        topic = event.get("topic") or rules.pipeline.sides[event["side"]].topic
        return event["ts"], topic, event["partition"], event["offset"]

    def key(event: dict[str, Any]) -> list[str]:
        return _pair_of(event, rules)

    told = []
    for _, of_key in groupby(sorted(events, key=lambda event: (key(event), order(event))), key=key):
        seen, kept = set(), []
        for event in of_key:
            same = (event["side"], event["ts"], event["payload"], *(event[name] for name in rules.pipeline.key))
            if rules.pipeline.drop_duplicates and same in seen:
                told.append(("duplicate", event))
            else:
                kept.append(event)
            seen.add(same)
        for session in _sessions(kept, rules):
            told += _fates(session, rules)
    return Counter(_names(row, rules) for row in told)


def _pair_of(event: dict[str, Any], rules: Rules) -> list[str]:
    fields = [event[name] for name in rules.pipeline.key]
    return sorted(fields, key=lambda text: text.encode()) if rules.pipeline.key_order == "any" else fields


def _sessions(events: list[dict[str, Any]], rules: Rules) -> list[list[dict[str, Any]]]:
    sessions: list[list[dict[str, Any]]] = []
    for event in events:
        silence = sessions and event["ts"] - sessions[-1][-1]["ts"] > rules.pipeline.gap_ms
        if not sessions or silence or event["ts"] > sessions[-1][0]["ts"] + rules.pipeline.max_session_ms:
            sessions.append([])
        sessions[-1].append(event)
    return sessions


def _fates(session: list[dict[str, Any]], rules: Rules) -> list[tuple]:
    over = session[-1]["ts"] + rules.pipeline.gap_ms + rules.pipeline.grace_ms
    if not any(e["is_open"] for e in session) and rules.previous_clock is not None and over < rules.previous_clock:
        return [("late", event) for event in session]
    if rules.clock is None or not over < rules.clock:
        return [("open", event) for event in session]
    left, right = ([event for event in session if event["side"] == side] for side in (LEFT, RIGHT))
    collapsed = []
    if rules.pipeline.matching == "collapse":
        collapsed = [("collapsed", event) for event in left[1:] + right[1:]]
        left, right = left[:1], right[:1]
        pairs = [(0, 0)] if left and right else []
    else:
        pairs = best_matching([e["ts"] for e in left], [e["ts"] for e in right], rules.pipeline.tolerance_ms)
    paired = [("pair", left[i], right[j]) for i, j in pairs]
    alone = [("left_only", left[i]) for i in range(len(left)) if i not in {i for i, _ in pairs}]
    alone += [("right_only", right[j]) for j in range(len(right)) if j not in {j for _, j in pairs}]
    return paired + alone + collapsed


def _names(row: tuple, rules: Rules) -> tuple:
    outcome, *events = row
    named = {}
    for event in events:
        pair = _pair_of(event, rules)
        topic = [event["topic"]] if "topic" in event else []
        named[event["side"]] = (*pair, event["side"], *topic, event["partition"], event["offset"])
        if rules.pipeline.key_order == "any":
            named[event["side"]] += ([event[name] for name in rules.pipeline.key] != pair,)
    return outcome, named.get(LEFT), named.get(RIGHT)
