"""Patterns of topics: regular expressions for whole names, by RE2, whose time is linear in the name whatever the expression.

Arrow brings RE2 along. It is imported where a pattern is used: files without one, and Airflow that parses them, need it not.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

# What the names of topics begin with that Kafka keeps for itself.
INTERNAL = "__"
# A longer pattern is a mistake.
_LONGEST = 1_000


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """The topics whose whole name matches, in their order; none that Kafka keeps for itself. Raises ValueError if it is no regular expression.

    >>> matching("calls-(eu|us)|x", ["calls-eu", "calls-eu-old", "my-calls-us", "x", "__x"])
    ['calls-eu', 'x']
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array([topic for topic in topics if not topic.startswith(INTERNAL)], pa.string())
    found: list[str] = names.filter(pc.match_substring_regex(names, f"^(?:{pattern})$")).to_pylist()
    return found


@lru_cache(maxsize=2**14)
def matches(pattern: str, topic: str) -> bool:
    """Whether `matching` has the topic. Cached, because the same few are asked for again and again."""
    return bool(matching(pattern, [topic]))


def check_topic_pattern(value: object) -> str | None:
    """The pattern, or None; raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
        raise ValueError(f"{value!r} is no regular expression for the whole name of a topic; write one like 'calls-.*'")
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        # By itself: between parentheses, one without a partner might find it there.
        pc.match_substring_regex(pa.array([""]), value)
    except ValueError as problem:
        raise ValueError(f"{value!r} is no regular expression of RE2 ({problem}); write one like 'calls-.*'") from None
    return value
