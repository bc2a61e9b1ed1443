"""The schemas by which compounds are published, and where the fields of a message's value come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from include.config.pipeline import AVRO, Pipeline, Side
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.registry import RegisteredSchema

RECORD, KEY_RECORD = "Compound", "Key"
# Behind the name of a payload: the field for the JSON text of one that does not fit its type.
AS_TEXT = "_json"
TEXTS, WHOLE_NUMBERS, TIMES, OPTIONAL_TIMES, PAYLOADS = "texts", "whole numbers", "times", "optional times", "payloads"
OPTIONAL_FLAGS = "optional flags"
_KINDS = {
    **dict.fromkeys(("kind", "pair_id"), TEXTS),
    "revision": WHOLE_NUMBERS,
    "ts": TIMES,
    **dict.fromkeys(("left.ts", "right.ts"), OPTIONAL_TIMES),
    **dict.fromkeys(("left.reversed", "right.reversed"), OPTIONAL_FLAGS),
    **dict.fromkeys(("left.payload", "right.payload"), PAYLOADS),
}
# From columns by their sources to the message's values (binary); a payload is a JSON text, or null.
Encode: TypeAlias = Callable[[Mapping[str, pa.Array]], pa.Array]


class OutputSchema(NamedTuple):
    """A schema that is registered. `kind`: AVRO or PROTOBUF; `references`: as in `RegisteredSchema`; `fields`: of value or key, with their sources."""

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, str], ...]

    @property
    def frame(self) -> bytes:
        """What stands before each body, in a registry's wire format."""
        # A Protobuf file has one message, the first.
        return b"\0" + self.id.to_bytes(4, "big") + (b"" if self.kind == AVRO.upper() else b"\0")


class SideSchema(NamedTuple):
    """The newest schema of a side. `version`: of its subject; None: from a schema file."""

    schema: RegisteredSchema
    version: int | None


SideSchemas: TypeAlias = Mapping[str, SideSchema]
"""By the sources of the payloads that can have a type: those of sides in the format of the output."""


def kind_of(source: str) -> str:
    """What the values of a source are."""
    return _KINDS.get(source, TEXTS)


def side_of(pipeline: Pipeline, source: str) -> Side:
    """The side whose payload the source is."""
    return pipeline.left if source == "left.payload" else pipeline.right


def subject_of(topic: str) -> str:
    """The subject of a topic's values, as the clients of registries name it unless they are told otherwise."""
    return f"{topic}-value"


def key_subject_of(topic: str) -> str:
    """The subject of a topic's keys."""
    return f"{topic}-key"


def unusable(side: Side, problem: object) -> NeedsOperator:
    """The error where a side's newest schema cannot be used."""
    where = (
        "its schema file" if side.schema else f"the newest schema of {subject_of(side.single_topic)} in the schema registry"
    )
    return NeedsOperator(
        f"payloads of {side.input} cannot be published by {where}: {problem}; correct that, or set output.format: json"
    )
