"""How a stream is cut into batches: it must not matter while events are in time, and coarser cuts only rescue more."""

from collections import Counter
from dataclasses import replace

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.helpers.stream import Event, Read, Stream
from tests.helpers.timeline import CALLS

T0 = 1_000
# Durations of a few milliseconds and times on a short axis, so that boundaries are hit all the time.
LONGEST = {"tolerance": 6, "gap": 5, "grace": 6, "max_future": 5}
TIMES = 40


@st.composite
def pipelines(draw, **fixed):
    durations = {f"{name}_ms": draw(st.integers(int(name == "gap"), longest)) for name, longest in LONGEST.items()}
    durations["max_session_ms"] = draw(st.integers(durations["gap_ms"], 15))
    matching = draw(st.sampled_from(["one_to_one", "collapse"]))
    return replace(CALLS, **durations | {"matching": matching, "drop_duplicates": draw(st.booleans())} | fixed)


@st.composite
def streams(draw, pipeline, most_late, payloads=("", "x", "y")):
    """Events of two keys in two partitions a side, none more than `most_late` after its time or ahead of the wall clock."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.integers(0, TIMES),
                st.one_of(st.just(0), st.just(most_late), st.integers(0, most_late)),
                st.integers(0, 1),
                st.integers(0, 1),
                st.sampled_from("uw"),
                st.sampled_from(payloads),
            ),
            max_size=25,
        )
    )
    events = [Event(T0 + ts + delay, T0 + ts, side, at, user, payload) for ts, delay, side, at, user, payload in drawn]
    return Stream(pipeline, events, partitions=2)


@st.composite
def cuts(draw, stream, most=10):
    """Up to `most` plans, some of which leave a backlog in some partitions, and one that closes everything.

    Ends are asked for a little after the wall time was taken, and meanwhile events arrive.
    """
    reads: list[Read] = []
    before = dict.fromkeys(stream.events, 0)
    for wall_time in sorted(draw(st.lists(st.integers(T0, T0 + TIMES + 30), max_size=most))):
        there = stream.arrived(wall_time)
        soon = stream.arrived(wall_time + stream.pipeline.max_future_ms + 1)
        last = reads[-1].ends if reads else before
        ends = {at: draw(st.integers(max(there[at], last[at]), max(soon[at], last[at]))) for at in there}
        until = {at: ends[at] if draw(st.booleans()) else draw(st.integers(before[at], ends[at])) for at in ends}
        reads.append(Read(wall_time, ends, until))
        before = until
    return [*reads, stream.at_once()]


def events_of(batches, *outcomes) -> Counter:
    """(side, partition, offset) of the events with these outcomes."""
    return Counter(
        (side, row[f"{name}_partition"], row[f"{name}_offset"])
        for batch in batches
        for row in batch.outcomes.to_pylist()
        if row["outcome"] in outcomes
        for side, name in enumerate(("left", "right"))
        if row[f"{name}_offset"] is not None
    )


def answers(batches) -> Counter:
    """All final rows but for the number of the batch that landed an event."""
    return Counter(
        tuple((name, value) for name, value in row.items() if not name.endswith("batch_id"))
        for batch in batches
        for row in batch.outcomes.to_pylist()
        if row["outcome"] != "open"
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_cut_gives_the_same_answers_while_no_event_comes_later_than_grace(data):
    pipeline = data.draw(pipelines())
    stream = data.draw(streams(pipeline, most_late=pipeline.grace_ms))
    whole = answers(stream.play([stream.at_once()]))
    assert sum(1 for row in whole if ("outcome", "late") in row) == 0
    assert answers(stream.play(data.draw(cuts(stream)))) == whole
    assert answers(stream.play(stream.event_by_event())) == whole


FINAL = ("pair", "left_only", "right_only", "duplicate", "late", "collapsed")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_coarser_cut_only_rescues_more(data):
    """For events as late as they like, no chain near max_session, and no event sent twice: see test_cut_limits.py."""
    pipeline = data.draw(pipelines(max_session_ms=1_000, matching="one_to_one"))
    stream = data.draw(streams(pipeline, most_late=3 * (pipeline.gap_ms + pipeline.grace_ms), payloads=("",)))
    fine_cut = data.draw(st.one_of(cuts(stream), st.just(stream.event_by_event())))
    kept = [data.draw(st.booleans()) for _ in fine_cut[:-1]]
    coarse_cut = [read for read, stays in zip(fine_cut, [*kept, True], strict=True) if stays]
    fine, coarse = stream.play(fine_cut), stream.play(coarse_cut)
    all_events = Counter((*at, offset) for at, mine in stream.events.items() for offset in range(len(mine)))
    assert events_of(fine, *FINAL) == events_of(coarse, *FINAL) == all_events
    assert events_of(coarse, "late") <= events_of(fine, "late")
    assert events_of(coarse, "pair").total() >= events_of(fine, "pair").total()
    event("rescued" if events_of(coarse, "late") < events_of(fine, "late") else "nothing to rescue")
