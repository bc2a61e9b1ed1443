"""Schemas from texts, and what is wrong with them."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from spark_jobs.faults.problems import JobProblem
from spark_jobs.formats import proto_schemas
from spark_jobs.formats.proto_schemas import ProtoSchema, compile_source
from spark_jobs.formats.protobuf import ProtobufBodies
from tests.helpers.proto_schemas import BY_ONE, EVENT, changed, random_schema

NESTED = """syntax = "proto3";
package calls.v1;
import "common/side.proto";
import "google/protobuf/timestamp.proto";
message First { map<string, int32> counts = 1; message Inner { message Deep {} Deep deep = 1; } Inner inner = 2; }
message Second { common.Side side = 1; google.protobuf.Timestamp at = 2; message One {} message Two {} }
"""
SIDE = 'syntax = "proto3"; package common; message Side { string user_id = 1; }'


@pytest.fixture(scope="module")
def nested() -> ProtoSchema:
    return compile_source(NESTED, {"common/side.proto": SIDE})


@pytest.mark.parametrize(
    ("indexes", "name"),
    [([0], "First"), ([1], "Second"), ([0, 0], "First.Inner"), ([0, 0, 0], "First.Inner.Deep"), ([1, 1], "Second.Two")],
)
def test_a_path_of_indexes_counts_the_messages_that_the_text_declares(
    nested: ProtoSchema, indexes: list[int], name: str
) -> None:
    assert nested.message_at(indexes).full_name == f"calls.v1.{name}"


@pytest.mark.parametrize("indexes", [[2], [-1], [0, 1], [0, 0, 0, 0], []])
def test_a_path_out_of_range_is_refused(nested: ProtoSchema, indexes: list[int]) -> None:
    with pytest.raises(ValueError, match="path"):
        nested.message_at(indexes)


def test_a_name_finds_a_message_of_any_file_or_is_refused_with_those_there_are(nested: ProtoSchema) -> None:
    assert nested.message_named("common.Side").fields_by_name["user_id"].number == 1
    with pytest.raises(ValueError, match=r"no message 'First'; its file has calls\.v1\.First, calls\.v1\.Second$"):
        nested.message_named("First")


def test_a_file_without_a_package_has_messages_of_their_bare_names() -> None:
    assert compile_source('syntax = "proto3"; message Event {}', {}).message_at([0]).full_name == "Event"


@pytest.mark.parametrize(
    ("source", "imported", "reason"),
    [
        (
            'syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }',
            {},
            r"schema\.proto:1:\d+: Field number 1 has already been used",
        ),
        ("message", {}, r"schema\.proto:1:8: Expected message name"),
        ('syntax = "proto3"; import "gone.proto"; message A {}', {}, r"gone\.proto: File not found"),
        (
            'syntax = "proto3"; import "b.proto"; message A {}',
            {"b.proto": "message B { optional X x = 1; }"},
            r'b\.proto:1:\d+: "X" is not',
        ),
        (
            'syntax = "proto3"; import "b.proto"; message A {}',
            {"b.proto": 'import "b.proto";'},
            r"b\.proto:1:1: File recursively imports",
        ),
        ("\ud800", {}, "cannot be written"),
        ("", {"../outside.proto": ""}, "no relative path"),
        ("", {"/tmp/outside.proto": ""}, "no relative path"),
        ("", {"": ""}, "no relative path"),
    ],
)
def test_a_wrong_schema_is_one_line_and_says_nothing_else(
    source: str, imported: dict[str, str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        compile_source(source, imported)
    assert "\n" not in str(raised.value) and "/tmp" not in str(raised.value).replace("'/tmp/outside.proto'", "")
    assert capfd.readouterr() == ("", "")


def test_a_schema_that_is_called_as_the_own_text_would_be_is_no_other_one() -> None:
    source = 'syntax = "proto3"; import "schema.proto"; message A { B b = 1; }'
    schema = compile_source(source, {"schema.proto": 'syntax = "proto3"; message B {}'})
    assert [schema.message_at([0]).full_name, schema.message_named("B").full_name] == ["A", "B"]


def test_warnings_are_no_errors(capfd: pytest.CaptureFixture[str]) -> None:
    source = 'syntax = "proto3"; import "google/protobuf/any.proto"; message A {}'
    assert compile_source(source, {}).message_at([0]).full_name == "A"
    assert capfd.readouterr() == ("", "")


OPTION = """syntax = "proto2"; import "google/protobuf/descriptor.proto"; message O { optional O o = 1; }
extend google.protobuf.MessageOptions { optional O x = 50000; }
"""


def nesting(levels: int) -> str:
    return f"{OPTION} message M {{ option (x) = {{ {'o {' * levels}{'}' * levels} }}; }}"


@pytest.mark.parametrize(("levels", "killed_by"), [(101, signal.SIGABRT), (5_000, signal.SIGSEGV)])
def test_a_schema_that_kills_the_compiler_is_refused(levels: int, killed_by: int) -> None:
    assert compile_source(nesting(90), {}).message_at([1]).full_name == "M"
    with pytest.raises(ValueError, match=f"does not compile: signal {killed_by:d}$"):
        compile_source(nesting(levels), {})


def test_a_schema_that_takes_more_memory_than_most_is_refused() -> None:
    fields = " ".join(f"int32 f{number} = {number};" for number in range(1, 10_001))
    with pytest.raises(ValueError, match="does not compile: signal"):
        compile_source(f'syntax = "proto3"; message {"M" * 60_000} {{ {fields} }}', {})


def test_of_errors_without_end_the_first_is_told_in_a_short_line() -> None:
    fields = " ".join(f"int32 f{number} = 1;" for number in range(5_000))
    with pytest.raises(ValueError, match=r"does not compile: schema\.proto:1:\d+: Field number 1 has") as raised:
        compile_source(f'syntax = "proto3"; message {"M" * 40_000} {{ {fields} }}', {})
    assert len(str(raised.value)) < 400


def test_a_compiler_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto_schemas, "_COMPILER", "import time; time.sleep(60)")
    monkeypatch.setattr(proto_schemas, "_LONGEST_S", 0.2)
    begin = time.monotonic()
    with pytest.raises(JobProblem, match=r"did not end within 0\.2 s"):
        compile_source("", {})
    assert time.monotonic() - begin < 30
    # As the kernel does where memory is short.
    monkeypatch.setattr(proto_schemas, "_COMPILER", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(JobProblem, match="the Protobuf compiler was killed"):
        compile_source("", {})


def test_the_compiler_takes_no_modules_from_the_schema_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm = f"open({str(tmp_path / 'harm')!r}, 'w')"
    names = ["resource.py", "sitecustomize.py", "grpc_tools/__init__.py", "grpc_tools/protoc.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(harm)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert compile_source('syntax = "proto3"; message A {}', dict.fromkeys(names, harm)).message_at([0]).full_name == "A"
    assert not (tmp_path / "harm").exists()


def test_random_changes_of_schemas_are_refused_in_one_line_if_at_all(capfd: pytest.CaptureFixture[str]) -> None:
    refusals = []
    for seed in range(40):
        random = Random(seed)
        source = changed(random, random.choice([random_schema(random, "proto2"), NESTED, nesting(3), BY_ONE, EVENT]))
        try:
            bodies = ProtobufBodies(compile_source(source, {"common/side.proto": changed(random, SIDE)}).message_at([0]))
        except ValueError as problem:
            refusals.append(str(problem))
        else:
            bodies.to_json(pa.array([b""], pa.binary()))
    assert 10 < len(refusals) < 40 and [text for text in refusals if "\n" in text or len(text) > 400] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"\xff", b'syntax = "proto3";', b"\x0a\x00\x0a\x00"])
def test_what_protobuf_takes_for_no_descriptor_set_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(ValueError, match="the Protobuf schema is wrong: ") as raised:
        ProtoSchema(content)
    assert "\n" not in str(raised.value)


def test_a_descriptor_set_with_an_unknown_type_is_refused_in_one_line() -> None:
    files = FileDescriptorSet()
    message = files.file.add(name="a.proto", syntax="proto3").message_type.add(name="A")
    message.field.add(name="b", number=1, type=11, type_name=".B", label=1)
    with pytest.raises(ValueError, match="the Protobuf schema is wrong: ") as raised:
        ProtoSchema(files.SerializeToString())
    assert "\n" not in str(raised.value)


def test_two_versions_of_one_schema_live_side_by_side() -> None:
    first = compile_source('syntax = "proto3"; message Event { string a = 1; }', {}).message_at([0])
    second = compile_source('syntax = "proto3"; message Event { int64 b = 1; }', {}).message_at([0])
    assert [list(first.fields_by_name), list(second.fields_by_name)] == [["a"], ["b"]]


def test_files_that_come_with_the_compiler_are_not_taken_from_the_references() -> None:
    source = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message A { google.protobuf.Timestamp at = 1; }'
    assert compile_source(source, {"google/protobuf/timestamp.proto": "nonsense"}).message_at([0]).full_name == "A"
