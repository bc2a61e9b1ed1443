"""Proposals for made-up worlds of which the truth is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from include.config.pipeline import Pipeline, Side
from include.sample.traffic import generate
from spark_jobs.formats.registry import VARIABLE
from spark_jobs.joining.documents import NoProposal
from spark_jobs.joining.propose import Proposal, propose
from spark_jobs.story import parsing
from tests.helpers.timeline import CALLS
from tests.helpers.worlds import APART, NOW, WORLDS, Known, Sent, World, joined, plain_left, plain_right, records, sample

HOUR = 3_600_000


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Of the schemas of the world in hand, also for the rehearsal."""
    monkeypatch.setenv(VARIABLE, '{"url": "http://127.0.0.1:9"}')
    return lambda world: monkeypatch.setattr(parsing, "Registry", lambda *_: Known(world.schemas))


def proposal(world: World, seed: int = 1) -> tuple[Proposal, tuple[float, float]]:
    left, right, truth = records(world, seed)
    samples = sample("calls.ended", left), sample("media-metrics", right)
    return propose(samples, Known(world.schemas), NOW + HOUR, "calls", "compounds", files=world.files), truth


def key_of(pipeline: Pipeline) -> frozenset[tuple[str, str]]:
    left, right = (dict(side.key) for side in pipeline.sides)
    return frozenset((left.get(name, name), right.get(name, name)) for name in pipeline.key)


def time_of(pipeline: Pipeline, side: Side) -> tuple[str, str]:
    times = pipeline.times(side)
    return times.source, times.format or "epoch_ms"


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_is_found_as_it_is(name, registry):
    world = WORLDS[name]
    registry(world)
    made, truth = proposal(world)
    pipeline = made.pipeline
    assert key_of(pipeline) == world.key
    assert tuple(time_of(pipeline, side) for side in pipeline.sides) == world.times
    assert tuple(side.format for side in pipeline.sides) == world.formats
    assert tuple(side.key_format for side in pipeline.sides) == world.key_formats
    assert tuple(side.payload_from or side.payload for side in pipeline.sides) == world.payloads
    assert (pipeline.key_text, pipeline.key_order) == (world.key_text, world.key_order)
    assert tuple(side.only for side in pipeline.sides) == world.only
    assert [(side.schema, side.message) for side in pipeline.sides] == [
        (file and file.text, file and file.message) for file in world.files
    ]
    assert [share.ratio for share in made.shares] == pytest.approx(truth, abs=0.03)
    farthest = max(abs(world.skew_ms), abs(world.skew_ms + world.lag_ms))
    assert 0.98 * farthest <= pipeline.tolerance_ms <= 2.5 * farthest
    assert world.skew_ms <= made.found.durations.skew <= world.skew_ms + world.lag_ms


@pytest.mark.parametrize("name", APART)
def test_where_nothing_pairs_it_says_so_and_names_what_it_looked_at(name):
    with pytest.raises(NoProposal, match=r"calls.ended: \d+ records, fields user1, user2, ") as why:
        proposal(APART[name])
    assert "\n" not in str(why.value)


def test_a_field_that_holds_two_joined_is_named_for_no_setting_takes_it_apart():
    for sides, words in (
        ((joined, plain_right), "pair of the left side is user1 and user2 of the right side, joined by ':'"),
        ((plain_left, joined), "pair of the right side is user1 and user2 of the left side, joined by ':'"),
    ):
        with pytest.raises(NoProposal, match=f"nothing pairs: {words}, and no setting takes a field apart") as why:
            proposal(World(*sides))
        assert "\n" not in str(why.value)


def test_of_kinds_of_which_some_pair_the_figures_are_said():
    made, _ = proposal(WORLDS["kinds of which one pairs"])
    (line,) = (line for line in made.text.split("\n") if line.startswith("# only: "))
    paired, whole, others = re.fullmatch(
        r"# only: of the kinds by type, call_ended \((\d+) of (\d+)\) have a partner; not (.*)", line
    ).groups()
    assert 0.9 < int(paired) / int(whole) < 1 and re.findall(r"\w+ \(\d of \d{3}\)", others) == others.split(", ")
    assert "# - `only` of left is a proposal" in made.text and set(made.shares[0].rejected) == {"filtered"}


def test_too_few_values_in_common_are_not_called_none():
    few = [
        sample(topic, [Sent({"region": ["eu", "us"][n % 2], "timestamp": NOW + n}, NOW + n) for n in range(20)])
        for topic in "ab"
    ]
    with pytest.raises(
        NoProposal, match="no fields of the two topics have enough values in common to name a pair: at least 3"
    ):
        propose((few[0], few[1]), None, NOW, "calls", "compounds")


def test_the_sample_traffic_with_its_faulty_events_is_described_as_the_shipped_file_does():
    now = NOW + HOUR
    traffic = generate(CALLS, 600, 1, now).records
    samples = [
        sample(side.topic, [Sent(each.value, each.timestamp, each.key) for each in traffic if each.topic == side.topic])
        for side in CALLS.sides
    ]
    made = propose((samples[0], samples[1]), None, now + HOUR, "calls", CALLS.output_topic)
    assert replace(CALLS, schedule=made.pipeline.schedule, quality=made.pipeline.quality) == replace(
        made.pipeline, tolerance_ms=60_000, gap_ms=60_000, grace_ms=180_000
    )
    assert 60_000 <= made.pipeline.tolerance_ms <= 120_000
    assert min(share.ratio for share in made.shares) > 0.9
    assert "malformed_json" in made.shares[0].rejected
