"""Broken pipeline files: one line that names file, key and consequence."""

from dataclasses import asdict, replace

import pytest
import yaml

from include.config.pipeline import Maintenance, Pipeline, PipelineError
from include.config.pipeline_file import load_pipeline
from include.config.setting_types import parse_duration
from tests.helpers.timeline import CALLS, ROOT

SHIPPED = yaml.safe_load((ROOT / "include/pipelines/calls.yaml").read_text())
GONE = object()

BROKEN = {
    "unknown key": ({"tolerence": "1m"}, "tolerence: unknown key"),
    "key inside another": ({"output.key": "json"}, "output.key: unknown key"),
    "name": ({"name": "x"}, "name: unknown key"),
    "negative duration": ({"gap": "-1m"}, "gap: '-1m' is not a duration"),
    "no unit": ({"gap": 60}, "gap: 60 is not a duration"),
    "too long": ({"grace": "400d"}, "grace: '400d' is longer than a year"),
    "grace missing": ({"grace": GONE}, "grace: missing; without it nothing says how long to wait for late events"),
    "tolerance missing": ({"tolerance": GONE}, "tolerance: missing"),
    "gap missing": ({"gap": GONE}, "gap: missing"),
    "gap zero": ({"gap": "0s"}, "gap: must be at least 1 ms"),
    "same topic twice": (
        {"right": {"topic": "analyticsTopic", "payload": "metrics"}},
        "right.topic: analyticsTopic is already the left topic",
    ),
    "output is an input": ({"output": {"topic": "metricsTopic"}}, "output.topic: metricsTopic is already the right topic"),
    "same payload twice": ({"right": {"topic": "x", "payload": "analytics"}}, "analytics: used twice"),
    "payload is a key": ({"right": {"topic": "x", "payload": "user1"}}, "user1: used twice"),
    "timestamp is a key": ({"timestamp": "user1"}, "left.timestamp: user1 is a key"),
    **{
        f"left {key} {value!r}": (
            {"left": {"topic": "analyticsTopic", "payload": "analytics", key: value}},
            f"left.{key}: {problem}",
        )
        for key, value, problem in (
            ("payload_from", "a..b", "'a..b' is no path"),
            ("payload_from", 'a.b"c', """'a.b"c' has a " or a \\ in a name; landing cannot look for such a field"""),
            ("key", {"user1": r"a\\b"}, r"""'a\\\\b' has a " or a \ in a name; landing cannot look for such a field"""),
            ("timestamp", '$key.a"b', """'$key.a"b' has a " or a \\ in a name"""),
            ("payload_from", "$values", "'$values' is none of $value, $key"),
            ("payload_from", "$timestamp", "'$timestamp' is a time"),
            ("payload_from", 5, "5 names no field"),
            ("key", ["a"], "['a'] names no key fields"),
            ("key", {"user1": "$value"}, "$value is a whole message"),
            ("key", {"user3": "a"}, "user3 is no field of the pipeline's key"),
            ("key", {"user1": "user2"}, "user1 and user2 come from"),
            ("timestamp", "$value", "$value is no time"),
            ("timestamp", "user1", "user1 is a key or payload field already"),
            ("timestamp", "analytics", "analytics is a key or payload field already"),
            ("timestamp_format", "millis", "'millis' is none of epoch_s"),
            ("timestamp_format", "%Q", "'%Q' is no pattern"),
            ("timestamp_format", 5, "5 is none of epoch_s"),
            ("timestamp_zone", "Mars/Base", "'Mars/Base' is no time zone"),
            ("timestamp_zone", "UTC", "is for texts"),
            ("only", {"$value": "x"}, "$value is a whole message"),
            ("timestamp_zone", "localtime", "'localtime' is another zone on each"),
            ("only", "end", "'end' selects nothing"),
            ("only", {"type": [1.5]}, "type: [1.5] is no text"),
            ("only", {"type": []}, "type: [] is no text"),
            ("format", "xml", "'xml' is none of json, json_schema, avro, protobuf"),
            ("schema", "../x.avsc", "'../x.avsc' is no name of a file"),
            ("schema", "none.avsc", "schemas/none.avsc cannot be read"),
            ("message", "a b", "'a b' is no full name"),
            ("message", "calls.Call", "goes with format: protobuf and a schema file"),
            ("key_format", "avro", "nothing reads it"),
        )
    },
    "a time without a zone": ({"timestamp_format": "%Y-%m-%d"}, "left.timestamp_zone: the pattern '%Y-%m-%d' names no zone"),
    "a time without a date": ({"timestamp_format": "%H:%M"}, "timestamp_format: the pattern '%H:%M' names no whole date"),
    "a zone that nothing reads": ({"timestamp_zone": "UTC"}, "timestamp_zone: nothing reads it"),
    "key_text": ({"key_text": ["strip"]}, "key_text: ['strip'] is no list of integers, trim, lower, upper"),
    "key_text twice": ({"key_text": ["trim", "trim"]}, "key_text: ['trim', 'trim'] is no list"),
    "key_text both ways": ({"key_text": ["lower", "upper"]}, "key_text: lower and upper contradict"),
    "key_order": ({"key_order": "sorted"}, "key_order: 'sorted' is none of as_is, any"),
    "any order of one field": (
        {"key_order": "any", "key": ["user1"]},
        "key_order: any needs exactly two key fields, and key has 1",
    ),
    "any order of three fields": (
        {"key_order": "any", "key": ["a", "b", "c"]},
        "key_order: any needs exactly two key fields",
    ),
    **{
        f"the name of a direction, {name}": (
            {"key_order": "any", "key": ["user1", name]},
            f"{name}: with key_order: any a column",
        )
        for name in ("reversed", "Left_reversed", "right_reversed", "analytics_reversed", "METRICS_reversed")
    },
    "a payload with the name of the other's direction": (
        {"key_order": "any", "right": {"topic": "x", "payload": "analytics_reversed"}},
        "analytics_reversed: with key_order: any",
    ),
    "compounds": (
        {"left": {"topic": "x", "payload": "y", "compounds": "yes"}},
        "left.compounds: 'yes' is neither true nor false",
    ),
    "compounds of several topics": (
        {"left": {"topic": ["x", "z"], "payload": "y", "compounds": True}},
        "left.compounds: true needs a side of one topic; each output topic is corrected on its own",
    ),
    "compounds by the time of their records": (
        {"left": {"topic": "x", "payload": "y", "compounds": True, "timestamp": "$timestamp"}},
        "left.timestamp: the record of a compound has the time at which it was published",
    ),
    **{
        f"the name of a column of compounds, {name}": (
            {"key": ["user1", name], "right": {"topic": "x", "payload": "y", "compounds": True}},
            f"{name}: with compounds: true a column of the tables has this name",
        )
        for name in ("source_pair_id", "Left_source_revision")
    },
    "reserved column": ({"key": ["offset"]}, "key: 'offset' is a column the tables need"),
    "no key": ({"key": []}, "key: missing"),
    "key of a number": ({"key": [5]}, "key: 5 cannot name a column"),
    "quote in a name": ({"key": ["a`b"]}, "key: 'a`b' cannot name a column"),
    "topic with a slash": ({"output": {"topic": "../x"}}, "output.topic: '../x' is no Kafka topic name"),
    "topic of Kafka's own": (
        {"output": {"topic": "__consumer_offsets"}},
        "output.topic: '__consumer_offsets' is a topic that Kafka",
    ),
    **{
        f"topics {side!r}": ({"left": side | {"payload": "analytics"}}, f"left.{problem}")
        for side, problem in (
            ({"topic": []}, "topic: [] is no list of topics, each once"),
            ({"topic": ["a", "a"]}, "topic: ['a', 'a'] is no list of topics, each once"),
            ({"topic": ["a", "__b"]}, "topic: '__b' is a topic that Kafka keeps for itself"),
            ({"topic": ["a", ["b"]]}, "topic: ['b'] is no Kafka topic name"),
            ({}, "topic: write a topic, a list of topics, or topic_pattern"),
            ({"topic": "a", "topic_pattern": "a.*"}, "topic: write a topic, a list of topics, or topic_pattern"),
            ({"topic_pattern": "a("}, "topic_pattern: 'a(' is no regular expression of RE2"),
            ({"topic_pattern": "a)|(b"}, "topic_pattern: 'a)|(b' is no regular expression of RE2"),
            ({"topic_pattern": "(?=a)"}, "topic_pattern: '(?=a)' is no regular expression of RE2"),
            ({"topic_pattern": ""}, "topic_pattern: '' is no regular expression for the whole name"),
            ({"topic_pattern": ["a"]}, "topic_pattern: ['a'] is no regular expression for the whole name"),
            ({"topic_pattern": "metrics.*"}, "topic_pattern: 'metrics.*' matches right.topic, metricsTopic"),
            ({"topic_pattern": ".*"}, "topic_pattern: '.*' matches right.topic, metricsTopic"),
            ({"topic_pattern": "output.*"}, "topic_pattern: 'output.*' matches output.topic, outputTopic"),
        )
    },
    "one of several topics is on the other side": (
        {"left": {"topic": ["a", "metricsTopic"], "payload": "analytics"}},
        "right.topic: metricsTopic is already the left topic; their events could not be told apart",
    ),
    "a pattern has the rejected topic": (
        {"left": {"topic_pattern": "r.*", "payload": "analytics"}, "output": {"topic": "o", "rejected_topic": "r"}},
        "left.topic_pattern: 'r.*' matches output.rejected_topic, r; it would be read as left events",
    ),
    "one of several topics is the rejected topic": (
        {"left": {"topic": ["a", "r"], "payload": "analytics"}, "output": {"topic": "o", "rejected_topic": "r"}},
        "output.rejected_topic: r is already the left topic; rejected records would be read again",
    ),
    "several topics without a type": (
        {
            "left": {"topic": ["a", "b"], "payload": "analytics", "format": "avro"},
            "output": {"topic": "o", "format": "avro"},
        },
        "left.schema: missing; with output.format: avro the payload's type comes from the subject of one topic",
    ),
    "group of the publisher": (
        {"consumer_group": "p.publisher"},
        "consumer_group: 'p.publisher' cannot show what was landed",
    ),
    "group of another publisher": (
        {"consumer_group": "calls.publisher"},
        "consumer_group: 'calls.publisher' cannot show what was landed",
    ),
    "an ambiguous key": (
        {"output": {"topic": "o", "key": "joined"}},
        "output.key: 'joined' is none of escaped, json, avro, protobuf",
    ),
    **{
        f"output {key} {value!r}": ({"output": {"topic": "o", key: value}}, f"output.{key}: {problem}")
        for key, value, problem in (
            ("fields", {}, "{} names no field, so messages would be empty"),
            ("fields", ["user1"], "['user1'] names no field"),
            (
                "fields",
                {"caller": "user3"},
                "'user3' is in no compound; write one of user1, user2, kind, pair_id, revision, ts, left.ts",
            ),
            ("fields", {"at": "metrics"}, "'metrics' is in no compound"),
            ("fields", {"a b": "ts"}, "'a b' cannot name a column"),
            ("fields", {True: "ts"}, "True cannot name a column"),
            ("orphans_topic", "a/b", "'a/b' is no Kafka topic name"),
            ("orphans_topic", "o", "o is already the output topic; leave it out, for that is the default"),
            (
                "orphans_topic",
                "metricsTopic",
                "metricsTopic is already the right topic; their events could not be told apart",
            ),
            ("rejected_topic", "a/b", "'a/b' is no Kafka topic name"),
            ("rejected_topic", "o", "o is already the output topic; they would stand among compounds"),
            (
                "rejected_topic",
                "metricsTopic",
                "metricsTopic is already the right topic; rejected records would be read again",
            ),
        )
    },
    "unknown in the output": ({"output": {"topic": "o", "keys": "json"}}, "output.keys: unknown key"),
    "no format of the output": (
        {"output": {"topic": "o", "format": "json_schema"}},
        "output.format: 'json_schema' is none of json, avro, protobuf",
    ),
    "fields of one name in protobuf": (
        {"output": {"topic": "o", "format": "protobuf"}, "key": ["user_1", "user1"]},
        "output.format: user_1 and user1 would be fields of one name in protobuf; rename one, or set json",
    ),
    "key fields of one name in protobuf": (
        {"output": {"topic": "o", "key": "protobuf"}, "key": ["user_1", "user1"]},
        "output.key: user_1 and user1 would be fields of one name in protobuf; rename one, or set escaped",
    ),
    "a field with the name of a text": (
        {
            "output": {"topic": "o", "format": "avro"},
            "key": ["y_json"],
            "left": {"topic": "x", "payload": "y", "format": "avro"},
        },
        "output.format: y_json and y_json would be fields of one name in avro",
    ),
    "group with a space": ({"consumer_group": "a b"}, "consumer_group: 'a b' cannot show what was landed"),
    "left missing": ({"left": GONE}, "left: missing"),
    "unknown in a side": ({"left": {"topic": "x", "payload": "y", "offset": 1}}, "left.offset: unknown key"),
    "matching": ({"matching": "best"}, "matching: 'best' is none of one_to_one, collapse"),
    "flag": ({"drop_duplicates": "yes"}, "drop_duplicates: 'yes' is neither true nor false"),
    "records": ({"max_records_per_batch": 0}, "max_records_per_batch: 0 is not a whole number"),
    "schedule": ({"schedule": "often"}, "schedule: 'often' is no cron expression"),
    "data nobody sees": ({"schedule": "on_data"}, "schedule: on_data needs consumer_group"),
    "minute 99": ({"schedule": "99 * * * *"}, "schedule: '99 * * * *' is no cron expression"),
    "a day that never comes": ({"schedule": "0 0 31 2 *"}, "schedule: '0 0 31 2 *' is no cron expression"),
    "seconds": ({"schedule": "* * * * * 30"}, "schedule: '* * * * * 30' is no cron expression"),
    "schedule by name": ({"schedule": "@daily"}, "schedule: '@daily' is no cron expression"),
    "session shorter than gap": ({"max_session": "1s"}, "max_session: must not be shorter than gap"),
    "ratio": ({"quality": {"max_orphan_ratio": 2}}, "quality.max_orphan_ratio: 2 is not a number from 0 to 1"),
    "raw rows younger than what can be gone back to": (
        {"maintenance": {"raw_retention": "2d", "time_travel": "3d"}},
        "maintenance.raw_retention: must not be shorter than time_travel",
    ),
    "rejected events before their records": (
        {"maintenance": {"raw_retention": "9d", "rejected_retention": "8d"}},
        "maintenance.rejected_retention: must not be shorter than raw_retention; records that were rejected would look lost",
    ),
    "compounds before their records": (
        {"maintenance": {"raw_retention": "9d", "compound_retention": "8d"}},
        "maintenance.compound_retention: must not be shorter than raw_retention; a replay would publish again",
    ),
    "compounds, and records never": (
        {"maintenance": {"compound_retention": "8d"}},
        "maintenance.compound_retention: must not be shorter than raw_retention (null: for ever; set raw_retention, too)",
    ),
    "the ledger before rejected events": (
        {"maintenance": dict.fromkeys(("raw_retention", "compound_retention", "ledger_retention"), "9d")},
        "maintenance.ledger_retention: must not be shorter than rejected_retention (null: for ever",
    ),
    "the ledger before compounds": (
        {
            "maintenance": dict.fromkeys(("raw_retention", "rejected_retention", "ledger_retention"), "9d")
            | {"compound_retention": "10d"}
        },
        "maintenance.ledger_retention: must not be shorter than compound_retention; compounds would be left",
    ),
    "an archive somewhere": (
        {"maintenance": {"raw_retention": "9d", "archive": "old/rows"}},
        "maintenance.archive: 'old/rows' is no absolute path of a folder",
    ),
    "an archive on a store": (
        {"maintenance": {"raw_retention": "9d", "archive": "s3://old/rows"}},
        "maintenance.archive: 's3://old/rows' is no absolute path",
    ),
    "an archive of nothing": ({"maintenance": {"archive": "/old"}}, "maintenance.archive: nothing would come into it"),
    "time travel": ({"maintenance": {"time_travel": "23h"}}, "maintenance.time_travel: must be at least 1d"),
    "no age": ({"maintenance": {"raw_retention": "a month"}}, "maintenance.raw_retention: 'a month' is not a duration"),
    "maintenance often": ({"maintenance": {"schedule": "often"}}, "maintenance.schedule: 'often' is no cron expression"),
    "alerts to nobody": ({"alerts": "slack"}, "alerts: must be a mapping of slack, pagerduty and email"),
    "alerts elsewhere": ({"alerts": {"teams": "x"}}, "alerts.teams: unknown key"),
    "alerts to an address of Slack": (
        {"alerts": {"slack": "https://hooks"}},
        "alerts.slack: 'https://hooks' cannot be the id",
    ),
    "alerts to no key": ({"alerts": {"pagerduty": 7}}, "alerts.pagerduty: 7 cannot be the id of an Airflow connection"),
    "alerts by mail to a name": ({"alerts": {"email": "Ann <a@b.c>"}}, "alerts.email: 'Ann <a@b.c>' is no e-mail address"),
    "alerts by mail to a list": (
        {"alerts": {"email": ["a@b.c", "a@b.c, d@e.f"]}},
        "alerts.email: 'a@b.c, d@e.f' is no e-mail",
    ),
    "alerts by mail with a header": ({"alerts": {"email": "a@b.c\nBcc:d"}}, "alerts.email: 'a@b.c\\nBcc:d' is no e-mail"),
    "maintenance of nothing": ({"maintenance": None}, "maintenance: must be a mapping"),
    "unknown in maintenance": ({"maintenance": {"vacuum": "1d"}}, "maintenance.vacuum: unknown key"),
    "ratio of a flag": (
        {"quality": {"max_orphan_ratio": True}},
        "quality.max_orphan_ratio: True is not a number from 0 to 1",
    ),
    "mads": ({"quality": {"orphan_ratio_mads": 0.5}}, "quality.orphan_ratio_mads: 0.5 is not a number from 1 to 1000"),
    "not a number of mads": ({"quality": {"orphan_ratio_mads": float("nan")}}, "quality.orphan_ratio_mads: nan is not"),
    "short history": (
        {"quality": {"history_batches": 7}},
        "quality.history_batches: 7 is not a whole number from 8 to 5000",
    ),
    "history of a flag": ({"quality": {"history_batches": True}}, "quality.history_batches: True is not a whole number"),
    "drift": ({"quality": {"max_skew_drift": 30}}, "quality.max_skew_drift: 30 is not a duration"),
    "few pages": ({"quality": {"keep_pages": 99}}, "quality.keep_pages: 99 is not a whole number from 100"),
    "gate": ({"quality": {"gate": "never"}}, "quality.gate: 'never' is none of after_publish, before_publish"),
    "no silence": ({"quality": {"silence": "59s"}}, "quality.silence: must be at least 1m (null: never warn)"),
    "silence of a number": ({"quality": {"silence": 30}}, "quality.silence: 30 is not a duration"),
    "small share": ({"quality": {"silent_share": 0.49}}, "quality.silent_share: 0.49 is not a number from 0.5 to 1"),
    "large share": ({"quality": {"silent_share": 1.01}}, "quality.silent_share: 1.01 is not a number from 0.5 to 1"),
    "share of a flag": ({"quality": {"silent_share": True}}, "quality.silent_share: True is not a number"),
    "unknown threshold": ({"quality": {"orphans": 2}}, "quality.orphans: unknown key"),
}


def load(tmp_path, changes, name="p.yaml"):
    settings = {key: value for key, value in (SHIPPED | changes).items() if value is not GONE}
    path = tmp_path / name
    path.write_text(yaml.safe_dump(settings))
    return load_pipeline(path)


@pytest.mark.parametrize(("changes", "says"), BROKEN.values(), ids=BROKEN)
def test_broken(changes, says, tmp_path):
    with pytest.raises(PipelineError) as refused:
        load(tmp_path, changes)
    assert str(refused.value).startswith(f"{tmp_path / 'p.yaml'}: {says}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "- a", "a: [", "5", "\tx: 1"])
def test_no_settings(text, tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=r"p\.yaml: (holds no settings|cannot be read as YAML)"):
        load_pipeline(path)


@pytest.mark.parametrize("schedule", ["*/5 * * * *", "0 6-20/2 * * MON-FRI", "0 0 1,15 * *", None])
def test_schedules(schedule, tmp_path):
    assert load(tmp_path, {"schedule": schedule}).schedule == schedule


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("grace: 1h\ngrace: 2h\n", "grace"),
        ("left: {topic: x, payload: y, topic: z}\n", "topic"),
        ("output: {topic: o, fields: {at: ts, at: left.ts}}\n", "at"),
    ],
)
def test_a_key_that_is_there_twice(text, key, tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=rf"p\.yaml: cannot be read as YAML: {key} is there twice .*line \d+"):
        load_pipeline(path)


def test_no_file(tmp_path):
    with pytest.raises(PipelineError, match="no such file"):
        load_pipeline(tmp_path / "p.yaml")


def test_name_of_the_file_is_the_pipeline(tmp_path):
    assert load(tmp_path, {}, "orders_eu.yaml").name == "orders_eu"
    with pytest.raises(PipelineError, match="file name"):
        load(tmp_path, {}, "Orders EU.yaml")
    with pytest.raises(PipelineError, match="file name: orders_replay would be the name of another pipeline's replay DAG"):
        load(tmp_path, {}, "orders_replay.yaml")


def side_of(tmp_path, **side):
    return load(tmp_path, {"left": side | {"payload": "analytics"}}).left


def test_a_side_of_several_topics(tmp_path):
    listed, matched = side_of(tmp_path, topic=["calls-us", "calls-eu"]), side_of(tmp_path, topic_pattern="calls-(eu|us)")
    assert listed.topic == ("calls-eu", "calls-us") and side_of(tmp_path, topic=["a"]).topic == "a"
    assert (listed.input, matched.input, side_of(tmp_path, topic="a").input) == (
        "calls-eu and calls-us",
        "topics like calls-(eu|us)",
        "a",
    )
    for side in (listed, matched):
        assert side.has("calls-eu") and not side.has("calls-eu-old") and not side.has("my-calls-us")
    assert not side_of(tmp_path, topic_pattern="(__)?secret.*").has("__secret")
    made = load(tmp_path, {"left": {"topic": ["b", "a"], "payload": "analytics"}})
    assert Pipeline.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("before", "after", "goes_on"),
    [
        ({"topic": "a"}, {"topic": ["a", "b"]}, True),
        ({"topic": ["a", "b"]}, {"topic": ["a", "b", "c"]}, True),
        ({"topic": ["a", "b"]}, {"topic": "a"}, False),
        ({"topic": "a"}, {"topic": "b"}, False),
        ({"topic": ["a", "b"]}, {"topic_pattern": "[ab]"}, True),
        ({"topic": ["a", "b"]}, {"topic_pattern": "a|c"}, False),
        ({"topic_pattern": "[ab]"}, {"topic_pattern": "[abc]"}, False),
        ({"topic_pattern": "[ab]"}, {"topic": ["a", "b"]}, False),
        ({"topic_pattern": "[ab]"}, {"topic_pattern": "[ab]"}, True),
        ({"topic": "a"}, {"topic": "a", "payload": "other"}, False),
    ],
)
def test_topics_may_be_added_and_nothing_taken_away(before, after, goes_on, tmp_path):
    earlier, now = (load(tmp_path, {"left": {"payload": "analytics"} | side}) for side in (before, after))
    assert now.goes_on_from(earlier) is goes_on


HOSTILE = [
    "", ".", "..", "../x", "/x", "a/b", "a b", " a", "a\n", "a\0", "'a'", '"a"', "`a`", "a;b", "$(touch x)", "${x}", "%2e", "a%b", "ä", "😀", "a#2", "a,b",
    "*", "{{ x }}", "a" * 250, 5, None, True, ["a b"], {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
@pytest.mark.parametrize("where", ["left.topic", "right.topic", "output.topic", "left.payload", "right.payload", "key"])
def test_names_with_anything_but_letters_are_refused(where, name, tmp_path):
    outer, _, inner = where.partition(".")
    changes = {inner: name} if inner else name
    with pytest.raises(PipelineError) as refused:
        load(tmp_path, {outer: SHIPPED[outer] | changes if inner else [name] if where == "key" else name})
    line = str(refused.value)
    assert line.startswith(f"{tmp_path / 'p.yaml'}: {where}: ") and line.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "..yaml",
        " .yaml",
        "a b.yaml",
        "a'.yaml",
        "$(touch x).yaml",
        "A.yaml",
        "é.yaml",
        "a.b.yaml",
        "1.yaml",
        "a" * 65 + ".yaml",
    ],
)
def test_a_file_whose_name_is_none_for_a_pipeline_is_refused(name, tmp_path):
    with pytest.raises(PipelineError, match="file name: a pipeline is named after its file"):
        load(tmp_path, {}, name)


def test_the_settings_of_maintenance(tmp_path):
    assert load(tmp_path, {}).maintenance == Maintenance("30 3 * * *", None, 259_200_000)
    given = {"schedule": None, "raw_retention": "30d", "time_travel": "2d"}
    assert load(tmp_path, {"maintenance": given}).maintenance == Maintenance(None, 2_592_000_000, 172_800_000)
    given |= {"rejected_retention": "30d", "compound_retention": "31d", "ledger_retention": "31d", "archive": "/old rows"}
    days = 86_400_000
    assert load(tmp_path, {"maintenance": given}).maintenance == Maintenance(
        None, 30 * days, 2 * days, 30 * days, 31 * days, 31 * days, "/old rows"
    )


@pytest.mark.parametrize("suffix", ["replay", "maintenance"])
def test_a_file_named_like_another_dag_of_a_pipeline_is_refused(suffix, tmp_path):
    with pytest.raises(PipelineError, match=f"calls_{suffix} would be the name of another pipeline's {suffix} DAG"):
        load(tmp_path, {}, f"calls_{suffix}.yaml")


def test_yaml_is_read_and_never_executed(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(f"left: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    with pytest.raises(PipelineError, match="cannot be read as YAML"):
        load_pipeline(path)
    assert not (tmp_path / "made").exists()


def test_the_plan_keeps_all_settings():
    assert Pipeline.from_json(CALLS.to_json()) == CALLS
    assert Pipeline.from_json(CALLS.to_json()).config_hash == CALLS.config_hash


def test_a_key_spelled_otherwise_is_another_identity(tmp_path):
    shipped, topic = load(tmp_path, {}), SHIPPED["output"]["topic"]
    assert load(tmp_path, {"output": {"topic": topic, "key": "escaped"}}).identity == shipped.identity
    assert load(tmp_path, {"output": {"topic": topic, "key": "json"}}).identity != shipped.identity


def test_every_setting_changes_the_hash(tmp_path):
    other = load(tmp_path, {"tolerance": "61s"}, "calls.yaml")
    assert {name for name, value in asdict(other).items() if value != asdict(CALLS)[name]} == {"tolerance_ms"}
    assert other.config_hash != CALLS.config_hash


@pytest.mark.parametrize(
    ("text", "ms"), [("0s", 0), ("250ms", 250), ("90s", 90_000), ("2h", 7_200_000), ("365d", 31_536_000_000)]
)
def test_duration(text, ms):
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "1", "m", "1.5m", "1m ", "1 m", "1min", "٣m", None, 5, "+1m", "1e3s"])
def test_no_duration(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def with_schema(tmp_path, content, **settings):
    (tmp_path / "schemas").mkdir(parents=True)
    (tmp_path / "schemas" / "call.x").write_text(content)
    left = {"topic": "analyticsTopic", "payload": "analytics", "schema": "call.x", **settings}
    file = tmp_path / "calls.yaml"
    file.write_text(yaml.safe_dump(SHIPPED | {"left": left}))
    return load_pipeline(file)


def test_a_schema_file_is_part_of_the_settings(tmp_path):
    """The plan of a batch has to carry it, and so does its hash."""
    one, other = (with_schema(tmp_path / content, content, format="avro") for content in ("{}", "[]"))
    assert (one.left.schema, other.left.schema) == ("{}", "[]")
    assert one.config_hash != other.config_hash and one.identity == other.identity
    assert Pipeline.from_json(one.to_json()) == one
    assert not one.left.needs_registry and not one.right.needs_registry


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({}, "left.schema: nothing reads it: format is json"), ({"format": "protobuf"}, "left.message: goes with"),
     ({"format": "avro", "message": "A"}, "left.message: goes with")],
)  # fmt: skip
def test_a_schema_file_that_nothing_reads(tmp_path, settings, problem):
    with pytest.raises(PipelineError, match=problem):
        with_schema(tmp_path, "{}", **settings)


def test_a_key_in_avro_is_no_text(tmp_path):
    with pytest.raises(PipelineError, match=r"left.key_format: a key in avro is no text"):
        load(tmp_path, {"left": SHIPPED["left"] | {"key_format": "avro", "key": {"user1": "$key.a", "user2": "$key"}}})


def test_only_a_side_with_texts_has_the_pipelines_zone(tmp_path):
    pipeline = load(tmp_path, {"left": SHIPPED["left"] | {"timestamp_format": "iso8601"}, "timestamp_zone": "Europe/Berlin"})
    assert [pipeline.times(side).zone for side in pipeline.sides] == ["Europe/Berlin", None]


def test_what_needs_a_registry():
    sides = [
        replace(CALLS.left, **each)
        for each in ({}, {"format": "avro"}, {"format": "avro", "schema": "{}"}, {"key_format": "avro"})
    ]
    assert [side.needs_registry for side in sides] == [False, True, False, True]
