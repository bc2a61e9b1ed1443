"""The OpenMetrics text, read by a parser that follows the published grammar to the letter."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from include.config.health import Acknowledgement, Lag, Problem, State
from spark_jobs.quality import metrics_text
from spark_jobs.quality import trend as trends
from spark_jobs.quality.catalogue import MEANINGS, Meaning
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.trend import Trend
from spark_jobs.quality.windows import windows_of
from tests.helpers.batch_history import history

# https://prometheus.io/docs/specs/om/open_metrics_spec/, section "ABNF", as far as it concerns gauges and counters.
NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*"
TEXT = r'(?:[^\n"\\]|\\["n\\])*'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
DESCRIPTOR = re.compile(rf"# (TYPE|UNIT|HELP) ({NAME})(?: (.*))?")
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{LABEL}="{TEXT}"(?:,(?!\}})|(?=\}})))*)\}})? ({NUMBER})')
RESERVED = ("_total", "_count", "_sum", "_bucket", "_created", "_info", "_gcount", "_gsum")


def parse(text):
    """Family -> {labels: value}; asserts whatever the standard demands of an exposition of gauges and counters."""
    assert text.endswith("# EOF\n") and text.splitlines().count("# EOF") == 1 and "\n\n" not in text
    families, told, current = {}, {}, None
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("#"):
            what, name, rest = DESCRIPTOR.fullmatch(line).groups()
            if name != current:
                assert name not in families, f"{name} is interleaved"
                families[name], told[name], current = {}, {}, name
            assert what not in told[name] and not families[name], f"{line}: once, and before the samples"
            told[name][what] = rest
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            end = "_total" if told.get(current, {}).get("TYPE") == "counter" else ""
            assert name == f"{current}{end}", f"{line} is none of {current}'s"
            name = current
            pairs = re.findall(rf'({LABEL})="({TEXT})"', labels or "")
            assert len({label for label, _ in pairs}) == len(pairs) and tuple(pairs) not in families[name]
            families[name][tuple(pairs)] = float(value)
    for name, known in told.items():
        assert known["TYPE"] in ("gauge", "counter") and known.get("HELP") and families[name]
        assert re.fullmatch(r'(?:[^\n"\\]|\\["n\\])*', known["HELP"])
        assert not known.get("UNIT") or name.endswith(f"_{known['UNIT']}")
        assert not name.endswith(RESERVED), f"{name} would mean something else"
    return families


def of(batches, pipeline="calls"):
    trend = Trend(pipeline)
    trend.add(batches)
    return parse(metrics_text.exposition(trend))


def test_the_numbers_are_those_of_the_newest_batch():
    batches = history(40)
    found, newest = of(batches), batches[-1].metrics
    pipeline = ("pipeline", "calls")
    assert found["event_pairing_batch"] == {(pipeline, ("kind", "live")): 40}
    assert found["event_pairing_batch_wall_time_seconds"] == {(pipeline,): batches[-1].steps["paired"].wall_time / 1000}
    for name in ("landed", "pair", "left_only", "backlog", "open_after"):
        assert found[f"event_pairing_{name}"] == {(pipeline,): newest[name]}
    assert found["event_pairing_orphan_ratio"][(pipeline,)] == pytest.approx(newest["orphan_ratio"], abs=1e-6)
    reasons = {labels[1][1]: value for labels, value in found["event_pairing_rejected_by_reason"].items()}
    assert reasons == {
        name.removeprefix("rejected_"): count for name, count in newest.items() if name.startswith("rejected_")
    }
    assert sum(reasons.values()) == found["event_pairing_rejected"][(pipeline,)]


def test_the_state_and_its_windows_stand_beside_them():
    trend, pipeline = Trend("calls"), ("pipeline", "calls")
    trend.add(history(400))
    windows, hours = windows_of(trend)
    said = Acknowledgement(by="ann", at=9.0, note="known")
    problems = (
        Problem(name="lost", severity="warning", text="x", batch=7, since=1_000.0, last=1_000.0),
        Problem(name="orphan_ratio", severity="failed", text="x", batch=8, since=2_000.0, last=2_000.0, acknowledged=said),
    )
    lag = Lag(unread=12, oldest_unread=1_234.5)
    state = State(pipeline="calls", at=9.0, batch=400, problems=problems, windows=windows, hours=hours, lag=lag)
    found = parse(metrics_text.exposition(trend, state))
    assert found["event_pairing_state"] == {(pipeline,): 1}
    assert found["event_pairing_problem_since_seconds"] == {
        (pipeline, ("problem", "lost"), ("severity", "warning"), ("acknowledged", "false")): 1_000,
        (pipeline, ("problem", "orphan_ratio"), ("severity", "failed"), ("acknowledged", "true")): 2_000,
    }
    hour, day = (found["event_pairing_in_window"][(pipeline, ("window", name), ("of", "pair"))] for name in ("1h", "24h"))
    assert 0 < hour < day == sum(each.pair for each in hours)
    assert found["event_pairing_unread"] == {(pipeline,): 12}
    assert found["event_pairing_oldest_unread_seconds"] == {(pipeline,): 1_234.5}
    assert "event_pairing_oldest_open_seconds" not in found


def test_a_counter_never_goes_back_though_the_trend_drops_its_oldest_batches(monkeypatch):
    monkeypatch.setattr(trends, "KEPT", 7)
    trend, batches, totals = Trend("calls"), history(30), []
    for batch in batches:
        trend.add([batch])
        found = parse(metrics_text.exposition(trend))["event_pairing_all_batches"]
        totals.append(found[(("pipeline", "calls"), ("of", "landed"))])
    assert totals == sorted(totals) and totals[-1] == sum(batch.metrics["landed"] for batch in batches)


def test_milliseconds_become_seconds_and_histograms_stay_out():
    (batch,) = history(1)
    batch = replace(
        batch,
        metrics={**batch.metrics, "skew_median": -1500.0, "something_new": 7.0},
        breakdowns=[Breakdown("miss_left", 3, 100)],
    )
    found = of([batch])
    assert list(found["event_pairing_skew_median_seconds"].values()) == [-1.5]
    assert list(found["event_pairing_something_new"].values()) == [7]
    assert not [name for name in found if "miss" in name]


def test_before_the_first_batch_there_is_only_the_end():
    assert of([]) == {}


def test_hostile_text_stays_in_its_place():
    lines = metrics_text.family(
        "x", Meaning('a "b"\n# EOF \\'), {f'p="{metrics_text.escaped(chr(34) + chr(10) + chr(92))}"': math.pi}
    )
    (labels,) = parse("".join(f"{line}\n" for line in [*lines, "# EOF"]))["event_pairing_x"]
    assert labels == (("p", r"\"\n\\"),)


def test_every_unit_is_one_of_prometheus():
    assert {known.unit for known in MEANINGS.values()} <= {"", "seconds", "ratio"}


@pytest.mark.parametrize(
    "wrong",
    ["# TYPE a gauge\n# HELP a b\na 1\n", "a 1\n# EOF\n", "# TYPE a gauge\n# HELP a b\na{x=\"1\",} 1\n# EOF\n", "# EOF\n# EOF\n",
     "# TYPE a gauge\n# UNIT a seconds\n# HELP a b\na 1\n# EOF\n", "# TYPE a gauge\n# HELP a b\na 1\n# HELP a b\n# EOF\n"],
)  # fmt: skip
def test_the_parser_is_strict(wrong):
    with pytest.raises((AssertionError, AttributeError)):
        parse(wrong)
