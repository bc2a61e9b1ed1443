"""Makes the schemas by which compounds are published, that of values of those of the sides, and registers them. Only the driver asks, when it publishes.

A side's own schema is its schema file, or the newest version of the subject of its topic. So a payload may have been written by another one: one
that does not fit the newest is published as its JSON text (`avro_output`, `proto_output`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from include.config.pipeline import AVRO, PROTOBUF, Pipeline, Side
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.avro_output import avro_encoder, avro_schema
from spark_jobs.formats.output_key import key_schema
from spark_jobs.formats.output_schema import Encode, OutputSchema, SideSchema, key_subject_of, side_of, subject_of
from spark_jobs.formats.proto_output import ProtoText, proto_encoder, proto_schema
from spark_jobs.formats.registry import RegisteredSchema, Settings, with_references

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

    from spark_jobs.formats.registry_client import RegistryClient


def encoder(schema: OutputSchema) -> Encode:
    """The function from columns to values of the schema, each with its frame. Raises ValueError if the schema cannot be used."""
    return avro_encoder(schema) if schema.kind == AVRO.upper() else proto_encoder(schema)


def register_output(pipeline: Pipeline, settings: Settings) -> OutputSchema:
    """The schema of values from now on, registered as a version of the output topic's subject; it may be one already.

    `settings`: those of `registry_settings`. Raises RegistryProblem if the registry does not answer, NeedsOperator if it refuses the schema or
    one of a side cannot be used; nothing is registered then.
    """
    # It takes as long to import as a small job to run.
    from spark_jobs.formats.registry_client import RegistryClient

    return _Registration(pipeline, RegistryClient(settings), settings["url"]).registered()


def register_key(pipeline: Pipeline, settings: Settings) -> OutputSchema:
    """The schema of output keys, registered as a version of the subject of the output topic's keys; it may be one already.

    `settings` and errors: as of `register_output`.
    """
    from confluent_kafka.schema_registry import Schema

    from spark_jobs.formats.registry_client import RegistryClient

    client, subject, made = RegistryClient(settings), key_subject_of(pipeline.output_topic), key_schema(pipeline)
    schema, newest = Schema(made.text, made.kind, []), client.newest(subject)
    refusal = newest and NeedsOperator(
        f"output keys would have a schema that is not compatible with version {newest[1]} of {subject} in the schema registry at "
        f"{settings['url']}; nothing was sent: have the registry accept it (the compatibility of that subject)"
    )
    return made._replace(id=_as_version(client, settings["url"], subject, schema, refusal))


def _as_version(client: RegistryClient, url: str, subject: str, schema: Schema, refusal: NeedsOperator | None) -> int:
    """The id of the schema, which is a version of the subject already, or is compatible with the newest one and registered now.

    `refusal`: raised if it is not compatible; None: the subject has no version.
    """
    if known := client.find(subject, schema):
        return known[0]
    if refusal and not client.is_compatible(subject, schema):
        raise refusal
    return _registered(client, url, subject, schema)


def _registered(client: RegistryClient, url: str, subject: str, schema: Schema) -> int:
    """The id of the schema, which is a version of the subject then."""
    registered = client.register(subject, schema)
    if registered is None:
        raise NeedsOperator(
            f"the schema registry at {url} refuses the schema of {subject}; its own log says why; nothing was sent"
        )
    return registered


class _Registration:
    def __init__(self, pipeline: Pipeline, client: RegistryClient, url: str) -> None:
        self._pipeline, self._client, self._url = pipeline, client, url
        self._subject, self._kind = subject_of(pipeline.output_topic), pipeline.output_format.upper()
        sources = [source for _, source in pipeline.value_fields if source in ("left.payload", "right.payload")]
        of_same_format = (source for source in sources if side_of(pipeline, source).format == pipeline.output_format)
        self._sides = {source: self._side_schema(side_of(pipeline, source)) for source in of_same_format}

    def registered(self) -> OutputSchema:
        newest = self._newest(self._subject)
        if self._pipeline.output_format == PROTOBUF:
            made = proto_schema(self._pipeline, self._sides, newest.schema if newest else None)
        else:
            made = ProtoText(avro_schema(self._pipeline, self._sides), ())
        references = [each for name, source in made.imports for each in self._texts(name, source)]
        schema = OutputSchema(0, self._kind, made.text, tuple(references), self._pipeline.value_fields)
        try:
            # Nothing may be registered by which nothing can be written.
            encoder(schema)
        except ValueError as problem:
            raise NeedsOperator(
                f"no {self._pipeline.output_format} schema can be made of those of {self._pipeline.left.input} and {self._pipeline.right.input}: "
                f"{problem}; set output.format: json, or correct the schemas"
            ) from None
        return schema._replace(id=self._register(made, newest))

    def _newest(self, subject: str) -> SideSchema | None:
        found = self._client.newest(subject)
        schema = found and with_references(self._client, found[0])
        return SideSchema(schema, found[1]) if found and schema else None

    def _side_schema(self, side: Side) -> SideSchema:
        if side.schema:
            return SideSchema(RegisteredSchema(side.format.upper(), side.schema), None)
        found = self._newest(subject_of(side.single_topic))
        if found is None or found.schema.kind != self._kind:
            has = f"is {found.schema.kind}" if found else "is not there"
            raise NeedsOperator(
                f"the schema registry at {self._url} is to have the schema of the payloads of {side.input} under {subject_of(side.single_topic)}, which "
                f"{has}: register it there in {side.format}, or set output.format: json; nothing was sent"
            )
        return found

    def _texts(self, name: str, source: str) -> list[tuple[str, str]]:
        schema = self._sides[source].schema
        return [*schema.references, (name, schema.text)]

    def _register(self, made: ProtoText, newest: SideSchema | None) -> int:
        from confluent_kafka.schema_registry import Schema, SchemaReference

        references = [SchemaReference(name, *self._reference(source)) for name, source in made.imports]
        schema = Schema(made.text, self._kind, references)
        refusal = newest and NeedsOperator(
            f"compounds would have a schema that is not compatible with version {newest.version} of {self._subject} in the schema registry at "
            f"{self._url}; nothing was sent: put settings and schemas back to what they were, or have the registry accept it (the compatibility "
            "of that subject)"
        )
        return _as_version(self._client, self._url, self._subject, schema, refusal)

    def _reference(self, source: str) -> tuple[str, int]:
        """Subject and version of the schema of the side whose payload this is; a schema file gets a subject of its own."""
        from confluent_kafka.schema_registry import Schema

        side, own = side_of(self._pipeline, source), self._sides[source]
        if own.version is not None:
            return subject_of(side.single_topic), own.version
        subject, schema = f"{self._pipeline.output_topic}-{side.payload}", Schema(own.schema.text, self._kind)
        _registered(self._client, self._url, subject, schema)
        found = self._client.find(subject, schema)
        return subject, found[1] if found else 1
