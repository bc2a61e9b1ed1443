"""What a story proposes is true: the settings it names, written as in a pipeline's file, give what it says."""

import re
from dataclasses import replace

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from include.config.pipeline import Pipeline
from include.config.setting_types import parse_duration
from spark_jobs.story.from_files import explain
from tests.helpers.timeline import SMALL, T0, Batch, play_every, read_batches, records

words = st.builds("{}{}".format, st.sampled_from("am"), st.integers(0, 60).map(lambda at: at * 50))
batches = st.lists(
    st.tuples(st.lists(words, max_size=5).map(" ".join), st.integers(-9_900, 4_000)), min_size=1, max_size=4
).filter(lambda drawn: any(events for events, _ in drawn))
PROPOSAL = re.compile(
    r"  with (.+) it would (be paired with|still be alone|have been kept: paired with|have been kept: alone)(?: (\S+),)?"
)


def changed(text: str) -> Pipeline:
    """SMALL with settings as they stand in a story."""
    durations = {f"{name}_ms": parse_duration(value) for name, value in re.findall(r"`(\w+): (\w+)`", text)}
    assert durations and all(length > getattr(SMALL, name) for name, length in durations.items())
    return replace(SMALL, **durations)


def partners(pipeline: Pipeline, sent) -> dict[str, str | None]:
    """The partner of each event of a compound, None for those alone, when everything is closed."""
    found: dict[str, str | None] = {}
    for batch in play_every(pipeline, [*sent, ([], T0 + 10**9)]):
        for row in batch.outcomes.to_pylist():
            left, right = f"analyticsTopic-0-{row['left_offset']}", f"metricsTopic-0-{row['right_offset']}"
            if row["outcome"] == "pair":
                found |= {left: right, right: left}
            elif row["outcome"] in ("left_only", "right_only"):
                found[left if row["outcome"] == "left_only" else right] = None
    return found


@settings(max_examples=30, deadline=None)
@given(batches)
# The clock of the first batch holds for the third, though the second, which stands between them, was behind it.
@example([("", 751), ("", 0), ("a0", 0), ("m50", 0)])
@example([("", 851), ("", 0), ("a0 m150", 0)])
def test_every_proposal_comes_true(drawn):
    sent = records([Batch(*batch) for batch in drawn])
    source: str | None = None
    for line in explain(SMALL, ("u", "v"), read_batches(sent)):
        if line and not line.startswith(" "):
            source = line.partition(" ")[0]
        found = PROPOSAL.match(line)
        if found:
            with_these, claim, partner = found.groups()
            event(claim)
            assert partners(changed(with_these), sent)[source] == partner
        else:
            assert not line.startswith("  with ")
