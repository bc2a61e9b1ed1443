"""Protobuf bodies to JSON texts: in bulk as one by one, and as Protobuf's own printer says it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.formats.proto_schemas import compile_source
from spark_jobs.formats.protobuf import ProtobufBodies
from tests.helpers.proto_schemas import EVENT, bodies_of, body, texts

ROOT = Path(__file__).parents[3]


def never(*_: object) -> Any:
    raise AssertionError("this must not be called")


def test_ordinary_messages_are_rendered_in_bulk_with_fields_and_keys_in_the_order_of_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProtobufBodies, "_texts", never)
    contents = {
        '{"metrics":{"loss":0.5,"packets":"-7","seen":"1970-01-01T00:00:00.250Z","tags":{"a":"é\\n","b":""}},'
        '"more":[{},{"packets":"1"}],"port":0,"sentAt":"2024-02-29T23:59:59Z","to":"bob","userId":"ann","video":""}': {
            "metrics": {"loss": 0.5, "packets": -7, "tags": {"b": "", "a": "é\n"}, "seen": "1970-01-01T00:00:00.25Z"},
            "more": [{}, {"packets": 1}], "port": 0, "sentAt": "2024-02-29T23:59:59Z", "userId": "ann", "to": "bob", "video": "",
        },
        "{}": {},
        '{"audio":"/w==","metrics":{"loss":-0}}': {"metrics": {"loss": -0.0}, "audio": "/w=="},
        '{"metrics":{"loss":"NaN"}}': {"metrics": {"loss": "NaN"}},
    }  # fmt: skip
    assert texts(bodies_of(EVENT), [None, *(body(EVENT, content) for content in contents.values())]) == [None, *contents]


def test_wanted_fields_may_be_named_either_way_and_the_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    content = body(EVENT, {"userId": "ann", "to": "bob", "metrics": {"loss": 1, "packets": 2}, "port": 3, "video": "v"})
    wanted = {"user_id": {}, "to": {}, "metrics": {"loss": {}}, "gone": {}}
    expected = '{"metrics":{"loss":1},"to":"bob","userId":"ann"}'
    assert bodies_of(EVENT, wanted)._text(content) == expected
    # Twice wanted: the wider tree counts.
    both = bodies_of(EVENT, {"user_id": {}, "userId": {}, "metrics": {"loss": {}, "seen": {}}})
    monkeypatch.setattr(ProtobufBodies, "_texts", never)
    assert texts(bodies_of(EVENT, wanted), [content]) == [expected]
    assert texts(both, [content]) == ['{"metrics":{"loss":1},"userId":"ann"}']
    # Of a oneof the last field counts, also one that is not wanted.
    monkeypatch.undo()
    assert texts(bodies_of(EVENT, {"video": {}}), [content + b"\x42\x00", b"\x42\x00" + content]) == ["{}", '{"video":"v"}']


def test_paths_are_translated_into_json_names_through_messages_only() -> None:
    bodies = bodies_of(EVENT)
    paths = {
        ("user_id",): ("userId",), ("userId",): ("userId",), ("peer",): ("to",), ("to",): ("to",), ("gone", "sent_at"): ("gone", "sent_at"),
        ("metrics", "seen"): ("metrics", "seen"), ("sent_at",): ("sentAt",), ("sent_at", "seconds"): ("sentAt", "seconds"),
        ("metrics", "tags", "user_id"): ("metrics", "tags", "user_id"), ("more", "user_id"): ("more", "user_id"), (): (),
    }  # fmt: skip
    assert {path: bodies.json_path(path) for path in paths} == paths


def test_a_timestamp_is_known_by_its_type() -> None:
    bodies = bodies_of(EVENT)
    moments = [("sent_at",), ("sentAt",), ("metrics", "seen")]
    others = [("user_id",), ("metrics",), ("gone",), ("sent_at", "seconds"), ("more", "seen"), ()]
    assert {path: bodies.timestamp_unit(path) for path in moments + others} == {
        **dict.fromkeys(moments, "iso8601"), **dict.fromkeys(others)
    }  # fmt: skip


def test_versions_of_a_schema_work_side_by_side() -> None:
    first, second = (bodies_of(f'syntax = "proto3"; message Event {{ string {name} = 1; }}') for name in ("old", "new"))
    source = 'syntax = "proto3"; import "side.proto"; package p; message Event { side.Side side = 2; }'
    references = {"side.proto": 'syntax = "proto3"; package side; message Side { string id = 1; }'}
    third = ProtobufBodies(compile_source(source, references).message_at([0]))
    content: list[bytes | None] = [b"\x0a\x01x\x12\x03\x0a\x01y"]
    assert [texts(bodies, content) for bodies in (first, second, third)] == [
        ['{"old":"x"}'],
        ['{"new":"x"}'],
        ['{"side":{"id":"y"}}'],
    ]


def test_messages_of_one_schema_are_made_without_compiling_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2_000
    messages = "".join(f"message M{index} {{ string name = 1; }} " for index in range(count))
    schema = compile_source(f'syntax = "proto3"; {messages}', {})
    monkeypatch.setattr(subprocess, "run", never)
    begin = time.process_time()
    for index in range(count):
        ProtobufBodies(schema.message_at([index]), {"name": {}})
        with pytest.raises(ValueError, match="path"):
            schema.message_at([index, 7])
    assert time.process_time() - begin < count / 1000


def test_a_chain_of_messages_that_is_too_long_for_protobuf_is_refused() -> None:
    chain = "".join(f"message M{index} {{ M{index + 1} next = 1; }} " for index in range(2_000))
    with pytest.raises(ValueError, match="a chain of messages that is too long"):
        bodies_of(f'syntax = "proto3"; {chain} message M2000 {{}}')


@pytest.mark.parametrize("refused", [{7}, {0, 64, 65}, set(range(200)), set(range(0, 9000, 64))])
def test_after_a_failure_of_ptars_only_small_pieces_are_printed_by_protobuf(
    refused: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """As pyo3 raises it."""

    bodies, printed = bodies_of(EVENT), []
    assert bodies._columns is not None
    render, text = bodies._columns.render, bodies._text

    def failing(contents: pa.Array) -> Any:
        if refused & {int(content[2:]) for content in contents.to_pylist()}:
            raise PanicException if 7 in refused else ValueError("refused")
        return render(contents)

    monkeypatch.setattr(bodies._columns, "render", failing)
    monkeypatch.setattr(bodies, "_text", lambda content: printed.append(int(content[2:])) or text(content))
    contents: list[bytes | None] = [b"\x0a\x04%04d" % row for row in range(9000)]
    assert texts(bodies, contents) == [f'{{"userId":"{row:04}"}}' for row in range(9000)]
    assert printed == [row for row in range(9000) if any(row // 64 == other // 64 for other in refused)]


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = bodies_of(EVENT)
    assert bodies._columns is not None
    for problem in (KeyboardInterrupt, MemoryError):
        monkeypatch.setattr(bodies._columns, "render", lambda _, problem=problem: (_ for _ in ()).throw(problem()))
        with pytest.raises(problem):
            texts(bodies, [b""])


def test_the_memory_of_parsed_bodies_is_given_back() -> None:
    """One message object would keep what all bodies took: here 2 GB. The process may have half of it more than it has at first."""
    run_limited(
        "bodies = bodies_of('syntax = \"proto3\"; message A { repeated A a = 1; bytes b = 2; }')\n"
        "contents = pa.array([bytes([10, 0]) * 16_000] * 4000, pa.binary())\n"
        "assert bodies._sorted(contents.to_pylist())[1].all()\n",
        gigabytes=1,
    )


def test_hostile_bodies_are_null_at_once() -> None:
    run_limited(
        "from random import Random\n"
        "random = Random(1)\n"
        "good = body(EVENT, {'userId': 'ann', 'metrics': {'loss': 1, 'tags': {'a': 'b'}}, 'more': [{}], 'audio': '/w=='})\n"
        "wires = [good[:end] for end in range(len(good))] + [random.randbytes(random.randrange(40)) for _ in range(3000)]\n"
        "wires += [bytes([10]) + varint(size) + b'x' for size in (2**31, 2**32, 2**63, 2**64 - 1, 2**64 - 9)] * 100\n"
        "wires += [varint(number << 3 | kind) for number in (0, 1, 4, 2**29, 2**61) for kind in range(8)]\n"
        "deep = b''\n"
        "for _ in range(5000): deep = bytes([0x12]) + varint(len(deep)) + deep\n"
        "wires += [deep, deep * 20, bytes([0x33]) * 100_000, bytes([0x22, 0]) * 500_000, bytes([0x80]) * 500_000]\n"
        "for bodies in (bodies_of(EVENT), bodies_of(BY_ONE)):\n"
        "    found = texts(bodies, wires)\n"
        "    accepted = bodies._sorted(wires)\n"
        "    assert found == [bodies._text(wire) if some or one else None for wire, some, one in zip(wires, *accepted)]\n"
        "    assert found.count(None) > 2000\n"
        "bodies = bodies_of(EVENT)\n"
        "begin = time.process_time()\n"
        "assert texts(bodies, [good[:-1], bytes([10, 5, 255])] * 50_000) == [None] * 100_000\n"
        "assert time.process_time() - begin < 4\n",
        gigabytes=2,
    )


def test_a_high_field_number_takes_no_memory() -> None:
    run_limited(
        "bodies = bodies_of('syntax = \"proto3\"; message A { string a = 1; int32 b = 536870911; }')\n"
        'assert texts(bodies, [bytes([10, 1, 97])]) == [\'{"a":"a"}\']\n',
        gigabytes=2,
    )


def run_limited(code: str, gigabytes: int) -> None:
    """Runs code with the names of this module in a process of its own, which may take so much more memory than it has at first."""
    head = (
        "import resource, time\n"
        "import pyarrow as pa\n"
        "from tests.helpers.proto_schemas import BY_ONE, EVENT, bodies_of, body, texts, varint\n"
        "bodies_of(EVENT)\n"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (taken + {gigabytes} * 2**30,) * 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", head + code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("module", ["protobuf", "proto_schemas", "proto_columns", "proto_messages"])
def test_the_libraries_are_imported_by_the_first_schema_only(module: str) -> None:
    code = f"import sys, spark_jobs.formats.{module}; print([name for name in ('google.protobuf', 'grpc_tools', 'ptars') if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"
    )
