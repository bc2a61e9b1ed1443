"""The judge must be right about what is right, and see whatever is not: one sabotage after the other."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.config.pipeline_file import load_pipeline
from include.config.project import ROOT
from include.sample import truth as sample_truth
from include.sample.calls import Sample, SampleError, generate
from include.sample.outcome import canonical, last_clock, ledger_clock, parse
from include.sample.truth import Verdict, check

M = 60_000
NOW = 1_800_000_000_000
PIPELINE = load_pipeline(ROOT / "include" / "pipelines" / "calls.yaml")
Message = dict[str, Any]


def messages(sample: Sample, clock: int) -> list[Message]:
    """What a right pipeline would have published at the clock."""
    made: list[Message] = []
    for line in sample.truth:
        start = line.find('"compounds":[')
        if start < 0 or json.loads(line)["closes_after"] >= clock:
            continue
        for text in line[start + len('"compounds":[') : -2].split('{"kind":"')[1:]:
            kind, value = text.split('","value":', 1)
            value = value.rstrip(",")[:-1]
            fields = (json.loads(value)[name] for name in PIPELINE.key)
            key = "-".join(field.replace("\\", "\\\\").replace("-", "\\-") for field in fields).encode()
            headers = {"pair-id": f"t-0-{len(made)}", "revision": "0", "kind": kind, "op": "upsert"}
            made.append({"key": key, "value": value.encode(), "headers": headers})
    return made


def tables(sample: Sample, clock: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of rejected_events and open_events beside them."""
    rejected, still_open = [], []
    for line in map(json.loads, sample.truth):
        if "rejected" in line:
            value = None if line["value"] is None else b64decode(line["value"])
            rejected.append({"reason": line["rejected"], "topic": line["topic"], "value": value})
        elif line["closes_after"] >= clock:
            users = {name: line["compounds"][0]["value"][name] for name in PIPELINE.key}
            still_open += [users] * line["events"]
    return rejected, still_open


def verdict_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., Any] = lambda published, rejected, still_open: None
) -> Verdict:
    sample = generate(PIPELINE, 300, 1, NOW, NOW - 30 * M)
    sample.write_truth(folder / "truth.jsonl")
    published = messages(sample, NOW)
    rejected, still_open = tables(sample, NOW)
    spoil(published, rejected, still_open)

    def read_topic(topic: str, settings: dict[str, Any]) -> Iterator[SimpleNamespace]:
        for offset, message in enumerate(published):
            said = {**message, "headers": [(name, text.encode()) for name, text in message["headers"].items()]}
            frame = {"topic": topic, "partition": 0, "offset": offset}
            yield SimpleNamespace(**{name: lambda found=found: found for name, found in {**said, **frame}.items()})

    monkeypatch.setattr(sample_truth, "read_topic", read_topic)
    kind = pa.schema([("reason", pa.string()), ("topic", pa.string()), ("value", pa.binary())])
    write_deltalake(str(folder / "calls" / "rejected_events"), pa.Table.from_pylist(rejected, schema=kind))
    write_deltalake(str(folder / "calls" / "open_events"), pa.Table.from_pylist(still_open))
    return check([folder / "truth.jsonl"], PIPELINE, {}, folder, NOW)


def test_what_is_right_is_found_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_on(tmp_path, monkeypatch)
    assert verdict.differences == []
    assert sum(verdict.kinds.values()) > 250 and set(verdict.kinds) == {"pair", "left_only", "right_only"}
    assert set(verdict.rejected) >= {"malformed_json", "late", "duplicate"} and verdict.open > 10
    assert verdict.lines()[-1] == "equal to the truth of the sample traffic, message by message"


def spoilt(message: Message, **changes: Any) -> None:
    message.update(changes)


def headed(message: Message, **changes: str) -> None:
    message["headers"].update({name.replace("_", "-"): text for name, text in changes.items()})


def revised(message: Message, revision: int, value: bytes | None = None) -> Message:
    """The next message about the same compound: there again, or taken back."""
    op = "retract" if value is None else "upsert"
    return {**message, "value": value, "headers": {**message["headers"], "revision": str(revision), "op": op}}


def rounded(published: list[Message]) -> None:
    """What a hop through floating point makes of one long number."""
    exact, rough = b"123456789012345.678901234567890", b"123456789012345.67"
    message = next(each for each in published if exact in each["value"])
    message["value"] = message["value"].replace(exact, rough)


SABOTAGE: dict[str, tuple[Callable[..., Any], str]] = {
    "a compound lost": (lambda published, *_: published.pop(7), "outputTopic lacks 1 ×"),
    "a compound twice": (lambda published, *_: published.append(published[7]), "outputTopic has 1 × too many"),
    "a pair-id twice": (
        lambda published, *_: headed(published[3], pair_id="t-0-2"),
        "has the pair-id 't-0-2' and revision of another",
    ),
    "another kind": (lambda published, *_: headed(published[3], kind="pear"), "has 1 × too many: pear"),
    "a revision": (lambda published, *_: headed(published[3], revision="1"), "'t-0-3' has the revisions [1], not 0 to 0"),
    "another op": (lambda published, *_: headed(published[3], op="insert"), "outputTopic-0-3 is no compound"),
    "a retraction for good": (lambda published, *_: published.append(revised(published[3], 1)), "outputTopic lacks 1 ×"),
    "a retraction twice": (
        lambda published, *_: published.extend([revised(published[3], 1), revised(published[3], 1)]),
        "has the pair-id 't-0-3' and revision of another",
    ),
    "a retraction": (lambda published, *_: spoilt(published[3], value=None), "outputTopic-0-3 is no compound: None"),
    "another key": (lambda published, *_: spoilt(published[3], key=None), "has the key None, not"),
    "a time off by 1": (
        lambda published, *_: spoilt(published[3], value=published[3]["value"].replace(b'"ts":1', b'"ts":2')),
        "outputTopic lacks 1 ×",
    ),
    "a digit lost": (lambda published, *_: rounded(published), "outputTopic lacks 1 ×"),
    "a rejection lost": (lambda published, rejected, _: rejected.pop(), "rejected_events lacks 1 ×"),
    "a wrong reason": (
        lambda published, rejected, _: rejected[0].update(reason="late"),
        "rejected_events has 1 × too many: late",
    ),
    "an open event lost": (lambda published, rejected, still_open: still_open.pop(), "open_events lacks 1 ×"),
}


@pytest.mark.parametrize(("spoil", "line"), SABOTAGE.values(), ids=SABOTAGE)
def test_what_is_wrong_is_seen(
    spoil: Callable[..., Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verdict_on(tmp_path, monkeypatch, spoil)
    assert any(line in each for each in verdict.differences), verdict.differences
    assert verdict.besides, "no traffic of another one explains it"


def test_other_traffic_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def others(published: list[Message], rejected: list[dict[str, Any]], still_open: list[dict[str, Any]]) -> None:
        value = json.loads(published[3]["value"]) | {"user1": "mine", "user2": "own"}
        headers = {**published[3]["headers"], "pair-id": "t-9-9"}
        published.append({"key": b"mine-own", "value": json.dumps(value).encode(), "headers": headers})
        rejected.append({**rejected[0], "value": b"mine"})
        still_open.append({"user1": "mine", "user2": "own"})

    verdict = verdict_on(tmp_path, monkeypatch, others)
    assert (verdict.others, verdict.besides, len(verdict.differences)) == (3, [], 3)


def test_what_was_taken_back_and_came_again_is_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rewound(published: list[Message], *_: Any) -> None:
        published += [revised(published[3], 1), revised(published[3], 2, published[3]["value"])]
        wrong = revised(published[4], 0, b'{"user1":"u","user2":"v"}')
        published += [revised(published[4], 1, published[4]["value"])]
        published[4] = {**wrong, "key": b"u-v"}

    assert verdict_on(tmp_path, monkeypatch, rewound).differences == []


def test_many_differences_are_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_on(tmp_path, monkeypatch, lambda published, *_: published.clear())
    assert len(verdict.differences) == 11 and "lines more like these" in verdict.differences[-1]
    assert verdict.kinds == {}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"a":1,"b":[2.50]}', '{"b": [2.5], "a": 1.0}', True),
        ("12345678901234567890.12345678901234567890", "12345678901234567890.12345678901234567891", False),
        ("1e3", "1000", True),
        ("-0.001", "-1e-3", True),
        ("1", '"1"', False),
        ("1", "true", False),
        ("null", '"null"', False),
        ('"\\u00e9"', '"é"', True),
        ("1e500", "1e501", False),
    ],
    ids=str,
)
def test_values_are_compared_by_meaning_with_every_digit(one: str, other: str, same: bool) -> None:
    assert (canonical(parse(one)) == canonical(parse(other))) is same


def test_clock_is_that_of_the_last_paired_batch(tmp_path: Path) -> None:
    assert ledger_clock(tmp_path, PIPELINE) is None and last_clock(tmp_path, PIPELINE) is None
    rows = [
        (1, "planned", None),
        (1, "landed", 50),
        (1, "paired", 50),
        (2, "landed", 70),
        (2, "paired", 70),
        (3, "landed", 90),
    ]
    ledger = pa.table({"batch_id": [b for b, *_ in rows], "step": [s for _, s, _ in rows], "clock": [c for *_, c in rows]})
    write_deltalake(str(tmp_path / "calls" / "batch_ledger"), ledger)
    assert (ledger_clock(tmp_path, PIPELINE), last_clock(tmp_path, PIPELINE)) == (70, 90)


def test_a_missing_truth_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match=r"no\.jsonl cannot be read"):
        check([tmp_path / "no.jsonl"], PIPELINE, {}, tmp_path, None)
