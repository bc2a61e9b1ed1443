"""The schema of output keys that are records: the key fields in their order, each a text.

It follows from the key fields alone, which never change in the life of a pipeline. So equal keys have equal bytes for ever, if the id before
them stays.
"""

from __future__ import annotations

from dataclasses import replace

from include.config.pipeline import AVRO, Pipeline
from spark_jobs.formats.avro_output import avro_schema
from spark_jobs.formats.output_schema import KEY_RECORD, OutputSchema
from spark_jobs.formats.proto_output import proto_schema


def key_schema(pipeline: Pipeline, schema_id: int = 0) -> OutputSchema:
    """The schema of the keys of a pipeline whose keys have one, under this id of the registry."""
    fields = tuple((name, name) for name in pipeline.key)
    of_key = replace(pipeline, output_fields=fields)
    is_avro = pipeline.output_key == AVRO
    text = avro_schema(of_key, {}, KEY_RECORD) if is_avro else proto_schema(of_key, {}, None, KEY_RECORD).text
    return OutputSchema(schema_id, pipeline.output_key.upper(), text, (), fields)
