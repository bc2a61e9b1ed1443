"""Columns for key fields, and what the payload of a message is."""

from __future__ import annotations

import pytest

from spark_jobs.joining.fields import Field
from spark_jobs.joining.keys import Column, Key, KeyField
from spark_jobs.joining.lags import Peak
from spark_jobs.joining.names import choose_payload, key_names, pipeline_name


def key(*sources: tuple[str, str]) -> Key:
    columns = [tuple(Column(Field(source, [], 1.0), None) for source in both) for both in sources]  # type: ignore[arg-type]
    return Key(tuple(KeyField(*both, 1.0, 1.0) for both in columns), Peak(0, 0, 0, 0), 1.0, 1.0)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ([("user1", "from"), ("user2", "to")], ["user1", "user2"]),
        ([("call.caller.id", "from"), ("$key", "to")], ["from", "to"]),
        ([("a.id", "$header.caller-id"), ("b.id", "$key.b")], ["a_id", "b_id"]),
        ([("$key", "$key"), ("ts", "kind")], ["record_key", "event_ts"]),
        ([("id", "x"), ("ID", "y"), ("1st", "z")], ["id", "event_ID", "_1st"]),
    ],
)
def test_names_of_key_fields(sources, names):
    assert key_names(key(*sources)) == names


def payload(body, used=(), taken=(), topic="calls.ended"):
    found = choose_payload(topic, [body], used, taken, "left")
    return found.source, found.name


def test_the_payload_is_the_heaviest_part_beside_key_and_time_or_the_whole_message():
    assert payload({"u": "x" * 90, "stats": {"a": [1] * 20}, "v": 1}, ["u"]) == ("stats", "stats")
    assert payload({"call": {"u": "ann", "quality": "x" * 20}, "v": 1}, ["call.u"]) == ("call.quality", "quality")
    assert payload({"u": "ann", "a": 1, "b": 2, "c": 3}, ["u"]) == ("$value", "calls_ended")
    assert payload({"u": "ann"}, ["u"]) == ("$value", "calls_ended")
    assert payload({"u": "ann", "value": "x" * 9}, ["u"]) == ("value", "left_value")
    assert payload({"u": "ann", "stats": "x" * 9}, ["u"], ["Stats"]) == ("stats", "left_stats")


def test_a_heavy_message_or_a_rare_part_is_not_the_payload_and_rare_names_are_counted():
    usual = [{"u": "ann", "v": 1, "stats": "x" * 30} for _ in range(90)]
    few = [{"u": "ann", "v": 1, f"user{number}@x.org": "x" * 900} for number in range(10)]
    chosen = choose_payload("t", [usual[0] | {"trace": "x" * 200_000}, *usual[1:], *few], ["u"], [], "left")
    assert (chosen.source, chosen.missing, chosen.others, chosen.rare) == ("stats", 0.1, ["v"], 11)
    chosen = choose_payload("t", [*few, {"u": "bob", 'a"b': "x" * 900}], ["u"], [], "left")
    assert (chosen.source, chosen.others, chosen.rare) == ("$value", ["v"], 11)


def test_a_pipeline_is_named_after_its_topics():
    assert pipeline_name("1st.Topic", "x") == "p_1st_topic_x" and pipeline_name("___", "é") == "p_"
