"""What docs/gallery.md shows of each example is what today's generator and today's pipeline files lead to, from the moment of that demo."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import accumulate

import pytest

from include.config.pipeline import Pipeline
from include.local.demo import CALLS
from include.local.machine import EXAMPLES as NAMES
from include.sample.examples import EXAMPLES
from include.sample.truth import EQUAL, ExpectedState, Verdict, expected
from tests.helpers.gallery_page import came_out, shown


def clock_of(truth: list[str], published: int) -> int:
    """One at which so many compounds are published (ms)."""
    closing = sorted(
        (int(line["closes_after"]), len(line["compounds"])) for line in map(json.loads, truth) if "events" in line
    )
    totals = accumulate(count for _, count in closing)
    return next(ms for (ms, _), total in zip(closing, totals, strict=True) if total == published) + 1


def lines(state: ExpectedState) -> list[str]:
    """The state as a demo prints it, without examples of compounds."""
    kinds: Counter[str] = Counter(kind for kind, _ in state.compounds.elements())
    reasons: Counter[str] = Counter(reason for reason, _, _ in state.rejected.elements())
    return Verdict(None, dict(kinds), dict(reasons), state.open.total(), [], 0, []).lines()


def steps(example: str) -> list[tuple[Pipeline, list[str], ExpectedState]]:
    """Each pipeline of the example, with the lines that the page shows of it and what the truth demands there."""
    text = shown(example)
    (now_ms,) = {int(ms) for ms in re.findall(r"\.1\.(\d{13})\.", text)}
    of_example, before, result = EXAMPLES[example], None, []
    parts = text.split("\n\n")
    ids = range(1, len(of_example.schemas) + 1)
    for pipeline, sample, part in zip(
        of_example.pipelines, of_example.samples(CALLS, 1, now_ms, None, ids), parts, strict=True
    ):
        printed = [line for line in part.split("\n") if line != pipeline.name]
        published = int(re.findall(r"published: ([\d,]+)", part)[0].replace(",", ""))
        clock = clock_of(sample.truth, published)
        result.append((pipeline, printed, expected(sample.truth, pipeline, clock, before)))
        before = clock
    return result


@pytest.mark.parametrize("example", NAMES[1:])
def test_the_page_shows_what_the_truth_demands(example: str) -> None:
    for pipeline, printed, state in steps(example):
        counts = [line for line in printed if line != EQUAL and not line.startswith("one ")]
        assert counts == lines(state)[:3], pipeline.name
        examples = [line.removeprefix("one ").split(": ", 1) for line in printed if line.startswith("one ")]
        assert [kind for kind, _ in examples] == ["left_only", "pair", "right_only"]
        for kind, value in examples:
            whole = value.removesuffix("…")
            assert any(of == kind and text.startswith(whole) for of, text in state.compounds), value


def test_the_end_of_a_demo_is_what_it_prints_below_done() -> None:
    printed = "  1 s  done; read back from …:\n\n  published: 1\n  one pair: {}\n\n  Airflow         http://…\n"
    assert came_out(printed) == "published: 1\none pair: {}"
    chain = printed.replace("published", "first\n  published", 1).replace("{}\n", "{}\n\n  second\n  open: 2\n", 1)
    assert came_out(chain) == "first\npublished: 1\none pair: {}\n\nsecond\nopen: 2"
    with pytest.raises(ValueError, match="no demo"):
        came_out("the run failed")
