"""Payloads of any JSON reach the output topic as they came: every digit, escape, space and repeated name."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs import land_events, pair_events, publish_compounds
from spark_jobs.rules.nesting import DEEPEST
from tests.helpers.reading import table_rows

pytestmark = pytest.mark.integration

GENERATED = 300
NAMED = {
    "null": "null",
    "true": "true",
    "false": "false",
    "zero": "0",
    "minus zero": "-0",
    "minus zero, as a decimal": "-0.0",
    "one": "1",
    "one, as a decimal": "1.0",
    "one, with an exponent": "1E+0",
    "largest 64-bit": "9223372036854775807",
    "smallest 64-bit": "-9223372036854775808",
    "beyond 64 bits": "18446744073709551616",
    "just beyond a double's integers": "9007199254740993",
    "30 digits": "0.100000000000000000000000000001",
    "30 digits before the point": "123456789012345678901234567890.5",
    "5,000 digits": "7" * 5_000,
    "beyond every double": "1e400",
    "below every double": "1e-400",
    "empty string": '""',
    "a space": '" "',
    "string like a number": '"1"',
    "string like null": '"null"',
    "string like JSON": '"{\\"user1\\":\\"x\\",\\"ts\\":1}"',
    "every short escape": r'"\" \\ \/ \b \f \n \r \t"',
    "escaped slash or not": r'["/","\/"]',
    "NUL": r'"a\u0000b"',
    "control characters": r'"\u0001\u001f\u007f"',
    "escape of a letter, in both cases": r'["\u00e9","\u00E9","é"]',
    "escape of a surrogate pair, and what it stands for": r'["\ud83d\ude00","😀"]',
    "a letter in two normal forms": '["é","e\u0301"]',
    "line separators": '"\u2028\u2029\u0085"',
    "last of all characters": '"\U0010ffff\uffff\ufffe"',
    "right to left": '"نور\u202eab"',
    "empty array": "[]",
    "empty object": "{}",
    "nested nulls": '{"a":null,"b":[null,{"c":null}]}',
    "empty name": '{"":1}',
    "duplicate names": '{"a":1,"a":2,"a":{"b":3,"b":4}}',
    "names in their order": '{"z":1,"a":2,"m":3}',
    "names like the body's": '{"user1":"x","user2":"y","timestamp":1,"analytics":2,"metrics":3,"ts":4}',
    "spaces": ' { "a" :\t[ 1 ,\r\n 2 ] ,\n"b" : { } } ',
    "deepest nesting": "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1),
    "deepest nesting of objects": '{"a":' * (DEEPEST - 1) + "0" + "}" * (DEEPEST - 1),
    "long": '"' + "äß🎧 " * 20_000 + '"',
    "markup and quotes": "\"<a href='x'>&amp;</a> $1 %s {0} `\"",
}
space = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n"])
numbers = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True, alphabet=st.characters(codec="ascii")
)
escapes = st.sampled_from(
    [r"\"", r"\\", r"\/", r"\b", r"\f", r"\n", r"\r", r"\t", r"\u0000", r"\u00e9", r"\u00E9", r"\uD83D\uDE00", r"\uffff"]
)
letters = st.characters(exclude_categories=["Cs"], exclude_characters='"\\' + "".join(map(chr, range(32))))
strings = st.lists(letters | escapes, max_size=12).map(lambda parts: f'"{"".join(parts)}"')


def arrays(inner):
    return st.lists(st.tuples(space, inner, space).map("".join), max_size=4).map(lambda parts: f"[{','.join(parts)}]")


def objects(inner):
    members = st.tuples(space, strings, space, st.just(":"), space, inner, space).map("".join)
    return st.lists(members, max_size=4).map(lambda parts: f"{{{','.join(parts)}}}")


texts = st.recursive(
    st.sampled_from(["null", "true", "false"]) | numbers | strings,
    lambda inner: arrays(inner) | objects(inner),
    max_leaves=12,
)


def generated() -> list[str]:
    """JSON texts of all kinds, other ones each time."""
    found: list[str] = []

    @settings(max_examples=GENERATED, deadline=None, database=None)
    @given(texts)
    def collect(text):
        found.append(text)

    collect()
    return found


# Numbers stay texts, objects lists of their members: nothing is lost by reading.
EXACT = json.JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=list)


def consume_texts(bootstrap: str, topic: str) -> dict[str, str]:
    """Key -> value of every committed record, as text."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "payloads",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings | {"enable.partition.eof": True})
    partitions = list(consumer.list_topics(topic, timeout=20).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: dict[str, str] = {}
    at_end: set[int] = set()
    while len(at_end) < len(partitions):
        message = consumer.poll(20)
        assert message is not None, f"{topic}: no answer"
        if message.error():
            at_end.add(message.partition())
        else:
            found[message.key().decode()] = message.value().decode()
    consumer.close()
    return found


def test_payloads_come_out_as_they_went_in(warehouse, pipeline, broker):
    payloads = [*NAMED.values(), *generated()]
    # Each goes once through the left side and once, with another partner, through the right one. None: no such field.
    lefts, rights = [*payloads, None, "1", None], [*reversed(payloads), "1", None, None]
    ago = time.time_ns() // 1_000_000 - 3_600_000
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for side, column in zip(pipeline.sides, (lefts, rights), strict=True):
        for number, text in enumerate(column):
            member = "" if text is None else f',"{side.payload}":{text}'
            producer.produce(side.topic, f'{{"user1":"p{number}","user2":"v","timestamp":{ago}{member}}}'.encode())
    assert producer.flush(20) == 0

    counts = land_events.main(warehouse, 1_000_000, ())
    assert counts["accepted"] == 2 * len(lefts)
    assert pair_events.main(warehouse)["pair"] == len(lefts)
    assert publish_compounds.main(warehouse)["sent"] == len(lefts)

    published = consume_texts(broker.bootstrap, pipeline.output_topic)
    assert len(published) == len(lefts)
    for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
        text = published[f"p{number}-v"]
        assert [name for name, _ in EXACT.decode(text)] == ["user1", "user2", "ts", "analytics", "metrics"]
        # The same text is the same value, and more.
        texts_of = [(payload or "null").strip() for payload in (left, right)]
        assert text == f'{{"user1":"p{number}","user2":"v","ts":{ago},"analytics":{texts_of[0]},"metrics":{texts_of[1]}}}'
    stored = {row["user1"]: (row["analytics"], row["metrics"]) for row in table_rows(warehouse, "compound_events")}
    assert stored == {
        f"p{number}": tuple(map(as_stored, pair)) for number, pair in enumerate(zip(lefts, rights, strict=True))
    }


def as_stored(text: str | None) -> Any:
    """How the tables hold a payload: null and no payload are the same."""
    return None if text is None or text.strip() == "null" else text.strip()
