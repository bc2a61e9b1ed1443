"""Parses one message after the other, each looked at first as `parse_columns` looks at a whole column."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from include.config.sources import VALUE, Source
from include.config.times import Times
from spark_jobs.rules.layout import Layout
from spark_jobs.rules.nesting import nests_too_deep
from spark_jobs.rules.parsed_columns import Columns
from spark_jobs.rules.parsing import ParsedMessage, Record, is_utf8, message_parser


def body_layout(key: tuple[str, ...], timestamp: str, payload: str) -> Layout:
    """The layout of bodies that have everything in fields of their own."""
    sources = tuple(Source(VALUE, (name,)) for name in key)
    return Layout(key, sources, Source(VALUE, (timestamp,)), Times(timestamp), Source(VALUE, (payload,)))


def any_message_parser(layout: Layout, latest_ts: int) -> Callable[[bytes | None, int | None], ParsedMessage]:
    """As `message_parser`, for values of any kind."""
    parse_sound = message_parser(layout, latest_ts)

    def parse(value: bytes | None, record_ts: int | None) -> ParsedMessage:
        is_sound = value is not None and is_utf8(value) and not nests_too_deep(value)
        return parse_sound(Record(value if is_sound else None, record_ts))

    return parse


def columns_of(values: Sequence[bytes | None], timestamps: Sequence[int | None]) -> Columns:
    """Values and record timestamps (epoch ms) as columns of records without keys and headers."""
    return Columns(pa.array(values, pa.binary()), pa.array(timestamps, pa.int64()))
