"""One pair's story, word for word. T = 100, G = 200, R = 500 ms; T0 is 1970-01-01T00:16:40.000Z."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from spark_jobs.story.from_files import explain
from spark_jobs.story.history import UnknownKey
from tests.helpers import story_lines
from tests.helpers.timeline import ROOT, SMALL, T0, Batch, read_batches, records

FAR = 1_000_000
KEY = ("u", "v")
NOT_MORE = "no setting keeps them apart: an event has one partner at most, and this one was left over"


def story(batches, key=KEY, **changes) -> list[str]:
    pipeline = replace(SMALL, **changes)
    return list(explain(pipeline, key, read_batches(records([Batch(*batch) for batch in batches]), pipeline)))


def about(source: str, batches, **changes) -> list[str]:
    """The sentences about one event."""
    return story_lines.about(story(batches, **changes), f"{source} ")


def test_the_whole_story_of_a_pair():
    assert (
        story([("a0 m50 a0:w", 100), ("", 751)])
        == """\
u, v: 2 messages in 1 batch, pipeline calls (tolerance 100ms, gap 200ms, grace 500ms, max_future 10s, max_session 1s, one_to_one)
batch 1: 2 messages read, clock 1970-01-01T00:16:40.100Z (1000100)
batch 2: 0 messages read, clock 1970-01-01T00:16:40.751Z (1000751)

analyticsTopic-0-0 (analytics), 1970-01-01T00:16:40.000Z (1000000), read in batch 1
  in a session of 2 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z
  closed in batch 2: end + gap + grace = 1970-01-01T00:16:40.750Z (1000750), and the clock is 1ms past that
  paired with metricsTopic-0-0, 50ms later

metricsTopic-0-0 (metrics), 1970-01-01T00:16:40.050Z (1000050), read in batch 1
  in a session of 2 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z
  closed in batch 2: end + gap + grace = 1970-01-01T00:16:40.750Z (1000750), and the clock is 1ms past that
  paired with analyticsTopic-0-0, 50ms earlier""".splitlines()
    )


NEAREST = "alone (left_only): the nearest of the other side is"
ALONE = {
    "no other side": ("analyticsTopic-0-0", [("a0", FAR)], ["alone (left_only): no event of the other side was read"]),
    "1 ms too far": (
        "analyticsTopic-0-0",
        [("a0 m101", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 101ms later, in the same session, alone as well",
            "with `tolerance: 101ms` it would be paired with metricsTopic-0-0, 101ms later",
        ],
    ),
    "beyond a gap": (
        "analyticsTopic-0-0",
        [("a0 m201", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 201ms later, in a session of its own, alone as well",
            "with `tolerance: 201ms` and `gap: 201ms` it would be paired with metricsTopic-0-0, 201ms later",
        ],
    ),
    "taken by a nearer one": (
        "analyticsTopic-0-0",
        [("a0 m60 a100", FAR)],
        [f"{NEAREST} metricsTopic-0-0, 60ms later, in the same session, taken by analyticsTopic-0-1, 40ms later", NOT_MORE],
    ),
    "at the same time, taken, and a free one further away": (
        "analyticsTopic-0-1",
        [("a0 a0 m0 m150", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, at the same time, in the same session, taken by analyticsTopic-0-0, at the same time",
            "the nearest without a partner is metricsTopic-0-1, 150ms later, in the same session, alone as well",
            "with `tolerance: 150ms` it would be paired with metricsTopic-0-1, 150ms later",
        ],
    ),
    "cut off by max_session": (
        "analyticsTopic-0-5",
        [("a0 a200 a400 a600 a800 a1000 m1001", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 1ms later, in a session of its own, alone as well",
            "with `max_session: 1001ms` it would be paired with metricsTopic-0-0, 1ms later",
        ],
    ),
    "another one would always be nearer": (
        "analyticsTopic-0-4",
        [("a0 a200 a400 a600 a800 a1000 m1001", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 201ms later, in a session of its own, alone as well",
            "with `tolerance: 201ms` and `max_session: 1001ms` it would still be alone",
        ],
    ),
    "closed before the other came": (
        "analyticsTopic-0-0",
        [("a0", 701), ("m50", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 50ms later, in a session of its own, alone as well",
            "with `grace: 501ms` it would be paired with metricsTopic-0-0, 50ms later",
        ],
    ),
    "the other was late": (
        "analyticsTopic-0-0",
        [("a0", 901), ("m50", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 50ms later, rejected in batch 2 as late",
            "with `grace: 701ms` it would be paired with metricsTopic-0-0, 50ms later",
        ],
    ),
    "the other is still open": (
        "analyticsTopic-0-0",
        [("a0 m250", 750)],
        [
            f"{NEAREST} metricsTopic-0-0, 250ms later, in a session of its own, still open",
            "with `tolerance: 250ms` and `gap: 250ms` it would be paired with metricsTopic-0-0, 250ms later",
        ],
    ),
    "the other is ten years ahead": (
        "analyticsTopic-0-0",
        [("a0 m315360000000", 701)],
        [
            f"{NEAREST} metricsTopic-0-0, 3650d later, rejected in batch 1 as future",
            "no setting is as long as it would take",
        ],
    ),
    "the other is in a longer session": (
        "analyticsTopic-0-0",
        [("a0 m300 m400", FAR)],
        [
            f"{NEAREST} metricsTopic-0-0, 300ms later, "
            "in a session of 2 events, 1970-01-01T00:16:40.300Z to 1970-01-01T00:16:40.400Z, alone as well",
            "with `tolerance: 300ms` and `gap: 300ms` it would be paired with metricsTopic-0-0, 300ms later",
        ],
    ),
}


@pytest.mark.parametrize(("source", "batches", "sentences"), ALONE.values(), ids=ALONE)
def test_why_an_event_is_alone(source, batches, sentences):
    assert about(source, batches)[2:] == sentences


def test_settings_that_change_nothing_are_not_proposed():
    """With collapse the tolerance does not matter, and the gap that brings the two together keeps the first one open."""
    for changes, settings in (({}, "`tolerance: 300ms` and `gap: 300ms`"), ({"matching": "collapse"}, "`gap: 300ms`")):
        assert about("analyticsTopic-0-0", [("a0", 701), ("m300", FAR)], **changes)[-1] == (
            f"with {settings} it would be paired with metricsTopic-0-0, 300ms later"
        )


LATE = "rejected in batch 2 as late: end + gap + grace = 1970-01-01T00:16:40.750Z (1000750), and the clock of batch 1 was"
FUTURE = "rejected in batch 1 as future: 10s1ms ahead of the batch's wall time, 1970-01-01T00:16:40.000Z (1000000)"
OTHER_ENDS = {
    "late, and alone": (
        "metricsTopic-0-0",
        [("", 751), ("m50", FAR)],
        [
            "in a session of its own",
            f"{LATE} 1ms past that already",
            "with `grace: 501ms` it would have been kept: alone (right_only)",
        ],
    ),
    "late, both sides together": (
        "metricsTopic-0-0",
        [("", 751), ("a0 m50", FAR)],
        [
            "in a session of 2 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z",
            f"{LATE} 1ms past that already",
            "with `grace: 501ms` it would have been kept: paired with analyticsTopic-0-0, 50ms earlier",
        ],
    ),
    "late, its other half published alone": (
        "metricsTopic-0-0",
        [("a0", 901), ("m50", FAR)],
        [
            "in a session of its own",
            f"{LATE} 151ms past that already",
            "with `grace: 651ms` it would have been kept: alone (right_only)",
            "with `grace: 701ms` it would be paired with analyticsTopic-0-0, 50ms earlier",
        ],
    ),
    "future": (
        "analyticsTopic-0-0",
        [("a10001", 0), ("m9950", 10_000)],
        [FUTURE, "with `max_future: 10001ms` it would have been kept: paired with metricsTopic-0-0, 51ms earlier"],
    ),
    "ten years ahead": (
        "analyticsTopic-0-0",
        [("a315360000000", 0)],
        ["rejected in batch 1 as future: 3650d ahead of the batch's wall time, 1970-01-01T00:16:40.000Z (1000000)"],
    ),
    "duplicate of an open event": (
        "analyticsTopic-0-1",
        [("a0=x", 10), ("a0=x", 20)],
        ["rejected in batch 2 as duplicate of analyticsTopic-0-0: same side, key, timestamp and payload"],
    ),
    "open, with its partner": (
        "analyticsTopic-0-0",
        [("a0 m50", 750)],
        [
            "in a session of 2 events, 1970-01-01T00:16:40.000Z to 1970-01-01T00:16:40.050Z",
            "open after batch 1: the first batch with a clock past 1970-01-01T00:16:40.750Z (1000750) closes it",
            "if nothing more comes until then: paired with metricsTopic-0-0, 50ms later",
        ],
    ),
    "open, without": (
        "analyticsTopic-0-0",
        [("a0", 700)],
        [
            "in a session of its own",
            "open after batch 1: the first batch with a clock past 1970-01-01T00:16:40.700Z (1000700) closes it",
            "if nothing more comes until then: alone (left_only)",
        ],
    ),
}


@pytest.mark.parametrize(("source", "batches", "sentences"), OTHER_ENDS.values(), ids=OTHER_ENDS)
def test_what_became_of_other_events(source, batches, sentences):
    assert about(source, batches) == sentences


def test_collapsed():
    sentences = about("analyticsTopic-0-1", [("a0 m5 a10", FAR)], matching="collapse")
    assert sentences[-1] == "collapsed: analyticsTopic-0-0 comes first on this side of the session"


def record(body: str, offset: int) -> dict:
    return {"topic": "analyticsTopic", "partition": 0, "offset": offset, "ts": T0, "payload": body}


def test_a_message_of_the_key_without_a_time_and_messages_without_a_key():
    bodies = ['{"user1":"u","user2":"v","timestamp":1.5}', '{"user1":"u"}', "{", '{"user1":"other","user2":"v"}']
    lines = list(explain(SMALL, KEY, read_batches([([record(body, offset) for offset, body in enumerate(bodies)], T0)])))
    assert lines[1:] == [
        "batch 1: 1 message read, clock 1970-01-01T00:16:40.000Z (1000000)",
        "",
        "analyticsTopic-0-0 (analytics), no readable time, read in batch 1",
        "  rejected in batch 1 as bad_timestamp: the timestamp is not what timestamp_format says, or not from 0 to 2^63 - 1 ms",
        "",
        "2 messages without a readable key: each may be of any pair",
    ]


def test_an_unknown_key_is_said_with_a_hint_if_its_fields_are_swapped():
    with pytest.raises(UnknownKey) as swapped:
        story([("a0 m5", FAR)], key=("v", "u"))
    assert str(swapped.value) == (
        "error: no message of v, u in 1 batch of 2 messages; u, v has 2 messages: the order of the key's fields matters"
    )
    with pytest.raises(UnknownKey, match=r'^error: no message of "\\n", v in 1 batch of 0 messages$'):
        story([("", FAR)], key=("\n", "v"))


def command(tmp_path, *arguments: str) -> subprocess.CompletedProcess:
    path = tmp_path / "batch.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in records([Batch("a0 m50", 0)])[0][0]))
    rehearse = [sys.executable, "-m", "spark_jobs.rehearse_pairing", "--pipeline", "include/pipelines/calls.yaml"]
    return subprocess.run([*rehearse, "--batch", f"{path}@{FAR}", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("values", "status", "stdout", "stderr"),
    [
        (KEY, 0, "u, v: 2 messages in 1 batch", ""),
        (("nobody", "v"), 1, "", "error: no message of nobody, v in 1 batch of 2 messages\n"),
        (("u",), 2, "", "error: --explain takes one value for each of user1, user2, in this order; 1 given\n"),
        ((), 2, "", "error: argument --explain: expected at least one argument (see rehearse_pairing --help)\n"),
    ],
    ids=["known", "unknown", "one value of two", "no value"],
)
def test_the_command(values, status, stdout, stderr, tmp_path):
    done = command(tmp_path, "--explain", *values)
    assert (done.returncode, done.stdout[: len(stdout) or None], done.stderr) == (status, stdout, stderr)


def test_what_is_asked_of_topics_is_refused_for_files(tmp_path):
    refused = "error: --newest and --since go with --from-topics; files are played as they are\n"
    for arguments in (("--newest", "5"), ("--since", "2026-01-31T13:00:00Z")):
        done = command(tmp_path, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", refused)


def test_a_header_that_cannot_be_told_is_the_reason_if_there_is_no_other():
    read = records([Batch("a0 a1", FAR)])
    _, bad = read[0][0]
    bad["headers"] = ["good", "1", "b\udcffd", None]
    lines = list(explain(SMALL, KEY, read_batches(read)))
    assert story_lines.about(lines, "analyticsTopic-0-1 ") == [
        "rejected in batch 1 as bad_header: the record has a header whose name is not UTF-8"
    ]
    assert "alone (left_only)" in story_lines.about(lines, "analyticsTopic-0-0 ")[-1]
    bad["payload"] = "{"
    assert "bad_header" not in " ".join(explain(SMALL, KEY, read_batches(read)))
