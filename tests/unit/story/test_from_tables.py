"""One pair's story from tables, word for word. T = 100, G = 200, R = 500 ms; T0 is 1970-01-01T00:16:40.000Z."""

from dataclasses import replace

import pytest

from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.settings import VARIABLE
from spark_jobs.story import output_topic
from spark_jobs.story.from_files import explain as rehearsed
from spark_jobs.story.from_tables import explain
from spark_jobs.story.history import UnknownKey
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED, PUBLISHED
from spark_jobs.tables.records import REPLAY, REWIND, Window
from tests.helpers.story_lines import about
from tests.helpers.story_tables import compound_rows, played, record, row_at, write
from tests.helpers.timeline import SMALL, T0, Batch, play_every, read_batches, records

KEY = ("u", "v")
FAR = 1_000_000
NOT_READ = f"outputTopic was not read, so offsets are unknown: {VARIABLE} is not set"


@pytest.fixture(autouse=True)
def no_kafka(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("asked", [("u", "v"), ("v", "u")])
def test_with_any_order_of_the_key_either_order_tells_the_pair(asked, tmp_path):
    pipeline = replace(SMALL, key_order="any")
    batches = [("a0:v-u m50:u-v a9:v-u=x a9:v-u=x a9:u-v=x a20000:v-u", 100), ("a2000:v-u", FAR)]
    warehouse = played(tmp_path, batches, pipeline, paired=1)
    told = list(explain(warehouse, asked))
    assert told[0].startswith("u, v: 7 messages in 2 batches, ")
    left = [about(told, f"analyticsTopic-0-{offset} ")[-1] for offset in (0, 1, 2, 4, 5)]
    assert left == ["its own order is v, u"] * 5
    duplicate = about(told, "analyticsTopic-0-2 ")[0]
    assert duplicate.startswith("rejected in batch 1 as duplicate of analyticsTopic-0-1")
    assert "order" not in " ".join([*about(told, "analyticsTopic-0-3 "), *about(told, "metricsTopic-0-0 ")])
    ordered = [
        line
        for line in rehearsed(pipeline, asked, read_batches(records(map(Batch._make, batches)), pipeline))
        if "own order" in line
    ]
    assert ordered == ["  its own order is v, u"] * 5
    with pytest.raises(UnknownKey, match=r"^error: no message of u, w in 1 batch of pipeline calls$"):
        explain(warehouse, ("w", "u"))
    with pytest.raises(UnknownKey, match=r"no message of u, w in 2 batches of 7 messages$"):
        rehearsed(pipeline, ("w", "u"), read_batches(records(map(Batch._make, batches)), pipeline))


def test_the_whole_story(tmp_path):
    warehouse = played(tmp_path, [("a0 m50 a0:w", 100), ("", 700), ("a9=x a9=x", 751), ("", FAR)])
    *lines, blank, unread = explain(warehouse, KEY)
    assert not blank and unread.startswith(NOT_READ)
    assert (
        lines
        == """\
u, v: 4 messages in 2 batches, pipeline calls (tolerance 100ms, gap 200ms, grace 500ms, max_future 10s, max_session 1s, one_to_one)
batch 1: 2 messages read, clock 1970-01-01T00:16:40.100Z (1000100)
batch 3: 2 messages read, clock 1970-01-01T00:16:40.751Z (1000751)

analyticsTopic-0-0 (analytics), 1970-01-01T00:16:40.000Z (1000000), read in batch 1
  in a session of 3 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z
  closed in batch 3: end + gap + grace = 1970-01-01T00:16:40.750Z (1000750), and the clock is 1ms past that
  alone (left_only): the nearest of the other side is metricsTopic-0-0, 50ms later, in the same session, taken by analyticsTopic-0-2, 41ms earlier
  no setting keeps them apart: an event has one partner at most, and this one was left over

analyticsTopic-0-2 (analytics), 1970-01-01T00:16:40.009Z (1000009), read in batch 3
  in a session of 3 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z
  closed in batch 3: end + gap + grace = 1970-01-01T00:16:40.750Z (1000750), and the clock is 1ms past that
  paired with metricsTopic-0-0, 41ms later

analyticsTopic-0-3 (analytics), 1970-01-01T00:16:40.009Z (1000009), read in batch 3
  rejected in batch 3 as duplicate of analyticsTopic-0-2: same side, key, timestamp and payload

metricsTopic-0-0 (metrics), 1970-01-01T00:16:40.050Z (1000050), read in batch 1
  in a session of 3 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z
  closed in batch 3: end + gap + grace = 1970-01-01T00:16:40.750Z (1000750), and the clock is 1ms past that
  paired with analyticsTopic-0-2, 41ms earlier

compound analyticsTopic-0-0
  revision 0, left_only, by batch 3: not published yet

compound analyticsTopic-0-2
  revision 0, pair, by batch 3: not published yet
""".splitlines()
    )


CUTS = [
    [("a0", 901), ("m50", FAR)],
    [("a0 m201", FAR)],
    [("a0", 10), ("", 500), ("", 701), ("", 800), ("m50", 900), ("a60", 5_000)],
    [("a10001", 0), ("m9950", 10_000)],
    [("a0 m250", 750)],
    [("a0 a200 a400 a600 a800 a1000 m1001", FAR), ("", FAR)],
]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: " / ".join(events for events, _ in cut))
def test_events_are_told_as_the_rehearsal_tells_them(cut, tmp_path):
    lines = list(explain(played(tmp_path, cut), KEY))
    for block in "\n".join(rehearsed(SMALL, KEY, read_batches(records([Batch(*batch) for batch in cut])))).split("\n\n")[1:]:
        headline, *sentences = block.splitlines()
        assert about(lines, headline) == [sentence.strip() for sentence in sentences]


def test_each_batch_has_its_own_settings(tmp_path):
    warehouse = played(tmp_path, [("a0 m150", 900), ("a5000 m5150", FAR)], settings={1: {"tolerance_ms": 150}})
    lines = list(explain(warehouse, KEY))
    assert lines[1].endswith(
        ", with other settings: tolerance 150ms, gap 200ms, grace 500ms, max_future 10s, max_session 1s, one_to_one"
    )
    assert about(lines, "analyticsTopic-0-0 ")[-1] == "paired with metricsTopic-0-0, 150ms later"
    assert about(lines, "analyticsTopic-0-1 ")[-1].startswith("with `tolerance: 150ms` it would be paired")


def test_a_batch_that_is_not_paired_has_decided_nothing(tmp_path):
    lines = list(explain(played(tmp_path, [("a0", 100), ("m50", FAR)], paired=1), KEY))
    assert about(lines, "metricsTopic-0-0 ") == ["the batch is not paired yet"]
    assert about(lines, "analyticsTopic-0-0 ")[1].startswith("open after batch 1: ")


def test_only_what_lies_about_a_time_is_told(tmp_path):
    batches = [("a0 a190 a380 a570 m600 a100000 m100001", 90_000), ("", FAR)]
    warehouse = played(tmp_path, batches, replace(SMALL, max_session_ms=300, max_future_ms=50_000))
    whole, near = list(explain(warehouse, KEY)), list(explain(warehouse, KEY, T0 + 900))
    assert (
        near[1]
        == "only what lies in the interval 1970-01-01T00:16:40.400Z (1000400) to 1970-01-01T00:16:41.401Z (1001401) is shown"
    )
    assert [line.split()[0] for line in near if " (analytics), " in line or " (metrics), " in line] == [
        "analyticsTopic-0-3",
        "metricsTopic-0-0",
    ]
    # Where a session is cut hangs on its begin, far from what is shown.
    for source in ("analyticsTopic-0-3 ", "metricsTopic-0-0 "):
        assert about(near, source) == about(whole, source)
    assert "compound analyticsTopic-0-3" in near and "compound analyticsTopic-0-0" not in near
    assert "compound analyticsTopic-0-4" in whole and "compound analyticsTopic-0-4" not in near


def test_what_the_tables_say_otherwise_is_told(tmp_path):
    warehouse = played(tmp_path, [("a0 m50", FAR)])
    write(warehouse, "rejected_events", [
        {"reason": "late", "topic": "metricsTopic", "partition": 0, "offset": 0, "batch_id": 1},
        {"reason": "late", "topic": "metricsTopic", "partition": 1, "offset": 0, "batch_id": 1},
    ])  # fmt: skip
    lines = list(explain(warehouse, KEY))
    assert about(lines, "metricsTopic-0-0 ")[-1] == (
        "the tables say otherwise: late in batch 1; reconcile holds all of them against each other"
    )
    assert not [line for line in about(lines, "analyticsTopic-0-0 ") if "otherwise" in line]


def test_corrections_and_what_was_given_up(tmp_path):
    """Batch 2 is replaced by a rewind; batch 4 is a replay that pairs what batch 1 had left alone."""
    warehouse = played(tmp_path, [("a0", 901), ("m50", 2_000)])
    (alone,) = [row for row in compound_rows(SMALL, _only(("a0", FAR)))]
    write(warehouse, "compound_events", [{**alone, "revision": 1, "op": "retract", "batch_id": 3}])
    both = {"right_ts": T0 + 50, "right_topic": "metricsTopic", "right_partition": 0, "right_offset": 0}
    write(warehouse, "compound_events", [{**alone, **both, "revision": 2, "kind": "pair", "batch_id": 4}])
    window = Window(T0, T0 + 10)
    for step in (PLANNED, PAIRED, PUBLISHED):
        record(warehouse, row_at(SMALL, 3, step, T0 + 2_000, REWIND, to_batch=2))
    for step in (PLANNED, PAIRED):
        record(warehouse, row_at(SMALL, 4, step, T0 + 2_000, REPLAY, window=window))
    lines = list(explain(warehouse, KEY))
    replay = "batch 4, a replay of 1970-01-01T00:16:40.000Z (1000000) to 1970-01-01T00:16:40.010Z (1000010)"
    assert about(lines, "analyticsTopic-0-0 ")[-1] == f"{replay}: paired with metricsTopic-0-0, 50ms later"
    assert about(lines, "metricsTopic-0-0 ")[-1] == f"{replay}: paired with analyticsTopic-0-0, 50ms earlier"
    assert about(lines, "compound analyticsTopic-0-0") == [
        "revision 0, left_only, by batch 1: not published yet",
        "revision 1, taken back, by batch 3, a rewind to batch 2: published to outputTopic-0",
        f"revision 2, pair, by {replay}: not published yet",
    ]


def on_the_topic(monkeypatch, earliest=0, offsets=(), written=9):
    """Kafka says this of the output topic, whose id is `topic`."""
    place = ("outputTopic", 0)
    now = TopicsNow(0, {place: earliest}, {place: 9}, {"outputTopic": "topic"}, written={place: written})
    monkeypatch.setenv(VARIABLE, '{"bootstrap.servers": "127.0.0.1:1"}')
    monkeypatch.setattr(output_topic, "ask_broker", lambda *_: now)
    found = {("analyticsTopic-0-0", 0): list(offsets)}
    monkeypatch.setattr(output_topic, "find", lambda settings, topic, now, wanted: found if wanted else {})


PLACES = {
    "there": ({}, {"offsets": [5]}, "on outputTopic-0 at offset 5"),
    "twice": ({}, {"offsets": [5, 8]}, "on outputTopic-0 at offsets 5, 8"),
    "nowhere": ({}, {}, "not on outputTopic-0"),
    "behind an open transaction": (
        {},
        {"written": 12},
        "not to be seen on outputTopic-0: from offset 9 on an open transaction holds everything back",
    ),
    "removed by retention": ({}, {"earliest": 3}, "not on outputTopic-0 any more, whose beginning is gone"),
    "too large": ({"refused": 1}, {}, "not on outputTopic-0: its batch left out what was larger than the topic takes"),
    "on another topic": (
        {"topic_id": "former"},
        {"offsets": [5]},
        "published to outputTopic before that was deleted and created again",
    ),
}


@pytest.mark.parametrize(("counts", "topic", "where"), PLACES.values(), ids=PLACES)
def test_where_a_published_compound_is(counts, topic, where, tmp_path, monkeypatch):
    warehouse = played(tmp_path, [("a0", FAR)])
    record(warehouse, row_at(SMALL, 1, PUBLISHED, T0 + FAR, **counts))
    on_the_topic(monkeypatch, **topic)
    lines = list(explain(warehouse, KEY))
    assert about(lines, "compound ") == [f"revision 0, left_only, by batch 1: {where}"]
    assert not [line for line in lines if "was not read" in line]


def _only(batch):
    return play_every(SMALL, records([Batch(*batch)]))[0]


def test_explaining_changes_nothing(tmp_path):
    warehouse = played(tmp_path, [("a0 m50", FAR)])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert list(explain(warehouse, KEY))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_unknown_key_is_said_with_a_hint_if_its_fields_are_swapped(tmp_path):
    warehouse = played(tmp_path, [("a0 m5", FAR)])
    with pytest.raises(UnknownKey) as swapped:
        explain(warehouse, ("v", "u"))
    assert str(swapped.value) == (
        "error: no message of v, u in 1 batch of pipeline calls; u, v has 2 messages: the order of the key's fields matters"
    )
    with pytest.raises(UnknownKey, match=r"^error: no message of u, v in 1 batch of pipeline calls in the interval 1970"):
        explain(warehouse, KEY, T0 + 50_000)
