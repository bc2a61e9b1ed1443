"""All rules together on random traffic: nothing is lost, and neither order nor neighbours nor cuts matter."""

from collections import Counter
from dataclasses import replace
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.rules import outcomes as kernel
from spark_jobs.rules.conservation import BrokenInvariant, check_conservation
from spark_jobs.rules.event_order import order_events
from spark_jobs.rules.key_order import order_keys
from spark_jobs.rules.outcomes import decide_outcomes, outcome_schema
from spark_jobs.rules.rules import LEFT, RIGHT, Rules, event_schema
from spark_jobs.rules.side_topics import SideTopics, pack, unpack
from spark_jobs.stages.pairing_input import KEY_HASH, PACKED, complete_keys, decide_keys
from tests.helpers.reference_pairing import slow_outcomes
from tests.helpers.timeline import SMALL

KEY = ("user1", "user2")
ANY_ORDER = replace(SMALL, key_order="any")


def table(events):
    """Events as (user, side, ts, payload, is_open); offsets count up."""
    rows = [
        dict(
            user1=user, user2="v", side=side, partition=0, offset=offset, ts=ts, payload=payload, batch_id=1, is_open=is_open
        )
        for offset, (user, side, ts, payload, is_open) in enumerate(events)
    ]
    return pa.Table.from_pylist(rows, schema=event_schema(SMALL))


def rows(outcomes):
    return Counter(tuple(row.items()) for row in outcomes.to_pylist())


events = st.lists(
    st.tuples(
        st.sampled_from("axz"), st.integers(0, 1), st.integers(0, 1_500), st.sampled_from(["1", "2", None]), st.booleans()
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(events, st.integers(0, 3_000), st.integers(0, 3_000), st.sampled_from(["one_to_one", "collapse"]), st.booleans())
def test_every_event_is_in_exactly_one_row(drawn, clock, earlier, matching, drop):
    pipeline = replace(SMALL, matching=matching, drop_duplicates=drop)
    given_events = table(drawn)
    outcomes = decide_outcomes(given_events, Rules(pipeline, max(clock, earlier), earlier))
    seen = Counter()
    for row in outcomes.to_pylist():
        for number, side in enumerate(("left", "right")):
            if row[f"{side}_offset"] is not None:
                seen[(number, row[f"{side}_offset"], row[f"{side}_ts"], row[f"{side}_payload"], row["user1"])] += 1
    assert seen == Counter((r["side"], r["offset"], r["ts"], r["payload"], r["user1"]) for r in given_events.to_pylist())


@settings(max_examples=200, deadline=None)
@given(events, st.integers(0, 3_000), st.randoms(use_true_random=False))
def test_order_and_neighbours_do_not_matter(drawn, clock, random):
    rules, given_events = Rules(SMALL, clock, 0), table(drawn)
    whole = rows(decide_outcomes(given_events, rules))
    shuffled = list(range(len(drawn)))
    random.shuffle(shuffled)
    assert rows(decide_outcomes(given_events.take(pa.array(shuffled, pa.int64())), rules)) == whole
    each = Counter()
    for user in "axz":
        mine = [i for i, event in enumerate(drawn) if event[0] == user]
        each += rows(decide_outcomes(given_events.take(pa.array(mine, pa.int64())), rules))
    assert each == whole


@settings(max_examples=100, deadline=None)
@given(events, st.integers(0, 3_000), st.sampled_from([SMALL, ANY_ORDER]), st.randoms(use_true_random=False))
def test_keys_that_share_a_hash_are_decided_like_others(drawn, clock, pipeline, random):
    rules, given_events = Rules(pipeline, clock, 0), order_keys(table(drawn), pipeline)
    directions = given_events["reversed"].to_pylist() if pipeline is ANY_ORDER else [0] * len(drawn)
    numbers = zip(*(given_events[name].to_pylist() for name in ("batch_id", "partition", "is_open", "side")), strict=True)
    packed = [
        (batch_id << 34) + (partition << 3) + (is_reversed << 2) + (is_open << 1) + side
        for (batch_id, partition, is_open, side), is_reversed in zip(numbers, directions, strict=True)
    ]
    columns = [*KEY, "offset", "ts", "payload"]
    one_hash = given_events.select(columns).append_column(PACKED, pa.array(packed, pa.int64()))
    one_hash = one_hash.append_column(KEY_HASH, pa.array([7] * len(drawn), pa.int64()))
    random.shuffle(order := list(range(len(drawn))))
    batches = one_hash.take(pa.array(order, pa.int64())).to_batches(max_chunksize=3)
    decided = [row for batch, known in decide_keys(batches, rules) for row in batch.to_pylist() if known is None]
    whole = decide_outcomes(given_events, rules)
    assert rows(pa.Table.from_pylist(decided, whole.schema)) == rows(whole)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from("abcdef"), max_size=40), st.integers(1, 7), st.integers(1, 12), st.sampled_from([1, 300, 10**9])
)
def test_complete_keys_never_split_a_key(users, rows_a_batch, rows_at_once, bytes_at_once):
    ordered = table([(user, 0, 0, None, False) for user in sorted(users)])
    batches = ordered.to_batches(max_chunksize=rows_a_batch)
    groups = list(complete_keys(batches, KEY, rows_at_once, bytes_at_once))
    assert [row for group in groups for row in group.to_pylist()] == ordered.to_pylist()
    held = [Counter(group.column("user1").to_pylist()) for group in groups]
    assert all(not one & other for n, one in enumerate(held) for other in held[n + 1 :])
    # No table waits for more than its last key to be complete once it is large enough.
    if rows_at_once == 1 or bytes_at_once == 1:
        assert all(group.total() <= rows_a_batch + max(group.values()) for group in held)


def named(outcomes):
    """Outcome rows as the reference tells them."""
    told = Counter()
    for row in outcomes.to_pylist():
        sides = [
            None
            if row[f"{name}_offset"] is None
            else (
                *(row["user1"], row["user2"], side, row[f"{name}_partition"], row[f"{name}_offset"]),
                *([row[f"{name}_reversed"]] if f"{name}_reversed" in row else []),
            )
            for side, name in ((LEFT, "left"), (RIGHT, "right"))
        ]
        told[(row["outcome"], *sides)] += 1
    return told


def sides_in_order(left_topic_first):
    """SMALL with its sides' topics in this order, or in the other."""
    first, second = sorted(side.topic for side in SMALL.sides)
    left, right = (first, second) if left_topic_first else (second, first)
    return replace(SMALL, left=replace(SMALL.left, topic=left), right=replace(SMALL.right, topic=right))


clocks = st.none() | st.integers(0, 400)
any_pipeline = st.builds(
    replace,
    st.booleans().map(sides_in_order),
    tolerance_ms=st.integers(0, 40),
    gap_ms=st.integers(1, 40),
    grace_ms=st.integers(0, 60),
    max_session_ms=st.integers(1, 60),
    matching=st.sampled_from(["one_to_one", "one_to_one", "collapse"]),
    drop_duplicates=st.booleans(),
)
any_rules = st.builds(Rules, any_pipeline, clock=clocks, previous_clock=clocks)


@st.composite
def dense_events(draw):
    """Rows of `event_schema`, many of one timestamp, scattered over partitions; a place is used once."""
    end = draw(st.sampled_from([5, 60, 300]))
    event = st.tuples(
        st.sampled_from(["a", "a-b"]),
        st.sampled_from(["b-c", "c"]),
        st.sampled_from([LEFT, RIGHT]),
        st.integers(0, end),
        st.sampled_from(["1", "2", None, "x" * 1_001, "y" * 1_001]),
        st.booleans(),
    )
    drawn = draw(st.lists(event, max_size=draw(st.sampled_from([8, 60]))))
    places = draw(st.permutations(range(len(drawn))))
    return [
        dict(zip(("user1", "user2", "side", "ts", "payload", "is_open"), values, strict=True))
        | {"partition": place % 3, "offset": place // 3, "batch_id": 1}
        for values, place in zip(drawn, places, strict=True)
    ]


@settings(max_examples=1_000, deadline=None)
@given(dense_events(), any_rules)
def test_outcomes_are_those_of_the_rules_word_for_word(drawn, rules):
    decided = decide_outcomes(pa.Table.from_pylist(drawn, schema=event_schema(SMALL)), rules)
    assert named(decided) == slow_outcomes(drawn, rules)


@st.composite
def topics_of_sides(draw):
    """Up to five topics, those of one side anywhere among those of the other."""
    names = sorted(draw(st.sets(st.sampled_from("abcde"), min_size=2)))
    left = draw(st.sets(st.sampled_from(names), min_size=1, max_size=len(names) - 1))
    return SideTopics(tuple(sorted(left)), tuple(sorted({*names} - left)))


def numbered(events, topics):
    """Events with a `topic`, as rows of `event_schema`."""
    rows = []
    for event in events:
        place = pa.array([event["topic"]]), pa.array([event["partition"]], pa.int32())
        rows.append(event | {"partition": pack(topics[event["side"]], *place)[0].as_py()})
    return pa.Table.from_pylist(rows, schema=event_schema(SMALL))


@settings(max_examples=500, deadline=None)
@given(dense_events(), any_rules, topics_of_sides(), st.data())
def test_outcomes_are_those_of_the_rules_with_several_topics_a_side(drawn, rules, topics, data):
    drawn = [event | {"topic": data.draw(st.sampled_from(topics[event["side"]]))} for event in drawn]
    found = Counter()
    for row in decide_outcomes(numbered(drawn, topics), replace(rules, read=topics)).to_pylist():
        sides = [None, None]
        for number, side in enumerate(("left", "right")):
            if row[f"{side}_offset"] is not None:
                place = unpack(topics[number], pa.array([row[f"{side}_partition"]], pa.int32()))
                sides[number] = (
                    *(row[name] for name in KEY),
                    number,
                    *(each[0].as_py() for each in place),
                    row[f"{side}_offset"],
                )
        found[row["outcome"], *sides] += 1
    assert found == slow_outcomes(drawn, rules)


USERS = ["a", "b", "\uffff", "\U0001f3a7"]


@settings(max_examples=1_000, deadline=None)
@given(dense_events(), any_rules, st.data())
def test_outcomes_are_those_of_the_rules_with_both_orders_of_the_users(drawn, rules, data):
    users = data.draw(st.lists(st.tuples(*[st.sampled_from(USERS)] * 2), min_size=len(drawn), max_size=len(drawn)))
    drawn = [event | dict(zip(KEY, names, strict=True)) for event, names in zip(drawn, users, strict=True)]
    as_they_came = pa.Table.from_pylist(drawn, schema=event_schema(SMALL))
    unordered = replace(rules, pipeline=replace(rules.pipeline, key_order="any"))
    decided = decide_outcomes(order_keys(as_they_came, unordered.pipeline), unordered)
    assert named(decided) == slow_outcomes(drawn, unordered)


@settings(max_examples=200, deadline=None)
@given(dense_events(), any_rules, st.integers(1, 5), st.integers(1, 3_000))
def test_large_tables_come_out_in_pieces_with_the_same_rows(drawn, rules, rows_a_chunk, bytes_at_once):
    whole = pa.Table.from_pylist(drawn, schema=event_schema(SMALL))
    chunked = pa.concat_tables([whole.slice(at, rows_a_chunk) for at in range(0, len(drawn), rows_a_chunk)] or [whole])
    with mock.patch.object(kernel, "_BYTES_AT_ONCE", bytes_at_once):
        pieces = list(kernel.outcome_batches(chunked, rules))
    assert pa.Table.from_batches(pieces, outcome_schema(SMALL)).equals(decide_outcomes(whole, rules).combine_chunks())
    # A row counts as its texts and 100 bytes, unless all events fit as they are. Many small chunks take more than the one that they become.
    if chunked.combine_chunks().nbytes > bytes_at_once:
        assert all((piece.num_rows - 1) * 100 < bytes_at_once for piece in pieces)
    else:
        assert len(pieces) == bool(drawn)


@settings(max_examples=300, deadline=None)
@given(dense_events(), st.booleans())
def test_events_of_a_key_stand_in_the_order_of_the_rules(drawn, left_topic_first):
    of_one_key = [event | {"user1": "a", "user2": "b"} for event in drawn]
    if not drawn:
        return
    events = pa.Table.from_pylist(of_one_key, schema=event_schema(SMALL))
    ordered = order_events(events, Rules(sides_in_order(left_topic_first), None, None))
    topics = "am" if left_topic_first else "ma"
    places = [(e["ts"], topics[e["side"]], e["partition"], e["offset"]) for e in of_one_key]
    assert [places[row] for row in ordered.row] == sorted(places)


@settings(max_examples=200, deadline=None)
@given(dense_events(), topics_of_sides(), st.data())
def test_equal_times_are_in_the_order_of_the_names_of_all_topics(drawn, topics, data):
    of_one_key = [
        event | {"user1": "a", "user2": "b", "ts": 5, "topic": data.draw(st.sampled_from(topics[event["side"]]))}
        for event in drawn
    ]
    if not drawn:
        return
    ordered = order_events(numbered(of_one_key, topics), Rules(SMALL, None, None, topics))
    places = [(e["topic"], e["partition"], e["offset"]) for e in of_one_key]
    assert [places[row] for row in ordered.row] == sorted(places)


@pytest.mark.parametrize("left_topic_first", [True, False])
def test_timestamps_as_far_apart_as_can_be(left_topic_first):
    times = [(0, 0), (1, 5), (0, 10), (1, 2**63 - 1_000_000), (0, 2**63 - 1_000_000), (1, 2**63 - 999_995)]
    drawn = table([(user, side, ts + later, None, False) for later, user in enumerate("abc") for side, ts in times])
    rules = Rules(replace(sides_in_order(left_topic_first), drop_duplicates=False), 2**63 - 1, 0)
    assert named(decide_outcomes(drawn, rules)) == slow_outcomes(drawn.to_pylist(), rules)


def test_no_events_no_rows():
    assert decide_outcomes(table([]), Rules(SMALL, 5, None)).schema == outcome_schema(SMALL)


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
        decide_outcomes(table([("a", 0, 0, "1", is_open)]), Rules(SMALL, 5_000, 5_000)) for is_open in (True, False)
    )
    assert opened.column("outcome").to_pylist() == ["left_only"]
    assert fresh.column("outcome").to_pylist() == ["late"]
