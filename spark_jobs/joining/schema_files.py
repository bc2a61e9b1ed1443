"""Schema files of topics whose records do not show what they are: plain Avro and Protobuf."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from include.config.pipeline import AVRO, PROTOBUF, Format
from spark_jobs.formats.proto_schemas import compile_source

_FORMATS: dict[str, Format] = {".avsc": AVRO, ".proto": PROTOBUF}
_SHOWN = 10


class SchemaFile(NamedTuple):
    """`name`: that of the file, without its folder. `message`: of a Protobuf file, None for Avro."""

    name: str
    format: Format
    text: str
    message: str | None


def read_schema_file(path: Path, message: str | None) -> SchemaFile:
    """The schema file. `message`: the Protobuf message that records are; None: the only one of the file. Raises ValueError of one line."""
    form = _FORMATS.get(path.suffix)
    if form is None:
        raise ValueError(f"name a file that ends with {' or '.join(_FORMATS)}; its end says what the schema is")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if form == AVRO and message is not None:
        raise ValueError(f"an Avro schema has no message {message}")
    return SchemaFile(path.name, form, text, _message(text, message) if form == PROTOBUF else None)


def _message(text: str, wanted: str | None) -> str:
    file = compile_source(text, {})
    if wanted is not None:
        return str(file.message_named(wanted).full_name)
    outer = [message.full_name for message in file.messages() if message.containing_type is None]
    if len(outer) != 1:
        raise ValueError(f"which message is a record? Name one of {', '.join(outer[:_SHOWN])}")
    return str(outer[0])
