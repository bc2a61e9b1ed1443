"""The fates agree with the rules: every message has one, partners have each other, sessions are closed when they are over."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.story.play import fates, play
from tests.helpers.timeline import SMALL, T0, Batch, play_every, read_batches, records

words = st.builds(
    "{}{}{}".format,
    st.sampled_from("am"),
    st.integers(0, 30).map(lambda at: at * 50),
    st.sampled_from(["", "", "=x", "@1=x"]),
)
batches = st.lists(st.tuples(st.lists(words, max_size=6).map(" ".join), st.integers(-11_000, 3_000)), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(batches, st.sampled_from(["one_to_one", "collapse"]))
def test_every_message_has_one_fate_that_agrees_with_the_others(drawn, matching):
    pipeline = replace(SMALL, matching=matching)
    sent = records([Batch(*batch) for batch in drawn])
    played = play_every(pipeline, sent)
    known = fates(played)
    assert sorted(f"{r['topic']}-{r['partition']}-{r['offset']}" for mine, _ in sent for r in mine) == sorted(
        f.source for f in known
    )
    assert fates(play(read_batches(sent, pipeline))) == known, "a batch that was left out made a difference"
    by_source = {fate.source: fate for fate in known}
    for fate in known:
        rules = played[fate.batch - 1].rules
        if fate.verdict in ("future", "duplicate"):
            assert fate.session is None
            assert fate.verdict == "future" or by_source[fate.partner].ts == fate.ts
            continue
        assert fate.session.start <= fate.ts <= fate.session.end
        over = fate.session.end + pipeline.gap_ms + pipeline.grace_ms
        if fate.verdict == "late":
            assert over < rules.previous_clock
        else:
            assert (fate.verdict != "open") == (over < rules.clock)
        if fate.partner:
            partner = by_source[fate.partner]
            assert (partner.session, partner.batch) == (fate.session, fate.batch)
            assert (partner.side == fate.side) == (fate.verdict == "collapsed")
            assert fate.verdict == "collapsed" or partner.partner == fate.source
        assert fate.session.events == sum(other.session == fate.session and other.batch == fate.batch for other in known)


def test_the_times_of_the_events_come_in_order_and_unreadable_ones_last():
    (mine,) = records([Batch("m50 a0 a100", 10)])
    mine[0][1]["payload"] = '{"user1":"u","user2":"v","timestamp":-1}'
    known = fates(play_every(SMALL, [mine]))
    assert [fate.ts for fate in known] == [T0 + 50, T0 + 100, None]
