"""Values of messages in other formats than JSON: each compound by the schema of its batch. Keys by their one schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.config.pipeline import Pipeline
from spark_jobs.formats.output_schema import Encode, OutputSchema


# Made once in a process: compiling a Protobuf schema takes a twentieth of a second. Pipelines have few schemas at a time.
@lru_cache(maxsize=16)
def _encoder(schema: OutputSchema) -> Encode:
    # Most pipelines publish JSON, and their jobs do without what this imports.
    from spark_jobs.formats.registration import encoder

    return encoder(schema)


def encode_values(
    rows: pa.RecordBatch, pipeline: Pipeline, values: pa.Array, schemas: Mapping[int, OutputSchema]
) -> pa.Array:
    """The values (binary, null for a retraction) of rows of compound_events, encoded in those batches that have a schema."""
    if not schemas:
        return values
    # One schema at most times: batches of one run have the same.
    batches = rows.column("batch_id").to_numpy()
    wanted: dict[OutputSchema, list[int]] = {}
    for batch_id in np.unique(batches).tolist():
        if batch_id in schemas:
            wanted.setdefault(schemas[batch_id], []).append(batch_id)
    there = values.is_valid()
    for schema, batch_ids in wanted.items():
        mine = pc.and_(there, pa.array(np.isin(batches, batch_ids)))
        values = pc.replace_with_mask(values, mine, _encoded(rows.filter(mine), pipeline, _encoder(schema), schema))
    return values


def _encoded(rows: pa.RecordBatch, pipeline: Pipeline, encode: Encode, schema: OutputSchema) -> pa.Array:
    return encode({source: rows.column(pipeline.value_sources[source]) for _, source in schema.fields})


def encode_keys(fields: list[pa.Array], schema: OutputSchema) -> pa.Array:
    """The keys (binary, null for an erased one) by the schema, given one array for each of its fields."""
    names = [source for _, source in schema.fields]
    there = fields[0].is_valid()
    keys = _encoder(schema)({name: field.filter(there) for name, field in zip(names, fields, strict=True)})
    return pc.replace_with_mask(pa.nulls(len(there), pa.binary()), there, keys)
