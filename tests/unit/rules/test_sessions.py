"""Where chains of events are cut, on many boundaries at once."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.rules.rules import Rules
from spark_jobs.rules.sessions import cut_sessions
from tests.helpers.timeline import SMALL

steps = st.lists(st.integers(0, 4), max_size=30)


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, max_size=4), st.integers(1, 4), st.integers(1, 9))
def test_cut_at_keys_silences_and_max_session(keys, gap, max_session):
    key = [number for number, of_key in enumerate(keys) for _ in of_key]
    ts = [at for of_key in keys for at in np.cumsum(of_key).tolist()]
    rules = Rules(replace(SMALL, gap_ms=gap, max_session_ms=max_session), None, None)
    found = cut_sessions(np.array(key, dtype=np.int64), np.array(ts, dtype=np.int64), np.zeros(len(ts), dtype=bool), rules)
    start, number, expected = ts[:1], 0, [0] if ts else []
    for (one, before), (other, at) in pairwise(zip(key, ts, strict=True)):
        if one != other or at - before > gap or at - start[0] > max_session:
            number, start = number + 1, [at]
        expected.append(number)
    assert found.number.tolist() == expected
    assert found.start.tolist() == [ts[expected.index(session)] for session in range(len(found.start))]
    assert found.end.tolist() == [ts[len(ts) - 1 - expected[::-1].index(session)] for session in range(len(found.end))]
