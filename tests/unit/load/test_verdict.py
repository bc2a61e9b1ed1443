"""The verdict on a made-up run of an hour: all laws hold, and each one falls when what it guards is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.load.samples import ROLES, WORKERS, Sample, Size
from tests.load.seen import Kill, Run, Seen
from tests.load.verdict import drawn, judged, laws

RATE = 10_000.0
HOUR = 3600.0


def sample(at, lag=None, **sizes):
    """Steady: a saw of up to 1.3 minutes of traffic, memory and handles that swing, and disk that grows with the records."""
    records = int(RATE * at)
    unread = RATE * (5 + at % 70) if lag is None else lag * 60 * RATE
    size = Size(3, int(800e6 + 1e6 * (at % 50)), 120 + int(at) % 7)
    return Sample(at, records, int(unread), dict.fromkeys(ROLES, size) | sizes, 100 * records, 300 * records)


def seen(**changes):
    """An hour with a live run each minute, twenty others, and two kills after it."""
    live = {f"calls {at}": Run("calls", "scheduled", "success", at, at + 48.0 + at % 9) for at in range(0, 3540, 60)}
    others = {f"calls_replay {at}": Run("calls_replay", "manual", "success", at, at + 40.0) for at in range(0, 3500, 180)}
    made = Seen("calls", RATE, [sample(at * 10.0) for at in range(400)], live | others)
    made.beside = [(at, ("maintenance", "replay", "backfill")[at // 180 % 3]) for at in range(0, 3500, 180)]
    made.kills, made.came_back = [Kill(3700.0, "the broker", 90.0), Kill(3850.0, "pair_events", 70.0)], True
    return replace(made, **changes)


def broken(made):
    """The names of the laws that do not hold."""
    return [law.name for law in laws(judged(made, 0.0, HOUR), made) if law.held is False]


def test_every_law_of_a_steady_hour_is_judged_and_holds():
    made = seen()
    verdicts = {law.name: law.held for law in laws(judged(made, 0.0, HOUR), made)}
    assert set(verdicts.values()) == {True} and len(verdicts) == 2 * len(ROLES) + 10


def bent(change):
    """The samples, each changed by `change(sample, hours)`."""
    return [change(each, each.at / HOUR) for each in seen().samples]


def larger(role, memory=0.0, handles=0.0, processes=0.0):
    def change(each, hours):
        size = each.sizes[role]
        grown = Size(
            size.processes + int(processes * hours), int(size.memory + memory * hours), size.handles + int(handles * hours)
        )
        return each._replace(sizes=each.sizes | {role: grown})

    return bent(change)


def with_run(**changes):
    """One live run in the middle is another one."""
    runs = seen().runs
    return runs | {"calls 1800": runs["calls 1800"]._replace(**changes)}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"samples": bent(lambda each, hours: each._replace(sent=int(each.sent * 0.96)))}, ["sent"]),
        (
            {"samples": [*seen().samples[:200], sample(2000.0, lag=3.1), *seen().samples[201:]]},
            ["lag, in minutes of traffic"],
        ),
        (
            {"samples": bent(lambda each, hours: each._replace(unread=int(each.unread + hours * 60 * RATE)))},
            ["lag, in minutes of traffic, by a line"],
        ),
        ({"runs": with_run(state="failed")}, ["runs"]),
        ({"samples": larger("triggerer", memory=130e6)}, ["memory: triggerer"]),
        ({"samples": larger("broker", handles=20)}, ["file handles: broker"]),
        ({"samples": larger(WORKERS, processes=3)}, [f"processes: {WORKERS}"]),
        (
            {"samples": bent(lambda each, hours: each._replace(warehouse=int(each.warehouse * (1 + hours))))},
            ["disk: tables"],
        ),
        ({"samples": bent(lambda each, hours: each._replace(broker=int(each.broker * (1 + hours))))}, ["disk: broker"]),
        ({"kills": [Kill(3700.0, "the broker", None)]}, ["after each kill -9"]),
        ({"came_back": False}, ["lag after the last kill"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_law_falls_alone(changes, names):
    assert broken(seen(**changes)) == names


def test_runs_that_take_longer_and_longer_are_seen():
    runs = {name: run._replace(ended=run.ended + run.began / 150) for name, run in seen().runs.items()}
    assert broken(seen(runs=runs)) == ["time of a live run"]


def test_the_first_minutes_and_the_kills_are_not_judged():
    wild = [sample(at * 10.0, lag=9.0) for at in range(60)], [sample(3610.0 + at, lag=9.0) for at in range(5)]
    made = seen(samples=[*wild[0], *seen().samples[61:361], *wild[1]])
    assert broken(made) == []


def test_where_no_run_has_ended_runs_are_not_judged():
    made = seen(runs={})
    assert {law.name: law.held for law in laws(judged(made, 0.0, HOUR), made)}["runs"] is None


def test_the_picture_has_what_was_seen():
    made = seen()
    svg = drawn(made, judged(made, 0.0, HOUR), 0.0)
    for text in (
        "10,000 records a second for 60 minutes",
        "Lag, ",
        "Spark server",
        "Disk, GB",
        "kill -9",
        "backfill",
        "0 min",
    ):
        assert text in svg
    assert svg.count("<polyline") > 8
