"""The schemas by which compounds were published, kept beside the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.output_key import key_schema
from spark_jobs.formats.output_schema import OutputSchema
from spark_jobs.tables.output_schemas import OutputSchemas, keep_key_schema, known_key_schema
from spark_jobs.tables.warehouse import Warehouse
from tests.helpers.timeline import CALLS

ONE = OutputSchema(7, "PROTOBUF", "message é {}", (("a.proto", "x"), ("b.proto", "y")), CALLS.value_fields)
OTHER = ONE._replace(text="other")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(str(tmp_path), CALLS, None)  # type: ignore[arg-type]


def files(warehouse: Warehouse) -> list[Path]:
    return sorted(Path(warehouse.root, CALLS.name, "known_schemas").glob("*"))


def test_a_schema_holds_from_its_batch_on_until_the_next(warehouse: Warehouse) -> None:
    OutputSchemas(warehouse).note(1, None)
    assert files(warehouse) == [] and OutputSchemas(warehouse).of([1]) == {}
    for batch_id, schema in ((3, ONE), (4, ONE), (9, OTHER), (10, OTHER), (12, None), (13, None), (100, ONE)):
        OutputSchemas(warehouse).note(batch_id, schema)
    assert [file.name for file in files(warehouse)] == [f"output-from-{first}.json" for first in (100, 12, 3, 9)]
    found = OutputSchemas(warehouse).of([2, 3, 8, 9, 11, 12, 99, 100, 101])
    assert found == {3: ONE, 8: ONE, 9: OTHER, 11: OTHER, 100: ONE, 101: ONE}
    # Nothing was sent by it yet, and meanwhile the schema is another one.
    OutputSchemas(warehouse).note(100, OTHER)
    assert OutputSchemas(warehouse).of([100]) == {100: OTHER}


def test_a_file_that_is_damaged_is_one_line(warehouse: Warehouse) -> None:
    OutputSchemas(warehouse).note(5, ONE)
    (file,) = files(warehouse)
    for content in ("", "{}", '{"id": 1', "[]"):
        file.write_text(content)
        assert OutputSchemas(warehouse).of([4]) == {}
        with pytest.raises(
            NeedsOperator, match=r"output-from-5.json is damaged, by which compounds were published: put tha"
        ):
            OutputSchemas(warehouse).of([5])


def test_the_id_of_the_keys_schema_is_kept_and_never_asked_for_again(tmp_path: Path) -> None:
    pipeline = replace(CALLS, output_key="avro")
    mine = Warehouse(str(tmp_path), pipeline, None)  # type: ignore[arg-type]
    assert known_key_schema(mine, was_sent=False) is None
    for content in (None, "", "{}", "[]", '{"id": "x"}', '{"id": -1}', '{"id": 2147483648}'):
        if content is not None:
            (place := tmp_path / CALLS.name / "known_schemas").mkdir(parents=True, exist_ok=True)
            (place / "output-key.json").write_text(content)
        # Nobody knows what would be sent under another id.
        with pytest.raises(
            NeedsOperator, match=r"output-key.json is gone or damaged, .* bytes 2 to 5 of any key on output"
        ) as line:
            keep_key_schema(mine, was_sent=True)
        assert "\n" not in str(line.value)
    (place / "output-key.json").write_text('{"id": 258}')
    # Without any registry.
    keep_key_schema(mine, was_sent=True)
    assert known_key_schema(mine, was_sent=True) == key_schema(pipeline, 258)


def test_keys_that_are_texts_need_no_file(warehouse: Warehouse) -> None:
    keep_key_schema(warehouse, was_sent=True)
    assert known_key_schema(warehouse, was_sent=True) is None and files(warehouse) == []
