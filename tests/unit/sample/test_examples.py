"""The truth of each example of the gallery is what the plainest reading of the rules makes of its records, however these are written."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader

from include.config.pipeline import Pipeline
from include.config.project import ROOT
from include.local.machine import EXAMPLES as NAMES
from include.sample.chained import follow
from include.sample.examples import EXAMPLES, Example
from include.sample.outcome import canonical, parse
from include.sample.records import Record, Sample
from include.sample.traffic import Shares
from include.sample.truth import expected
from spark_jobs.formats.decoding import event_parser
from spark_jobs.formats.registry import RegisteredSchema
from spark_jobs.rules.parsed_columns import Columns
from tests.unit.sample.test_calls import NOW, M, lag, outcome, read

IDS = (7, 300, 70_000)
ORDERS, CLICKS, LEGS = (EXAMPLES[name] for name in ("orders", "clicks", "legs"))


@lru_cache
def samples(example: Example, calls: int = 200, late_before: int | None = None) -> list[Sample]:
    return example.samples(calls, 1, NOW, late_before, IDS[: len(example.schemas)])


def plain(schema: Any) -> Any:
    """With times as numbers."""
    if isinstance(schema, dict):
        is_time = str(schema.get("logicalType")).startswith("timestamp")
        return {name: plain(value) for name, value in schema.items() if not (is_time and name == "logicalType")}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


SCHEMAS = dict(zip(IDS, [parse_schema(plain(json.loads(each.text))) for each in ORDERS.schemas], strict=True))


def text(value: Any) -> str:
    """JSON with every digit of a decimal."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{text(each)}" for name, each in value.items()) + "}"
    return f"[{','.join(map(text, value))}]" if isinstance(value, list) else json.dumps(value)


def read_avro(record: Record, pipeline: Pipeline, wall: int) -> tuple[str, tuple[str, ...], int, str]:
    """As `read` of test_calls: (reason or "", key, ts, canonical payload)."""
    value = record.value or b""
    rest = BytesIO(value[5:])
    try:
        assert value[0] == 0
        event: Any = schemaless_reader(rest, SCHEMAS[int.from_bytes(value[1:5], "big")], None)
    except (IndexError, KeyError, AssertionError, EOFError):
        return "undecodable", (), 0, ""
    left = record.topic == pipeline.left.topic
    name, time, unit, payload = ("id", "placed_at", 1_000, "basket") if left else ("reference", "paid_at", 1, "payment")
    if not event[name]:
        return "missing_key", (), 0, ""
    ts = record.timestamp if event[time] is None else event[time] // unit
    if ts < 0:
        return "bad_timestamp", (), 0, ""
    return "future" if ts > wall + pipeline.max_future_ms else "", (event[name],), ts, canonical(parse(text(event[payload])))


def read_leg(record: Record, pipeline: Pipeline, wall: int) -> tuple[str, tuple[str, ...], int, str]:
    """As `read`, of compounds on the left side."""
    if record.topic != pipeline.left.topic:
        return read(record, pipeline, wall)
    value = parse(record.value or b"")
    return "", (value["user1"], value["user2"]), int(value["ts"]), canonical(value)


def closing(sample: Sample) -> list[int]:
    return sorted(int(line["closes_after"]) for line in map(json.loads, sample.truth) if "closes_after" in line)


def test_the_machine_knows_the_names_of_the_examples() -> None:
    assert tuple(EXAMPLES) == NAMES


@pytest.mark.parametrize("late_before", [None, NOW - 20 * M], ids=str)
@pytest.mark.parametrize(("example", "how"), [(ORDERS, read_avro), (CLICKS, read)], ids=["orders", "clicks"])
def test_truth_equals_the_rules(example: Example, how: Any, late_before: int | None) -> None:
    pipeline, sample = example.pipelines[0], samples(example, late_before=late_before)[0]
    for clock in (closing(sample)[100], closing(sample)[100] + 1, closing(sample)[-1] + 1):
        found = outcome(sample.records, pipeline, clock, NOW, late_before, how)
        wanted = expected(sample.truth, pipeline, clock)
        assert found == (wanted.compounds, wanted.rejected, wanted.open)
    assert not wanted.open and wanted.compounds.total() == 200


@pytest.mark.parametrize("minutes", [4, 9, 60])
def test_the_truth_of_the_second_step_equals_the_rules(minutes: int) -> None:
    """Whatever of the first step's compounds is published by then."""
    (first, second), (legs, switch) = LEGS.pipelines, samples(LEGS)
    before = NOW - 5 * M + minutes * M
    published, _, _ = outcome(legs.records, first, before, NOW, None)
    records = [Record(second.left.single_topic, None, value.encode(), NOW) for _, value in published.elements()]
    for clock in (before - 4 * M, closing(switch)[100], closing(switch)[100] + 1):
        found = outcome([*records, *switch.records], second, clock, NOW, None, read_leg)
        wanted = expected(switch.truth, second, clock, before)
        assert found == (wanted.compounds, wanted.rejected, +wanted.open)
    assert len(wanted.compounds) > 80


def test_the_second_step_lacks_every_side_somewhere_and_has_faults_of_its_own() -> None:
    lines = [json.loads(line) for line in samples(LEGS, 1_000)[1].truth]
    values = [each["value"] for line in lines for each in line.get("compounds", ())]
    missing = Counter(
        (value["legs"] is None, value["switch"] is None, None in (value["legs"] or {}).values()) for value in values
    )
    # No legs; no switch; one leg only.
    assert {*missing} > {(True, False, False), (False, True, False), (False, False, True)}
    assert missing[False, False, False] > 700
    reasons = {line["rejected"] for line in lines if "rejected" in line}
    assert reasons == {"malformed_json", "missing_key", "bad_timestamp", "future", "duplicate"}
    assert {line["topic"] for line in lines if "rejected" in line} == {"switchTopic"}


@pytest.mark.parametrize(("apart", "sessions"), [(2 * M, 1), (2 * M + 1, 2)])
def test_compounds_of_one_pair_are_one_session_up_to_the_gap(apart: int, sessions: int) -> None:
    users = {"user1": "ann", "user2": "bob"}
    compounds = [{"kind": "pair", "value": users | {"ts": NOW - 9 * M + later}} for later in (0, apart)]
    first = [json.dumps({"closes_after": NOW, "events": 2, "compounds": [compound]}) for compound in compounds]
    no_switch = Shares(orphans=1, broken=0, future=0)
    truth = follow(LEGS.pipelines[1], first, 1, NOW, no_switch).truth
    assert sum("published_after" in line for line in truth) == sessions


def test_no_event_of_the_second_step_lags_more_than_the_grace() -> None:
    second, sample = LEGS.pipelines[1], samples(LEGS, 1_000)[1]
    assert 0 < lag(sample.records, second) <= second.grace_ms


def test_orders_are_written_by_two_schemas_and_fail_in_every_way() -> None:
    (sample,) = samples(ORDERS, 1_000)
    kinds = Counter(
        int.from_bytes(record.value[1:5], "big") for record in sample.records if record.value and record.value[0] == 0
    )
    assert all(kinds[known] > 25 for known in IDS)
    reasons = Counter(json.loads(line).get("rejected") for line in sample.truth)
    assert set(reasons) == {None, "undecodable", "missing_key", "bad_timestamp", "future", "duplicate"}
    assert any("9999999999.99" in line for line in sample.truth) and any("抹茶" in line for line in sample.truth)


def test_the_jobs_read_orders_and_payments_as_they_were_meant() -> None:
    """Before a real registry has its schemas."""
    pipeline, records = ORDERS.pipelines[0], samples(ORDERS, 1_000)[0].records
    texts = {known: RegisteredSchema("AVRO", each.text, ()) for known, each in zip(IDS, ORDERS.schemas, strict=True)}
    registry: Any = SimpleNamespace(schema=texts.get)
    for side in pipeline.sides:
        own = [record for record in records if record.topic == side.topic]
        columns = Columns(
            pa.array([record.value for record in own], pa.binary()),
            pa.array([record.timestamp for record in own]),
            pa.array([record.key for record in own], pa.binary()),
        )
        found = event_parser(pipeline, side, NOW + pipeline.max_future_ms, registry)(columns)
        (names,) = found.key
        for record, name, ts, payload, problem in zip(
            own, *(each.to_pylist() for each in (names, found.ts, found.payload, found.problem)), strict=True
        ):
            wanted = read_avro(record, pipeline, NOW)
            assert (problem or "") == wanted[0]
            if problem is None:
                assert ((name,), ts, canonical(parse(payload or "null"))) == wanted[1:]


def test_clicks_come_long_after_impressions_and_in_either_order() -> None:
    (sample,) = samples(CLICKS, 1_000)
    pipeline = CLICKS.pipelines[0]
    found = [each["value"] for line in map(json.loads, sample.truth) for each in line.get("compounds", ())]
    directions = Counter((value["impression_reversed"], value["click_reversed"]) for value in found)
    assert len(directions) == 8, "either order of each side, and of each side without the other"
    pairs = sum(each["kind"] == "pair" for line in map(json.loads, sample.truth) for each in line.get("compounds", ()))
    assert 300 < pairs < 500, "most impressions get no click"
    read_all = [(*read(record, pipeline, NOW), record.topic) for record in sample.records]
    times = {(tuple(sorted(key)), topic): ts for reason, key, ts, _, topic in read_all if not reason}
    apart = [
        ts - times[key, "impressions"]
        for (key, topic), ts in times.items()
        if topic == "clicks" and (key, "impressions") in times
    ]
    # The few below are of pairs with several calls.
    assert sorted(apart)[len(apart) // 10] >= 8 * M and max(apart) > 25 * M


@pytest.mark.parametrize(
    "file", [file for example in (ORDERS, CLICKS, LEGS) for file in example.files], ids=lambda file: file.stem
)
def test_the_gallery_shows_the_file_as_it_is(file: Path) -> None:
    named = f"<!-- file: {file.parent.name}/{file.name} -->"
    assert f"{named}\n\n```yaml\n{file.read_text()}```\n" in (ROOT / "docs" / "gallery.md").read_text()
