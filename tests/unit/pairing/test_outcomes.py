"""All rules together on random traffic: nothing is lost, and neither order nor neighbours nor cuts matter."""

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.batch_rules import batch_rules
from spark_jobs.pair_events import complete_keys
from spark_jobs.pairing.conservation import BrokenInvariant, check_conservation
from spark_jobs.pairing.outcomes import decide_outcomes, outcome_schema
from spark_jobs.pairing.rules import event_schema
from tests.timeline import SMALL

KEY = ("user1", "user2")


def table(events):
    """Events as (user, side, ts, payload, is_open); offsets count up."""
    rows = [
        dict(
            user1=user, user2="v", side=side, partition=0, offset=offset, ts=ts, payload=payload, batch_id=1, is_open=is_open
        )
        for offset, (user, side, ts, payload, is_open) in enumerate(events)
    ]
    return pa.Table.from_pylist(rows, schema=event_schema(KEY))


def rows(outcomes):
    return Counter(tuple(row.items()) for row in outcomes.to_pylist())


events = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 1_500), st.sampled_from(["1", "2", None]), st.booleans()
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(events, st.integers(0, 3_000), st.integers(0, 3_000), st.sampled_from(["one_to_one", "collapse"]), st.booleans())
def test_every_event_is_in_exactly_one_row(drawn, clock, earlier, matching, drop):
    pipeline = replace(SMALL, matching=matching, drop_duplicates=drop)
    given_events = table(drawn)
    outcomes = decide_outcomes(given_events, batch_rules(pipeline, max(clock, earlier), earlier))
    seen = Counter()
    for row in outcomes.to_pylist():
        for number, side in enumerate(("left", "right")):
            if row[f"{side}_offset"] is not None:
                seen[(number, row[f"{side}_offset"], row[f"{side}_ts"], row[f"{side}_payload"], row["user1"])] += 1
    assert seen == Counter((r["side"], r["offset"], r["ts"], r["payload"], r["user1"]) for r in given_events.to_pylist())


@settings(max_examples=200, deadline=None)
@given(events, st.integers(0, 3_000), st.randoms(use_true_random=False))
def test_order_and_neighbours_do_not_matter(drawn, clock, random):
    rules, given_events = batch_rules(SMALL, clock, 0), table(drawn)
    whole = rows(decide_outcomes(given_events, rules))
    shuffled = list(range(len(drawn)))
    random.shuffle(shuffled)
    assert rows(decide_outcomes(given_events.take(pa.array(shuffled, pa.int64())), rules)) == whole
    each = Counter()
    for user in "abc":
        mine = [i for i, event in enumerate(drawn) if event[0] == user]
        each += rows(decide_outcomes(given_events.take(pa.array(mine, pa.int64())), rules))
    assert each == whole


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 7), st.integers(1, 12))
def test_complete_keys_never_split_a_key(users, rows_a_batch, rows_at_once):
    ordered = table([(user, 0, 0, None, False) for user in sorted(users)])
    groups = list(complete_keys(ordered.to_batches(max_chunksize=rows_a_batch), KEY, rows_at_once))
    assert [row for group in groups for row in group.to_pylist()] == ordered.to_pylist()
    held = [set(group.column("user1").to_pylist()) for group in groups]
    assert all(not one & other for n, one in enumerate(held) for other in held[n + 1 :])


def test_no_events_no_rows():
    assert decide_outcomes(table([]), batch_rules(SMALL, 5, None)).schema == outcome_schema(KEY)


@pytest.mark.parametrize("missing", ["pair", "left_only", "duplicate", "late", "open", "collapsed", "right_only"])
def test_conservation_notices_a_missing_row(missing):
    outcomes = dict.fromkeys(("pair", "left_only", "duplicate", "late", "open", "collapsed", "right_only"), 1)
    check_conservation(3, 5, outcomes)
    with pytest.raises(BrokenInvariant, match="8 events in"):
        check_conservation(3, 5, outcomes | {missing: 0})


def test_the_law_does_not_count_pairs_once():
    with pytest.raises(BrokenInvariant):
        check_conservation(0, 1, {"pair": 1})


def test_an_open_event_is_never_late_even_if_a_shorter_grace_says_its_session_was_over():
    opened, fresh = (
        decide_outcomes(table([("a", 0, 0, "1", is_open)]), batch_rules(SMALL, 5_000, 5_000)) for is_open in (True, False)
    )
    assert opened.column("outcome").to_pylist() == ["left_only"]
    assert fresh.column("outcome").to_pylist() == ["late"]
