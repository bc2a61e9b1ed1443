"""The traffic of chains is what its docstring says, and its answers are judged by hand-made outputs."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.benches.chains import Answers, Chains
from tests.benches.traffic import bodies
from tests.helpers.timeline import CALLS

NOW = 1_800_000_000_000


def test_one_call_in_five_is_in_a_chain_and_every_event_is_there_once():
    made = Chains.make(98_000, NOW)
    assert len(made.ts) == 98_000 and made.pairs == 48_000 and len(np.unique(made.call)) == 50_000
    assert len(np.unique(2 * made.call + made.side)) == 98_000
    assert (np.diff(made.ts) >= 0).all() and made.ts[-1] <= NOW - 9 * 60_000
    assert 0.19 < made.in_chains(CALLS.gap_ms) < 0.24


def test_any_number_of_events_is_made_exactly():
    assert [len(Chains.make(events, NOW).ts) for events in (1, 99, 12_345)] == [1, 99, 12_345]


def test_chains_are_sessions_of_several_calls_within_the_gap():
    # The second call begins at the end of the gap behind the first one, the third a millisecond later; the fourth is another pair's.
    made = Chains(
        side=np.array([0, 1, 0, 1, 0, 1, 0, 1]),
        key=np.array([0, 0, 0, 0, 0, 0, 1, 1]),
        call=np.array([0, 0, 1, 1, 2, 2, 3, 3]),
        ts=np.array([0, 10, 60_010, 60_020, 120_021, 120_030, 5, 6]),
    )
    assert made.in_chains(60_000) == 0.5


def test_both_sides_of_a_call_have_its_id():
    table = pa.concat_tables(Chains.make(980, NOW).tables())
    ids = []
    for side, name in enumerate(("analytics", "metrics")):
        _, values = bodies(table.filter(pc.equal(table["side"], side)), CALLS, side)
        ids.append({json.loads(value)[name]["id"] for value in values.to_pylist()})
    assert (len(ids[0]), len(ids[1]), len(ids[0] & ids[1])) == (490, 490, 480)


def test_answers_tell_right_mixed_missing_and_repeated_ones():
    left, right = np.array([1, 2, 3, 3, -1]), np.array([1, 4, -1, 3, 5])
    # Right: call 1, and call 3, whose left half came alone, too. Mixed: 2 with 4. One half of seven never came.
    assert Answers.judge(left, right, 8) == Answers(right_pairs=2, mixed=1, missing=1, repeated=1)
