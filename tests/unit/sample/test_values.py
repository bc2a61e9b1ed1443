"""The sample's own reader of values finds in every format what JSON says."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from include.sample.outcome import canonical, parse
from include.sample.sending import SampleError
from include.sample.values import value_reader
from spark_jobs.formats.avro_output import avro_schema
from spark_jobs.formats.output_schema import OutputSchema
from spark_jobs.formats.proto_output import proto_schema
from spark_jobs.kafka.messages import message_maker
from tests.helpers.timeline import CALLS
from tests.unit.kafka.test_messages import ROW, SCHEMA

ROWS = [ROW | {"analytics": '{"loss":0.10,"n":9007199254740993}', "user1": 'a"é'}, ROW | {"metrics": None, "ts": 0}]


@pytest.mark.parametrize("form", ["avro", "protobuf"])
def test_every_format_says_what_json_says(form: str) -> None:
    pipeline = replace(CALLS, output_format=form)
    text = avro_schema(pipeline, {}) if form == "avro" else proto_schema(pipeline, {}, None).text
    schema = OutputSchema(7, form.upper(), text, (), pipeline.value_fields)
    rows = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
    plain = message_maker(pipeline, {3: 1})(rows)["value"].to_pylist()
    values = message_maker(pipeline, {3: 1}, schemas={3: schema})(rows)["value"].to_pylist()
    read = value_reader(pipeline, {7: text}.__getitem__)
    assert [value[:5] for value in values] == [b"\0\0\0\0\7"] * 2
    assert [canonical(read(value)) for value in values] == [canonical(parse(value)) for value in plain]
    assert read(plain[0]) == parse(plain[0])


def test_without_a_registry_and_for_other_sides_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAIRING_SCHEMA_REGISTRY", raising=False)
    avro = replace(CALLS, output_format="avro")
    with pytest.raises(SampleError, match="set PAIRING_SCHEMA_REGISTRY"):
        value_reader(avro)(b"\0\0\0\0\7")
    with pytest.raises(SampleError, match="sample traffic is JSON"):
        value_reader(replace(avro, left=replace(avro.left, format="avro")))
