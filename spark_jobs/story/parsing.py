"""What messages say: as they were landed, or else as landing would read them now, in every format."""

from __future__ import annotations

import os
from functools import lru_cache

import pyarrow as pa

from include.config.pipeline import Pipeline, Side
from spark_jobs.formats.decoding import Parser, event_parser
from spark_jobs.formats.registry import VARIABLE, NoCache, Registry, registry_settings
from spark_jobs.rules.parsed_columns import HEADERS, Columns
from spark_jobs.rules.parsing import ParsedMessage
from spark_jobs.rules.reasons import Reason
from spark_jobs.rules.times import LARGEST_TS
from spark_jobs.story.history import Message


def parse_messages(messages: list[Message], pipeline: Pipeline, side: Side, latest_ts: int) -> list[ParsedMessage]:
    """What each message of a side says. `latest_ts` = W + max_future (epoch ms, inclusive).

    Raises NeedsOperator and RegistryProblem if messages that were not landed need a schema that is not to be had.
    """
    read = [message for message in messages if message.landed is None]
    now = iter(_read(read, _parser(pipeline, side, os.environ.get(VARIABLE))) if read else [])
    return [_judged(message, message.landed or next(now), latest_ts) for message in messages]


@lru_cache(maxsize=8)
def _parser(pipeline: Pipeline, side: Side, registry: str | None) -> Parser:
    """Cached with the registry's settings, because each parser compiles the schemas for itself. Nothing is in the future for it."""
    return event_parser(
        pipeline, side, LARGEST_TS, Registry(registry_settings(), NoCache()) if side.needs_registry else None
    )


def _read(messages: list[Message], parse: Parser) -> list[ParsedMessage]:
    records = Columns(
        pa.array([message.value for message in messages], pa.binary()),
        pa.array([message.timestamp for message in messages], pa.int64()),
        pa.array([message.key for message in messages], pa.binary()),
        headers_of(messages),
    )
    parsed = parse(records)
    fields = zip(*(column.to_pylist() for column in (parsed.ts, parsed.payload, parsed.problem)), strict=True)
    keys = zip(*(column.to_pylist() for column in parsed.key), strict=True)
    return [ParsedMessage(key, ts, payload, problem) for key, (ts, payload, problem) in zip(keys, fields, strict=True)]


def headers_of(messages: list[Message]) -> pa.Array:
    """Their headers as raw tables have them."""
    return pa.array([[{"key": name, "value": value} for name, value in message.headers] for message in messages], HEADERS)


def _judged(message: Message, says: ParsedMessage, latest_ts: int) -> ParsedMessage:
    """What it says, as of this `max_future`."""
    if says.problem in (None, Reason.FUTURE) and says.ts is not None:
        says = says._replace(problem=Reason.FUTURE if says.ts > latest_ts else None)
    return says._replace(problem=Reason.BAD_HEADER) if message.has_bad_header and says.problem is None else says
