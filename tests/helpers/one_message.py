"""Parses one message after the other, each looked at first as `parse_columns` looks at a whole column."""

from collections.abc import Callable

from spark_jobs.rules.nesting import nests_too_deep
from spark_jobs.rules.parsing import BodyFields, Parsed, is_utf8, message_parser


def any_message_parser(fields: BodyFields, latest_ts: int) -> Callable[[bytes | None, int | None], Parsed]:
    """As `message_parser`, for values of any kind."""
    parse_sound = message_parser(fields, latest_ts)

    def parse(value: bytes | None, record_ts: int | None) -> Parsed:
        is_sound = value is not None and is_utf8(value) and not nests_too_deep(value)
        return parse_sound(value if is_sound else None, record_ts)

    return parse
