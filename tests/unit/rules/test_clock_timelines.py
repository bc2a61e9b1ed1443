"""The clock of a batch and the rules together: what is read, silent or still waiting decides what is closed."""

from collections import Counter

import pytest

from tests.helpers.clock_cases import CLOCKS, MINUTE


@pytest.mark.parametrize("case", CLOCKS.values(), ids=CLOCKS)
def test_clock_timeline(case):
    stream = case.stream
    batches = stream.play(case.plans(stream))
    found = [(batch.rules.clock, Counter(batch.outcomes.column("outcome").to_pylist())) for batch in batches]
    assert found == [(None if clock is None else clock * MINUTE, told) for clock, told in case.told]


def test_the_rejected_event_of_ten_years_ahead_is_there():
    case = CLOCKS["an event stamped ten years ahead moves no clock"]
    (first, *_) = case.stream.play(case.plans(case.stream))
    assert [problem for problem in first.messages.column("problem").to_pylist() if problem] == ["future"]
