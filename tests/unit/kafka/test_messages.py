"""From rows of compound_events to one sender's messages, and their keys: as the original spells them where nothing needs an escape, no two
alike, read back by the recipes of docs/consuming.md, and placed where Java places them.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.config.pipeline import AS_JSON, ESCAPED
from include.local.machine import java
from include.sample import truth as sample_truth
from spark_jobs.kafka.messages import message_maker, messages_for, output_key, output_keys, output_partition
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.batch_settings import BatchSettings
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.test_doc_examples import code_blocks

ROW = {
    "pair_id": "a-0-1", "revision": 0, "op": "upsert", "kind": "pair", "user1": "x", "user2": "y", "ts": 5, "analytics": "1",
    "metrics": "2", "batch_id": 3,
}  # fmt: skip
# As Spark hands the table's rows over.
SCHEMA = pa.schema([(name, pa.string()) for name in ("pair_id", "op", "kind", "user1", "user2", "analytics", "metrics")]
                   + [("revision", pa.int32()), ("ts", pa.int64()), ("batch_id", pa.int64())])  # fmt: skip
CONSUMING = (ROOT / "docs" / "consuming.md").read_text()
# What separates and escapes comes often, and beside anything else that a JSON string may hold.
FIELDS = st.text(st.sampled_from("-\\\"',[]ab\x00\n é😀") | st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
KEYS = st.integers(1, 4).flatmap(lambda count: st.lists(st.tuples(*[FIELDS] * count), min_size=1, max_size=20, unique=True))
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
    b"": 275646681,
}


def rows(users, partitions):
    make = message_maker(CALLS, {ROW["batch_id"]: partitions})
    return make(pa.RecordBatch.from_pylist([{**ROW, "user1": user} for user in users], SCHEMA))


def messages(given):
    make = message_maker(CALLS, dict.fromkeys((row["batch_id"] for row in given), 1))
    return list(messages_for(0, [make(pa.RecordBatch.from_pylist(given, SCHEMA))]))


def test_a_message_is_key_value_and_headers():
    (message,) = messages([ROW | {"analytics": None, "metrics": '{"loss":0.10}'}])
    headers = [("pair-id", b"a-0-1"), ("revision", b"0"), ("kind", b"pair"), ("op", b"upsert")]
    value = b'{"user1":"x","user2":"y","ts":5,"analytics":null,"metrics":{"loss":0.10}}'
    assert message == (3, b"x-y", value, headers, None)


def test_each_message_has_the_headers_of_its_row():
    rows = [ROW | {"pair_id": f"a-0-{n}", "revision": n % 3, "kind": ("pair", "left_orphan")[n % 2]} for n in range(7)]
    assert [dict(message.headers) for message in messages(rows)] == [
        {name.replace("_", "-"): str(row[name]).encode() for name in ("pair_id", "revision", "kind", "op")} for row in rows
    ]


def test_with_any_order_of_the_key_a_message_says_who_named_whom_on_each_side():
    directions = pa.schema([("left_reversed", pa.bool_()), ("right_reversed", pa.bool_())])
    make = message_maker(replace(CALLS, key_order="any"), {ROW["batch_id"]: 1})
    values = []
    for left, right in ((True, False), (None, True), (False, None)):
        row = ROW | {"left_reversed": left, "right_reversed": right}
        (message,) = messages_for(0, [make(pa.RecordBatch.from_pylist([row], pa.unify_schemas([SCHEMA, directions])))])
        values.append(message.value)
    assert values == [
        b'{"user1":"x","user2":"y","ts":5,"analytics":1,"metrics":2,"analytics_reversed":true,"metrics_reversed":false}',
        b'{"user1":"x","user2":"y","ts":5,"analytics":1,"metrics":2,"analytics_reversed":null,"metrics_reversed":true}',
        b'{"user1":"x","user2":"y","ts":5,"analytics":1,"metrics":2,"analytics_reversed":false,"metrics_reversed":null}',
    ]


def test_a_retraction_has_no_value():
    gone, here = messages([ROW | {"op": "retract", "revision": 7}, ROW])
    assert (gone.key, gone.value, dict(gone.headers)["revision"]) == (b"x-y", None, b"7")
    assert here.value is not None


def test_a_value_has_the_fields_that_are_named_in_their_order():
    fields = (
        ("seen", "right.ts"), ("caller", "user1"), ("analytics", "left.payload"), ("at", "ts"), ("id", "pair_id"), ("n", "revision"),
        ("what", "kind"), ("again", "user1"), ("first", "left.ts"), ("metrics", "right.payload"),
    )  # fmt: skip
    make = message_maker(replace(CALLS, output_fields=fields), {3: 1})
    schema = SCHEMA.append(pa.field("left_ts", pa.int64())).append(pa.field("right_ts", pa.int64()))
    row = ROW | {
        "kind": "left_only",
        "user1": 'a"b',
        "analytics": '{"a":1.0}',
        "metrics": None,
        "left_ts": 2**63 - 1,
        "right_ts": None,
    }
    (message,) = messages_for(0, [make(pa.RecordBatch.from_pylist([row], schema))])
    assert message.value == (
        b'{"seen":null,"caller":"a\\"b","analytics":{"a":1.0},"at":5,"id":"a-0-1","n":0,"what":"left_only","again":"a\\"b",'
        b'"first":9223372036854775807,"metrics":null}'
    )


def test_every_batch_has_the_fields_of_its_own_settings():
    only_time = replace(CALLS, output_fields=(("at", "ts"),))
    settings = BatchSettings.of(
        [(3, CALLS.to_json()), (4, only_time.to_json()), (5, only_time.to_json()), (6, CALLS.to_json())]
    )
    assert settings == BatchSettings((3, 4, 6), (CALLS, only_time, CALLS))
    make = message_maker(CALLS, dict.fromkeys(range(10), 1), settings)
    given = [ROW | {"batch_id": number} for number in (4, 3, 2, 5, 6, 7)] + [ROW | {"batch_id": 5, "op": "retract"}]
    values = [message.value for message in messages_for(0, [make(pa.RecordBatch.from_pylist(given, SCHEMA))])]
    whole = b'{"user1":"x","user2":"y","ts":5,"analytics":1,"metrics":2}'
    assert values == [b'{"at":5}', whole, whole, b'{"at":5}', whole, whole, None]
    assert make(pa.RecordBatch.from_pylist([], SCHEMA)).num_rows == 0


@given(st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=20))
def test_any_key_comes_back_from_the_json(users):
    for (user1, user2), message in zip(
        users, messages([ROW | {"user1": user1, "user2": user2} for user1, user2 in users]), strict=True
    ):
        assert message.key == output_key(CALLS, (user1, user2))
        assert message.value == spelled_out(user1, user2).encode()
        assert json.loads(message.value) == {"user1": user1, "user2": user2, "ts": 5, "analytics": 1, "metrics": 2}


def spelled_out(user1, user2):
    names = {"user1": user1, "user2": user2, "ts": 5, "analytics": 1, "metrics": 2}
    return json.dumps(names, ensure_ascii=False, separators=(",", ":"))


def test_rows_without_a_batch_are_not_messages():
    made = rows(["a", "b"], 1)
    place = made.schema.get_field_index("batch_id")
    empty = made.set_column(place, "batch_id", pa.array([None, 4], pa.int64()))
    assert [message.batch_id for message in messages_for(0, [empty])] == [4]


def test_every_message_goes_to_the_partition_of_its_key():
    users = [f"u{number}" for number in range(50)]
    batch = rows(users, 3)
    partitions = batch.column("output_partition").to_pylist()
    assert set(partitions) == {0, 1, 2}
    by_partition = [
        batch.take([place for place, number in enumerate(partitions) if number == wanted]) for wanted in range(3)
    ]
    keys = [message.key for number in range(3) for message in messages_for(number, [by_partition[number]])]
    assert sorted(keys) == sorted(f"{user}-y".encode() for user in users)


def test_a_message_for_another_partition_is_refused():
    batch = rows([f"u{number}" for number in range(50)], 3)
    with pytest.raises(BrokenInvariant, match=r"a message for partition . came to the sender of 0"):
        list(messages_for(0, [batch]))


def pipeline(spelling, count):
    return replace(CALLS, output_key=spelling, key=tuple(f"field{number}" for number in range(count)))


def spelled(spelling, keys):
    fields = [pa.array(column) for column in zip(*keys, strict=True)]
    return output_keys(pipeline(spelling, len(fields)), fields).to_pylist()


def recipe(language):
    (text,) = (block for block in code_blocks(CONSUMING, language) if "escaped" in block)
    return text


def fields_of() -> Any:
    names: dict[str, Any] = {}
    exec(recipe("python"), names)
    return names["fields_of"]


@pytest.mark.parametrize("spelling", [ESCAPED, AS_JSON])
@given(KEYS)
def test_no_two_keys_are_spelled_alike_and_each_can_be_read_back(spelling, keys):
    texts = spelled(spelling, keys)
    assert len(set(texts)) == len(keys)
    if spelling == AS_JSON:
        assert texts == [json.dumps(key, ensure_ascii=False, separators=(",", ":")) for key in keys]
    elif len(keys[0]) == 1:
        assert texts == [field for (field,) in keys]
    else:
        assert [tuple(fields_of()(text.encode())) for text in texts] == keys
    mine = pipeline(spelling, len(keys[0]))
    assert [output_key(mine, key).decode() for key in keys] == texts
    # The truth beside the sample traffic spells them by itself.
    assert [sample_truth._key(mine, list(key)).decode() for key in keys] == texts


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_characters="-\\", exclude_categories=["Cs"]), min_size=1)] * 2), min_size=1
    )
)
def test_fields_without_separator_and_escape_are_joined_as_the_original_does(keys):
    assert spelled(ESCAPED, keys) == ["-".join(key) for key in keys]


def test_the_pairs_that_used_to_be_one():
    assert spelled(ESCAPED, [("a-b", "c"), ("a", "b-c"), ("a\\", "b-c"), ("a\\-b", "c")]) == [
        r"a\-b-c", r"a-b\-c", r"a\\-b\-c", r"a\\\-b-c",
    ]  # fmt: skip
    assert spelled(AS_JSON, [("a-b", "c"), ('a"', "\x00é")]) == ['["a-b","c"]', '["a\\"","\\u0000é"]']


def test_java_reads_the_same_keys_back(tmp_path):
    """By the method in docs/consuming.md, and by the two patterns that it gives for SQL."""
    keys = [("ann", "bob"), ("a-b", "c"), ("a", "b-c"), ("a\\", "-b"), ("\\\\-", "😀\n"), ("-" * 20_000, "\\" * 20_000)]
    found, replaced = re.findall(r"REGEXP_EXTRACT_ALL\('([^']*)'.*?'([^']*)', '\$1'\)", CONSUMING)[0]
    texts, java_text = spelled(ESCAPED, keys), json.dumps
    (tmp_path / "Keys.java").write_text(f"""
import java.util.*;
import java.util.regex.*;
public class Keys {{
{recipe("java")}
    public static void main(String[] args) throws Exception {{
        var all = Pattern.compile({java_text(found)}, Pattern.DOTALL);
        for (String line : java.nio.file.Files.readAllLines(java.nio.file.Path.of(args[0]))) {{
            String key = new String(Base64.getDecoder().decode(line), "UTF-8");
            var bySql = new ArrayList<String>();
            for (var each = all.matcher(key); key.length() < 1000 && each.find();)
                bySql.add(Pattern.compile({java_text(replaced)}, Pattern.DOTALL).matcher(each.group()).replaceAll("$1"));
            if (key.length() < 1000 && !bySql.equals(fieldsOf(key))) throw new IllegalStateException(key);
            for (String field : fieldsOf(key)) System.out.print(Base64.getEncoder().encodeToString(field.getBytes("UTF-8")) + " ");
            System.out.println();
        }}
    }}
}}
""")
    from base64 import b64decode, b64encode

    (tmp_path / "keys").write_text("".join(b64encode(text.encode()).decode() + "\n" for text in texts))
    command = [java(), str(tmp_path / "Keys.java"), str(tmp_path / "keys")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [tuple(b64decode(word).decode() for word in line.split()) for line in done.stdout.splitlines()] == keys


def test_a_key_goes_where_java_sends_it():
    for partitions in (1, 7, 12, 2**31 - 1):
        assert [output_partition(key, partitions) for key in JAVA] == [
            (value & 0x7FFFFFFF) % partitions for value in JAVA.values()
        ]


def by_the_book(key):
    """The hash byte by byte, as the Java client has it: of a key as long as any."""
    m, h = 0x5BD1E995, 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for place in range(0, whole, 4):
        k = int.from_bytes(key[place : place + 4], "little") * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ ((k ^ k >> 24) * m & 0xFFFFFFFF)
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & 0xFFFFFFFF
    h = (h ^ h >> 13) * m & 0xFFFFFFFF
    return h ^ h >> 15


def test_a_key_of_any_length():
    keys = [bytes(place * 7 % 251 for place in range(length)) for length in (0, 1, 2, 3, 4, 7, 8, 10_001, 100_002)]
    assert [output_partition(key, 1_000) for key in keys] == [(by_the_book(key) & 0x7FFFFFFF) % 1_000 for key in keys]
    assert [by_the_book(key) for key in JAVA] == [value & 0xFFFFFFFF for value in JAVA.values()]
