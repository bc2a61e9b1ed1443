"""What the ledger keeps of a batch comes back out of its table as it was, and a field that it does not have cannot be written."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, replace
from itertools import count

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_LANDING
from spark_jobs.rules.side_topics import SideTopics
from spark_jobs.tables import schemas as tables
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import (
    _COUNTS,
    _IN_ORDER,
    LANDED,
    PAIRED,
    PLANNED,
    PUBLICATIONS,
    PUBLISHED,
    PUBLISHED_ORPHANS,
    PUBLISHED_REJECTED,
    PUBLISHING,
    REMOVALS,
    REPORTED,
)
from spark_jobs.tables.records import (
    KINDS,
    LIVE,
    OUTPUT_COLUMNS,
    PLAN_COLUMNS,
    REPLAY,
    REWIND,
    CorrectedBatches,
    LandedCounts,
    OutputState,
    PairedCounts,
    RemovedBatches,
    StepCounts,
    TopicIds,
    Window,
    correction_counts,
    plan_of_struct,
    plan_struct,
)
from tests.helpers.ledger_rows import ledger_row, output_state, plan
from tests.helpers.story_tables import played
from tests.helpers.timeline import SMALL

IDS, AGAIN = TopicIds("one", "other"), CorrectedBatches(2, 5)
PLANS = {
    "live": plan(LIVE, open_before=3, topic_ids=IDS, gone_at_start=7),
    "live, after a rewind": plan(LIVE, open_before=3, topic_ids=IDS, corrected=AGAIN),
    "replay": plan(REPLAY, open_before=4, topic_ids=IDS, window=Window(10, 20), reach_ms=500),
    "replay, with all": plan(
        REPLAY, open_before=4, topic_ids=IDS, corrected=AGAIN, window=Window(-9, 0), reach_ms=500, removed_until=0
    ),
    "rewind": plan(REWIND, open_before=5, topic_ids=IDS, corrected=AGAIN, to_batch=2),
    "rewind to the beginning": plan(REWIND, open_before=0, topic_ids=IDS, corrected=CorrectedBatches(1, 5), to_batch=0),
}
COUNTS = list(dict.fromkeys((*_COUNTS.values(), StepCounts)))
OUTPUTS = {
    PUBLISHING: [output_state(partitions=2, ends={0: 5, 1: 0}, positions_kept_minutes=1_440), output_state(ends={0: 5})],
    PUBLISHED: [
        output_state(partitions=2, ends={0: 9, 1: 0}, sent={0: 4}, position=3),
        output_state(partitions=1, position=3),
    ],
}
OUTPUTS |= dict.fromkeys((PUBLISHED_ORPHANS, PUBLISHED_REJECTED), OUTPUTS[PUBLISHED])
ACCESSORS = {
    "landed": (LANDED,),
    "paired": (PAIRED,),
    "published": PUBLICATIONS,
    "dead_letters": (PUBLISHED_REJECTED,),
    "reported": (REPORTED,),
    "removed": REMOVALS,
}


def full(made):
    """With another number in each field, none of them a default."""
    return made(**dict(zip(names(made), count(11))))


def bare(made):
    """With nothing but what has to be there."""
    return made(**{each.name: 0 for each in fields(made) if each.default is MISSING})


def names(made):
    return [each.name for each in fields(made)]


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    """An empty one."""
    warehouse = played(tmp_path, [])
    columns = pa.schema(DeltaTable(warehouse.path(tables.LEDGER)).schema().to_arrow())
    # Only Spark can read columns out of their declaration.
    monkeypatch.setattr(tables, "_columns", lambda declaration: from_arrow_schema(columns))
    return Ledger(warehouse)


@pytest.mark.parametrize("made", PLANS.values(), ids=PLANS)
def test_a_plan_comes_back_out_of_its_struct(made):
    assert plan_of_struct(KINDS[type(made)], plan_struct(made)) == made


def test_the_structs_have_the_declared_columns():
    assert {tuple(sorted(plan_struct(made))) for made in PLANS.values()} == {tuple(sorted(columns_of(PLAN_COLUMNS)))}
    assert columns_of(OUTPUT_COLUMNS) == names(OutputState)


def columns_of(declaration):
    return re.findall(r"(\w+):", declaration)


@pytest.mark.parametrize("made", COUNTS, ids=lambda made: made.__name__)
def test_counts_come_back_and_what_is_a_default_is_left_out(made):
    whole, least = full(made), bare(made)
    assert (made(**whole.flat()), list(whole.flat())) == (whole, names(made))
    assert (made(**least.flat()), list(least.flat())) == (least, [name for name in names(made) if name in least.flat()])
    assert all(getattr(least, name) in (0, None) for name in names(made))
    assert {each.name for each in fields(made) if each.default is MISSING} == set(least.flat())


def test_all_of_it_comes_back_out_of_the_table(ledger):
    written, beside = [], []
    for step in _IN_ORDER:
        made = _COUNTS.get(step, StepCounts)
        rows = [
            ledger_row(
                number, step, KINDS[type(batch)], SMALL, plan=batch, clock=number, versions={"open_events": 3},
                counts=(full, bare)[number % 2](made), output=OUTPUTS[step][number % 2] if step in OUTPUTS else None,
            )
            for number, batch in enumerate(PLANS.values(), 1)
        ]  # fmt: skip
        written += rows
        if step in (PUBLISHED_ORPHANS, PUBLISHED_REJECTED):
            # In one commit with those of the output topic, which follow.
            beside += rows
        else:
            ledger.append(*beside, *rows)
            beside = []
    found = ledger.rows(1)
    assert [replace(row, finished_at=None) for row in found] == sorted(written, key=lambda row: row.batch_id)
    assert all(row.finished_at for row in found)
    assert [row.kind for row in found if row.step == PLANNED] == [KINDS[type(batch)] for batch in PLANS.values()]


def test_every_outcome_and_every_reason_has_its_count():
    outcomes = {str(outcome) for outcome in Outcome} - {Outcome.OPEN}
    assert outcomes < set(names(PairedCounts)) and outcomes < set(names(RemovedBatches))
    assert set(map(str, AT_LANDING)) < set(names(LandedCounts))
    # No outcome of the batch's own: it corrected what others had.
    corrected = correction_counts(PLANS["rewind"], compounds=4, retracted=4)
    assert corrected.flat() == dict.fromkeys(("accepted", "rejected", *outcomes - {Outcome.SUPERSEDED}), 0) | {
        "open_before": 5, "open_after": 5, "compounds": 4, "retracted": 4,
    }  # fmt: skip


@pytest.mark.parametrize("step", _COUNTS)
def test_a_count_that_the_step_does_not_have_or_that_is_missing_cannot_be(step):
    made = _COUNTS[step]
    with pytest.raises(TypeError, match="unheard_of"):
        made(**bare(made).flat() | {"unheard_of": 1})
    with pytest.raises(TypeError, match=re.escape(names(made)[0])):
        made(**{name: 0 for name in names(made)[1:]})


def test_ids_of_one_topic_are_as_they_ever_were_and_those_of_several_name_them():
    ids = {"a": "1", "b": "2", "c": "3"}
    for topics, text in (((("a",), ("b",)), ("1", "2")), ((("a",), ("b", "c")), ("1", "b=2 c=3"))):
        made = TopicIds.of(SideTopics(*topics), ids)
        assert made == text
        assert made.by_topic(SideTopics(*topics)) == {topic: ids[topic] for mine in topics for topic in mine}
    assert TopicIds.of(SideTopics((), ("b",)), ids).by_topic(SideTopics((), ("b",))) == {"b": "2"}


@pytest.mark.parametrize(("kind", "foreign"), [(LIVE, "to_batch"), (REPLAY, "gone_at_start"), (REWIND, "reach_ms")])
def test_a_field_that_the_plan_does_not_have_cannot_be(kind, foreign):
    with pytest.raises(TypeError, match=foreign):
        plan(kind, **{foreign: 1})


@pytest.mark.parametrize("step", _IN_ORDER)
def test_only_the_step_s_own_counts_can_be_asked_for(step):
    row = ledger_row(1, step)
    for accessor, steps in ACCESSORS.items():
        if step in steps:
            assert getattr(row, accessor) is row.counts
        else:
            with pytest.raises(TypeError, match=f"the row has a {type(row.counts).__name__}, not a .*Counts"):
                getattr(row, accessor)
    if step in OUTPUTS:
        assert row.output_state is row.output
    else:
        with pytest.raises(TypeError, match="the row has a NoneType, not a OutputState"):
            _ = row.output_state


@pytest.mark.parametrize("made", PLANS.values(), ids=PLANS)
def test_only_the_batch_s_own_plan_can_be_asked_for(made):
    row = ledger_row(1, PLANNED, KINDS[type(made)], plan=made)
    for kind in (REPLAY, REWIND):
        if row.kind == kind:
            assert getattr(row, kind) is made
        else:
            with pytest.raises(TypeError, match=f"the row has a {type(made).__name__}, not a .*Plan"):
                getattr(row, kind)
