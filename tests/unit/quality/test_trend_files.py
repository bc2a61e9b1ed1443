"""The OpenMetrics text, read by a parser that follows the published grammar to the letter."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from spark_jobs.quality import trend_files
from spark_jobs.quality.catalogue import MEANINGS, Meaning
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.trend import Trend
from tests.helpers.batch_history import history

# https://prometheus.io/docs/specs/om/open_metrics_spec/, section "ABNF", as far as it concerns gauges.
NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*"
TEXT = r'(?:[^\n"\\]|\\["n\\])*'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
DESCRIPTOR = re.compile(rf"# (TYPE|UNIT|HELP) ({NAME})(?: (.*))?")
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{LABEL}="{TEXT}"(?:,(?!\}})|(?=\}})))*)\}})? ({NUMBER})')
RESERVED = ("_total", "_count", "_sum", "_bucket", "_created", "_info", "_gcount", "_gsum")


def parse(text):
    """Family -> {labels: value}; asserts whatever the standard demands of an exposition of gauges."""
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
            assert name == current, f"{line} is none of {current}'s"
            pairs = re.findall(rf'({LABEL})="({TEXT})"', labels or "")
            assert len({label for label, _ in pairs}) == len(pairs) and tuple(pairs) not in families[name]
            families[name][tuple(pairs)] = float(value)
    for name, known in told.items():
        assert known["TYPE"] == "gauge" and known.get("HELP") and families[name]
        assert re.fullmatch(r'(?:[^\n"\\]|\\["n\\])*', known["HELP"])
        assert not known.get("UNIT") or name.endswith(f"_{known['UNIT']}")
        assert not name.endswith(RESERVED), f"{name} would mean something else"
    return families


def of(batches, pipeline="calls"):
    trend = Trend(pipeline)
    trend.add(batches)
    return parse(trend_files.exposition(trend))


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
    lines = trend_files.family(
        "x", Meaning('a "b"\n# EOF \\'), {f'p="{trend_files.escaped(chr(34) + chr(10) + chr(92))}"': math.pi}
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
