"""Values of published compounds, read back as a consumer reads them, into what their JSON would say.

Sample traffic is JSON, so payloads are JSON texts in every other format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from include.config.pipeline import JSON, PROTOBUF, Pipeline
from include.sample.outcome import parse
from include.sample.sending import SampleError

_VARIABLE = "PAIRING_SCHEMA_REGISTRY"
_BODY_AT = {"avro": 5, "protobuf": 6}
Read = Callable[[bytes], Any]


def value_reader(pipeline: Pipeline, schema_of: Callable[[int], str] | None = None) -> Read:
    """The function from a message's value to what `parse` makes of it in JSON. `schema_of`: the schema's text by its id; None: asks the registry.

    Raises SampleError without a registry, or for sides that have other formats than JSON. The function raises ValueError, TypeError or KeyError for
    what is no value.
    """
    if pipeline.output_format == JSON:
        return parse
    if any(side.format != JSON for side in pipeline.sides):
        raise SampleError(f"sample traffic is JSON, but {pipeline.name} reads other formats: nothing can be compared")
    payloads = {side.payload for side in pipeline.sides}
    make = _protobuf_reader if pipeline.output_format == PROTOBUF else _avro_reader
    reader = lru_cache(lambda key: make((schema_of or _registry())(key)))
    body_at = _BODY_AT[pipeline.output_format]

    def read(value: bytes) -> Any:
        if value[:1] == b"{":
            # Sent before the format was changed.
            return parse(value)
        found = reader(int.from_bytes(value[1:5], "big"))(value[body_at:])
        return {name: parse(text or "null") if name in payloads or name == "ts" else text for name, text in found.items()}

    return read


@lru_cache(maxsize=1)
def _registry() -> Callable[[int], str]:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    settings = json.loads(os.environ.get(_VARIABLE) or "{}")
    if not settings.get("url"):
        raise SampleError(f"values name schemas of a registry: set {_VARIABLE} to its client's settings")
    client = SchemaRegistryClient(settings)
    return lambda key: str(client.get_schema(key).schema_str)


def _avro_reader(text: str) -> Callable[[bytes], dict[str, str | None]]:
    from fastavro import parse_schema, schemaless_reader

    schema: Any = json.loads(text)
    for field in schema["fields"]:
        # The number itself, not a moment of Python's.
        field["type"] = "long" if field["name"] == "ts" else field["type"]
    parsed = parse_schema(schema)

    def read(body: bytes) -> dict[str, str | None]:
        record: Any = schemaless_reader(BytesIO(body), parsed, None)
        return record | {"ts": str(record["ts"])}

    return read


def _protobuf_reader(text: str) -> Callable[[bytes], dict[str, str | None]]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_tools import protoc

    with TemporaryDirectory() as folder:
        Path(folder, "value.proto").write_text(text, encoding="utf-8")
        if protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={folder}/set", "value.proto"]):
            raise SampleError("the schema of the values does not compile")
        (file,) = FileDescriptorSet.FromString(Path(folder, "set").read_bytes()).file
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    made = GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}"))

    def read(body: bytes) -> dict[str, str | None]:
        message = made.FromString(body)
        there = {field.name for field, _ in message.ListFields()}
        found = {field.name: getattr(message, field.name) for field in made.DESCRIPTOR.fields}
        return {name: str(value) if name in there or name == "ts" else None for name, value in found.items()}

    return read
