"""Sample events as Avro, each with the id of its schema before it, as producers with a schema registry write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from include.config.pipeline import Pipeline
from include.sample.bodies import Broken, Users

_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class AvroBodies:
    """Writes events by these schemas. `sides`: of each side, the id and the text of its schemas, the usual one first."""

    sides: tuple[Sequence[tuple[int, str]], Sequence[tuple[int, str]]]

    def body(
        self, pipeline: Pipeline, side: int, users: Users, timestamp: str | None, payload: str | None, extra: bool
    ) -> bytes:
        """As `bodies.body`. `extra`: by the side's last schema. The fields are unions with null, so what is left out is null."""
        of = pipeline.sides[side]
        sources, time, payload_at = dict(of.key), of.timestamp or pipeline.timestamp, of.payload_from or of.payload
        key, schema = self.sides[side][-1 if extra else 0]
        parsed = _parsed(schema)
        ts = json.loads(timestamp or "null")
        record: dict[str, Any] = {
            sources.get(field, field): name for field, name in zip(pipeline.key, users.names, strict=True)
        }
        record |= {time: None if ts is None else _in_unit(int(ts), parsed, time)}
        record |= {payload_at: json.loads(payload or "null", parse_float=Decimal)}
        out = BytesIO(b"\0" + key.to_bytes(4, "big"))
        out.seek(0, 2)
        schemaless_writer(out, parsed, record)
        return out.getvalue()

    def broken(self) -> Iterator[Broken]:
        """Every kind of event that must be rejected, each with exactly one fault."""
        for malform in _UNDECODABLE:
            yield Broken("undecodable", partial(self._malformed, malform))
        for name in ("", None):
            yield Broken("missing_key", partial(self._nameless, name))
        for ts in ("-1", "-9007199254740993"):
            yield Broken("bad_timestamp", partial(self._mistimed, ts))

    def _malformed(
        self, malform: Callable[[bytes], bytes | None], pipeline: Pipeline, side: int, users: Users, ts: int
    ) -> bytes | None:
        return malform(self.body(pipeline, side, users, str(ts), None, False))

    def _nameless(self, name: str | None, pipeline: Pipeline, side: int, users: Users, ts: int) -> bytes:
        nameless: Any = (*users.names[:-1], name)
        return self.body(pipeline, side, users._replace(names=nameless), str(ts), None, False)

    def _mistimed(self, text: str, pipeline: Pipeline, side: int, users: Users, ts: int) -> bytes:
        return self.body(pipeline, side, users, text, None, False)


_UNDECODABLE: tuple[Callable[[bytes], bytes | None], ...] = (
    lambda good: b"no frame at all",
    lambda good: b'{"id":"JSON on a topic of Avro"}',
    lambda good: good[:-1],
    lambda good: good[:5],
    lambda good: good[:3],
    lambda good: b"",
    lambda good: None,
)


@lru_cache
def _parsed(schema: str) -> Any:
    return parse_schema(json.loads(schema))


def _in_unit(ts: int, schema: dict[str, Any], field: str) -> int:
    """Epoch ms in the unit of a field of the schema; microseconds are more than the ms, and rounded down again."""
    (kind,) = (each["type"][-1]["logicalType"] for each in schema["fields"] if each["name"] == field)
    return ts if kind == "timestamp-millis" else max(-_LARGEST, min(ts * 1_000 + 999, _LARGEST))
