"""The sample's truth is laid out by construction; here the pairing rules, written down once more in the plainest way, must
come to the same for every kind of pipeline."""

import json
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from include.config.pipeline import Pipeline, Side
from include.sample import traffic as sample_traffic
from include.sample.calls import ON_THE_WAY_MS, SampleError, Shares, _check_layout, generate, live, live_traffic
from include.sample.outcome import canonical, parse
from include.sample.records import Record, Sample
from include.sample.traffic import HISTORY_MS, Traffic, pieces
from include.sample.truth import expected

S, M = 1_000, 60_000
NOW = 1_800_000_000_000
YEAR = 365 * 86_400 * S
CALLS = Pipeline(
    name="calls",
    left=Side("analyticsTopic", "analytics"),
    right=Side("metricsTopic", "metrics"),
    output_topic="outputTopic",
    key=("user1", "user2"),
    timestamp="timestamp",
    tolerance_ms=M,
    gap_ms=M,
    grace_ms=3 * M,
    max_future_ms=5 * M,
    max_session_ms=60 * M,
    matching="one_to_one",
    late="dead_letter",
    clock="lag_aware",
    drop_duplicates=True,
    offset_gaps="count",
    schedule=None,
    max_records_per_batch=1_000_000,
)
PIPELINES = {
    "as shipped": CALLS,
    "collapse": replace(CALLS, matching="collapse"),
    "duplicates kept": replace(CALLS, drop_duplicates=False),
    "duplicates kept, collapse": replace(CALLS, drop_duplicates=False, matching="collapse"),
    "gap shorter than tolerance": replace(CALLS, gap_ms=20 * S),
    "gap longer than tolerance": replace(CALLS, gap_ms=5 * M),
    "collapse, gap longer": replace(CALLS, gap_ms=5 * M, matching="collapse"),
    "tolerance 0, gap 1 ms, no grace": replace(CALLS, tolerance_ms=0, gap_ms=1, grace_ms=0),
    "session as long as the gap": replace(CALLS, max_session_ms=M),
    "one key field, other names": replace(CALLS, key=("id",), left=Side("l", "x"), right=Side("r", "y"), timestamp="t"),
    "three key fields": replace(CALLS, key=("a", "b", "c")),
    "grace of a day": replace(CALLS, grace_ms=24 * 60 * M),
    "keys in any order": replace(CALLS, key_order="any"),
    "keys in any order, collapse": replace(CALLS, key_order="any", matching="collapse"),
}
THICK = Shares(orphans=0.15, duplicates=0.3, broken=0.1, future=0.02, late=0.1, look_alikes=0.05)


def read(record: Record, pipeline: Pipeline, wall: int) -> tuple[str, tuple[str, ...], int, str]:
    """(reason or "", key, ts, canonical payload) of a record."""
    try:
        text = (record.value or b"").decode()
        event, exact = json.loads(text, parse_constant=int), parse(text)
    except ValueError:
        return "malformed_json", (), 0, ""
    if not isinstance(event, dict):
        return "malformed_json", (), 0, ""
    names = [event.get(name) for name in pipeline.key]
    if not all(isinstance(name, str) and name for name in names):
        return "missing_key", (), 0, ""
    key = tuple(map(str, names))
    ts = event.get(pipeline.timestamp)
    if ts is None:
        ts = record.timestamp
    elif isinstance(ts, str) and ts.isdecimal():
        ts = int(ts)
    if type(ts) is not int or not 0 <= ts < 2**63:
        return "bad_timestamp", (), 0, ""
    side = pipeline.left if record.topic == pipeline.left.topic else pipeline.right
    return "future" if ts > wall + pipeline.max_future_ms else "", key, ts, canonical(exact.get(side.payload))


def match(lefts: list[int], rights: list[int], tolerance: int) -> list[tuple[int | None, int | None]]:
    """Most pairs, then closest; as (left, right) with None for what stays alone."""

    @cache
    def best(i: int, j: int) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        if i == len(lefts) or j == len(rights):
            return 0, 0, ()
        ways = [best(i + 1, j), best(i, j + 1)]
        distance = abs(lefts[i] - rights[j])
        if distance <= tolerance:
            pairs, total, chosen = best(i + 1, j + 1)
            ways.append((pairs - 1, total + distance, ((i, j), *chosen)))
        return min(ways)

    chosen = best(0, 0)[2]
    alone_left = [(at, None) for i, at in enumerate(lefts) if i not in {i for i, _ in chosen}]
    alone_right = [(None, at) for j, at in enumerate(rights) if j not in {j for _, j in chosen}]
    return [*((lefts[i], rights[j]) for i, j in chosen), *alone_left, *alone_right]


def outcome(
    records: list[Record], pipeline: Pipeline, clock: int, wall: int, previous: int | None, read: Callable = read
) -> tuple[Counter, ...]:
    """(compounds, rejected, open events by key) of one batch, by the letter of the rules. `read`: what a record says."""
    compounds: Counter = Counter()
    rejected: Counter = Counter()
    still_open: Counter = Counter()
    events = defaultdict(list)
    seen = set()
    for record in records:
        reason, key, ts, payload = read(record, pipeline, wall)
        if not reason and pipeline.drop_duplicates and (record.topic, key, ts, payload) in seen:
            reason = "duplicate"
        if reason:
            rejected[reason, record.topic, record.value] += 1
        else:
            seen.add((record.topic, key, ts, payload))
            ordered = tuple(sorted(key)) if pipeline.is_unordered else key
            events[ordered].append((ts, record.topic != pipeline.left.topic, (payload, key != ordered), record))
    for key, timeline in events.items():
        for session in sessions(sorted(timeline, key=lambda event: event[:2]), pipeline):
            closes = session[-1][0] + pipeline.gap_ms + pipeline.grace_ms
            if previous is not None and closes < previous:
                rejected.update(("late", event[3].topic, event[3].value) for event in session)
            elif closes < clock:
                compounds.update(paired(session, key, pipeline))
            else:
                still_open[key] += len(session)
    return compounds, rejected, still_open


def sessions(timeline: list, pipeline: Pipeline) -> list[list]:
    cut = [[timeline[0]]]
    for event in timeline[1:]:
        near = event[0] - cut[-1][-1][0] <= pipeline.gap_ms and event[0] - cut[-1][0][0] <= pipeline.max_session_ms
        cut[-1].append(event) if near else cut.append([event])
    return cut


def paired(session: list, key: tuple[str, ...], pipeline: Pipeline) -> list[tuple[str, str]]:
    sides = [{ts: payload for ts, of_right, payload, _ in session if of_right is side} for side in (False, True)]
    times = [[ts for ts, of_right, *_ in session if of_right is side] for side in (False, True)]
    if pipeline.matching == "collapse":
        calls = [(min(times[0], default=None), min(times[1], default=None))]
    else:
        calls = match(times[0], times[1], pipeline.tolerance_ms)
    found = []
    nothing = "null", None
    for left, right in calls:
        kind = "left_only" if right is None else "right_only" if left is None else "pair"
        value = {name: canonical(text) for name, text in zip(pipeline.key, key, strict=True)}
        value["ts"] = str(min(ts for ts in (left, right) if ts is not None))
        for side, of, ts in zip(pipeline.sides, sides, (left, right), strict=True):
            value[side.payload], is_reversed = of.get(ts, nothing)
            if pipeline.is_unordered:
                value[f"{side.payload}_reversed"] = canonical(is_reversed)
        found.append((kind, "{" + ",".join(f'"{name}":{text}' for name, text in sorted(value.items())) + "}"))
    return found


def users_of(sample: Sample) -> set[str]:
    lines = [parse(line) for line in sample.truth]
    return {line["compounds"][0]["value"]["user1"] for line in lines if "compounds" in line}


def closing(sample: Sample) -> list[int]:
    return [int(line["closes_after"]) for line in map(parse, sample.truth) if "closes_after" in line]


@pytest.mark.parametrize("late_before", [None, NOW - 20 * M, NOW - 5 * M, NOW - 3 * S, NOW], ids=str)
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_truth_equals_the_rules(pipeline: Pipeline, late_before: int | None) -> None:
    sample = generate(pipeline, 300, seed=7, now_ms=NOW, late_before=late_before, shares=THICK)
    last = NOW + 2 * pipeline.gap_ms + pipeline.grace_ms
    for clock in (NOW, closing(sample)[0], closing(sample)[0] + 1, last):
        found = outcome(sample.records, pipeline, clock, NOW, late_before)
        wanted = expected(sample.truth, pipeline, clock)
        assert found == (wanted.compounds, wanted.rejected, wanted.open)
    assert not wanted.open and len(wanted.compounds) > 150


@pytest.mark.parametrize("late_before", [None, NOW - 10 * M], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_missing_from_the_truth(seed: int, late_before: int | None) -> None:
    sample = generate(CALLS, 2_000, seed, NOW, late_before)
    lines = [json.loads(line) for line in sample.truth]
    assert sum(line.get("events", 1) for line in lines) == len(sample.records)
    assert sum(len(line.get("compounds", ())) for line in lines) == 2_000


def test_same_arguments_same_bytes_and_another_run_other_users() -> None:
    first = generate(CALLS, 300, 1, NOW, NOW - 10 * M)
    assert first == generate(CALLS, 300, 1, NOW, NOW - 10 * M)
    for other in (generate(CALLS, 300, 2, NOW), generate(CALLS, 300, 1, NOW + 1)):
        assert not users_of(first) & users_of(other)


def test_sessions_end_where_they_may() -> None:
    wait = CALLS.gap_ms + CALLS.grace_ms
    first = closing(generate(CALLS, 2_000, 1, NOW))
    assert NOW - HISTORY_MS - wait <= min(first) and max(first) <= NOW + wait
    assert 80 <= sum(closes >= NOW for closes in first) <= 120, "five of a hundred stay open"
    last_clock = NOW - 10 * M
    sample = generate(CALLS, 2_000, 1, NOW, last_clock)
    assert min(closing(sample)) >= last_clock
    late = [json.loads(line)["value"] for line in sample.truth if '"late"' in line]
    stamps = [json.loads(b64decode(value)).get("timestamp") for value in late]
    assert late and max(int(stamp) for stamp in stamps if stamp is not None) < last_clock - wait - CALLS.gap_ms


def test_every_feature_is_in_two_thousand_calls() -> None:
    sample = generate(CALLS, 2_000, 1, NOW, NOW - 30 * M)
    lines = [json.loads(line) for line in sample.truth]
    reasons = Counter(line["rejected"] for line in lines if "rejected" in line)
    assert set(reasons) == {"malformed_json", "missing_key", "bad_timestamp", "future", "duplicate", "late"}
    kinds = Counter(each["kind"] for line in lines for each in line.get("compounds", ()))
    assert kinds["pair"] > 1_600 and 60 < kinds["left_only"] < 140 and 60 < kinds["right_only"] < 140
    assert any(len(line.get("compounds", ())) > 2 for line in lines), "chains"
    assert {record.timestamp for record in sample.records} > {NOW}, "timestamps left to the record"
    keys = {record.key for record in sample.records}
    assert {None, b""} < keys and any(b"\xff" in key for key in keys if key)
    values = [record.value for record in sample.records]
    assert None in values and b"" in values and any(b"\xff" in value for value in values if value)
    for text in ('"timestamp":null', '"timestamp":"1', "NaN", "{'", "}{", "9223372036854775807", "ключ", "\\u"):
        assert any(text.encode() in value for value in values if value), text
    good = [event for event in (read(record, CALLS, NOW) for record in sample.records) if not event[0]]
    pairs = {key for _, key, *_ in good}
    assert any((second, first) in pairs for first, second in pairs), "swapped users"
    assert max(Counter("-".join(key) for key in pairs).values()) == 2, "users whose joined names are equal"
    starts = [ts for _, _, ts, _ in good]
    assert starts != sorted(starts), "out of order"


def lag(records: list[Record], pipeline: Pipeline) -> int:
    """How far an accepted event comes at most after a later one of its topic."""
    newest: dict[str, int] = defaultdict(int)
    most = 0
    for record in records:
        reason, _, ts, _ = read(record, pipeline, NOW)
        if not reason:
            most = max(most, newest[record.topic] - ts)
            newest[record.topic] = max(newest[record.topic], ts)
    return most


@pytest.mark.parametrize("calls_per_piece", [40, 10_000])
def test_no_event_lags_more_than_the_grace(calls_per_piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then batches may cut the records anywhere, however many pieces they are made in."""
    monkeypatch.setattr(sample_traffic, "CALLS_PER_PIECE", calls_per_piece)
    made = list(pieces(Traffic(CALLS, 1, NOW), 2_000, NOW))
    records = [record for piece in made for record in piece.records]
    assert 0 < lag(records, CALLS) <= CALLS.grace_ms
    assert (sum(len(piece.records) > 0 for piece in made) > 20) is (calls_per_piece == 40)
    wanted = expected((line for piece in made for line in piece.truth), CALLS, NOW)
    assert outcome(records, CALLS, NOW, NOW, None) == (wanted.compounds, wanted.rejected, wanted.open)


def test_live_events_arrive_within_the_grace() -> None:
    traffic = live_traffic(CALLS, 1, NOW, Shares())
    made = [live(traffic, 50, NOW + tick * 250) for tick in range(40)]
    for tick, sample in enumerate(made):
        good = [event for event in (read(record, CALLS, NOW) for record in sample.records) if not event[0]]
        ages = [NOW + tick * 250 - ts for _, _, ts, _ in good]
        assert min(ages) >= 0 and max(ages) <= CALLS.grace_ms - ON_THE_WAY_MS
    records = [record for sample in made for record in sample.records]
    wanted = expected((line for sample in made for line in sample.truth), CALLS, NOW + YEAR)
    assert outcome(records, CALLS, NOW + YEAR, NOW, None) == (wanted.compounds, wanted.rejected, Counter())
    assert {"future", "duplicate", "missing_key"} <= {reason for reason, *_ in wanted.rejected}
    with pytest.raises(SampleError, match="grace under 5000 ms"):
        live_traffic(replace(CALLS, grace_ms=4_999), 1, NOW, Shares())


@pytest.mark.parametrize(
    "other",
    [replace(CALLS, key_text=("trim",)), replace(CALLS, right=replace(CALLS.right, format="avro"))],
    ids=["text", "format"],
)
def test_a_pipeline_of_other_records_gets_no_sample(other) -> None:
    with pytest.raises(SampleError, match="this pipeline reads other records"):
        _check_layout(other)


def test_truth_file_is_whole_or_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "truth.jsonl"
    sample = generate(CALLS, 20, 1, NOW)
    sample.write_truth(path)
    assert path.read_text().splitlines() == sample.truth
    with pytest.raises(UnicodeEncodeError):
        Sample(truth=[*sample.truth[:3], "\ud800"]).write_truth(path)
    assert path.read_text().splitlines() == sample.truth
    assert [file.name for file in path.parent.iterdir()] == ["truth.jsonl"]
