"""Which batch a rewind may go back to, and where the pipeline reads on then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_jobs.corrections.rewind_preview import missing_parts
from spark_jobs.corrections.rewind_target import find_target, plan_rewind, starting_ranges
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.offsets import TopicsNow
from spark_jobs.kafka.ranges import batch_before
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PLANNED, PUBLISHED, REMOVED_RAW, OffsetRange, paired_batches
from spark_jobs.tables.records import LIVE, REWIND, CorrectedBatches, RewindPlan, StepCounts, TopicIds
from tests.helpers.ledger_in_a_list import FakeLedger
from tests.helpers.ledger_rows import IDS, ledger_rows
from tests.helpers.timeline import CALLS

WAREHOUSE = SimpleNamespace(pipeline=CALLS)


def at(partition, first, until, end=None, max_ts=None):
    return OffsetRange("t", partition, first, until, until if end is None else end, max_ts)


def batch(number, *offsets, steps=(PLANNED, LANDED, PAIRED, PUBLISHED), kind=LIVE, **named):
    after = {"open_after": number} if PAIRED in steps else {}
    return ledger_rows(
        number, steps, kind, offsets=offsets, clock=number * 100, versions={"open_events": number}, **after, **named
    )


def rewound(number, to_batch, *offsets, steps=(PLANNED, PAIRED, PUBLISHED), **named):
    return batch(number, *offsets, steps=steps, kind=REWIND, to_batch=to_batch, **named)


# 1, 2, 3 void, 4 back to 2, 5, and 6 that was never paired.
LEDGER = FakeLedger(
    batch(1), batch(2), batch(3), rewound(4, 2), batch(5, steps=(PLANNED, LANDED, PAIRED)), batch(6, steps=(PLANNED, LANDED))
)


@pytest.mark.parametrize(
    ("to_batch", "refusal"),
    [
        (-1, "there is no batch -1 in the ledger of pipeline calls, which knows of 1 to 6"),
        (7, "there is no batch 7 "),
        (6, "batch 6 is not paired, so nothing can go on from it: name batch 5"),
        (3, "batch 3 is void, rewind 4 went back to batch 2: name batch 2 or one from 4 on"),
    ],
)
def test_a_batch_that_nothing_can_go_on_from_is_refused(to_batch, refusal):
    with pytest.raises(NeedsOperator, match=refusal):
        find_target(WAREHOUSE, LEDGER, to_batch)


def test_a_batch_from_before_raw_rows_were_removed_is_refused():
    done = (PLANNED, LANDED, PAIRED, PUBLISHED)
    ledger = FakeLedger(batch(1), batch(2, steps=(*done, REMOVED_RAW)), batch(3), batch(4))
    for to_batch in (0, 1):
        with pytest.raises(NeedsOperator, match=f"nothing can go on from batch {to_batch}: name batch 2 or a later one"):
            find_target(WAREHOUSE, ledger, to_batch)
    assert find_target(WAREHOUSE, ledger, 2).removed == 2


def test_the_last_batch_is_refused_and_so_is_the_beginning_of_nothing():
    with pytest.raises(NeedsOperator, match="batch 2 is the last of pipeline calls, there is nothing to take back"):
        find_target(WAREHOUSE, FakeLedger(batch(1), batch(2)), 2)
    with pytest.raises(NeedsOperator, match="batch 0 is the last"):
        find_target(WAREHOUSE, FakeLedger(), 0)


@pytest.mark.parametrize(
    ("to_batch", "given_up", "open_version"), [(5, [6], 5), (4, [5, 6], 4), (2, [3, 4, 5, 6], 2), (0, [1, 2, 3, 4, 5, 6], 1)]
)
def test_what_is_given_up(to_batch, given_up, open_version):
    target = find_target(WAREHOUSE, LEDGER, to_batch)
    assert [row.batch_id for row in target.given_up] == given_up
    assert (target.open_version, target.open_after, target.last_paired, target.published) == (open_version, to_batch, 5, 4)
    plan = plan_rewind(WAREHOUSE, target)
    assert (plan.batch_id, plan.kind, plan.clock) == (7, REWIND, to_batch * 100 or None)
    assert plan.counts == StepCounts()
    corrected = CorrectedBatches(to_batch + 1, 7)
    assert plan.plan == RewindPlan(open_before=to_batch, topic_ids=IDS, corrected=corrected, to_batch=to_batch)


def ranges(ledger, to_batch):
    found = starting_ranges(find_target(WAREHOUSE, ledger, to_batch))
    assert all(known.planned == known.lost == 0 for known in found)
    return [(known.partition, known.until_offset, known.end_offset, known.max_ts) for known in found]


def test_reading_goes_on_behind_the_batch_up_to_where_anybody_has_read():
    ledger = FakeLedger(
        batch(1, at(0, 0, 10, 40, max_ts=7)), batch(2, at(0, 10, 20)), batch(3, at(0, 20, 30), at(1, 5, 9), steps=(PLANNED,))
    )
    # Partition 1 is newer than the batch: it is read again from where it was begun.
    assert ranges(ledger, 1) == [(0, 10, 30, 7), (1, 5, 9, None)]
    assert ranges(ledger, 2) == [(0, 20, 30, None), (1, 5, 9, None)]
    assert ranges(ledger, 0) == [(0, 0, 30, None), (1, 5, 9, None)]


def test_a_second_rewind_looks_for_what_the_first_has_not_seen_come_back():
    first = {"corrected": CorrectedBatches(2, 3)}
    ledger = FakeLedger(
        batch(1, at(0, 0, 10)), batch(2, at(0, 10, 90)), rewound(3, 1, at(0, 10, 10, 90), **first),
        batch(4, at(0, 10, 20), **first), batch(5, at(0, 20, 30)),
    )  # fmt: skip
    assert ranges(ledger, 4) == [(0, 20, 90, None)]
    assert plan_rewind(WAREHOUSE, find_target(WAREHOUSE, ledger, 4)).plan.corrected == CorrectedBatches(2, 6)


def test_the_topics_are_still_told_by_the_ids_of_the_last_plan():
    first, later = TopicIds("a", "b"), TopicIds("c", "d")
    ledger = FakeLedger(batch(1, topic_ids=first), batch(2, topic_ids=first), batch(3, topic_ids=later, steps=(PLANNED,)))
    assert plan_rewind(WAREHOUSE, find_target(WAREHOUSE, ledger, 0)).plan.topic_ids == later


@pytest.mark.parametrize(
    ("earliest", "end", "cut", "gone"),
    [(10, 30, {}, []), (11, 30, {}, [(10, 11)]), (35, 40, {}, [(10, 30)]), (0, 29, {}, [(29, 30)]), (0, 4, {}, [(10, 30)]),
     (None, None, {}, [(10, 30)]), (12, 28, {}, [(10, 12), (28, 30)]), (0, 40, {("t", 0): 25}, [(25, 30)]), (0, 40, {("t", 0): 35}, [])],
)  # fmt: skip
def test_the_parts_of_a_range_that_the_broker_no_longer_has(earliest, end, cut, gone):
    place = ("t", 0)
    topics = TopicsNow(0, {} if earliest is None else {place: earliest}, {} if end is None else {place: end}, {}, {}, cut)
    assert missing_parts(at(0, 10, 10, 30), topics) == gone


def test_a_partition_that_was_lost_before_it_was_begun_is_asked_for_again():
    begun = OffsetRange("t", 1, 7, 9, 9, lost=7)
    ledger = FakeLedger(batch(1, at(0, 0, 10)), batch(2, at(0, 10, 20), begun))
    assert ranges(ledger, 1) == [(0, 10, 20, None), (1, 0, 9, None)]


def test_a_rewind_knows_under_which_epoch_the_furthest_offset_was_read():
    reads = [at(0, 0, 10)._replace(epoch=1), at(0, 10, 30)._replace(epoch=4), at(0, 12, 20)._replace(epoch=6)]
    ledger = FakeLedger(*(batch(number, each) for number, each in enumerate(reads, start=1)))
    assert [(each.end_offset, each.epoch) for each in starting_ranges(find_target(WAREHOUSE, ledger, 1))] == [(30, 4)]
    assert [(each.end_offset, each.epoch) for each in starting_ranges(find_target(WAREHOUSE, ledger, 2))] == [(30, 4)]


def test_the_last_batch_that_read_nothing_of_what_was_cut():
    ledger = FakeLedger(
        batch(1, at(0, 0, 10), at(1, 0, 5)), batch(2, at(0, 10, 20), at(1, 5, 5)), batch(3, at(0, 20, 30), at(1, 5, 6))
    )
    cuts = [{("t", 0): 20}, {("t", 0): 19}, {("t", 0): 9}, {("t", 0): 29, ("t", 1): 5}, {("t", 1): 4}]
    assert [batch_before(ledger, cut) for cut in cuts] == [2, 1, 0, 2, 0]


def test_the_report_leaves_out_what_was_given_up():
    batches = paired_batches(LEDGER.rows(1))
    assert [rows[PAIRED].batch_id for rows in batches] == [1, 2, 4, 5]
    # A rewind that is only planned has begun to take rows away.
    begun = FakeLedger(batch(1), batch(2), rewound(3, 1, steps=(PLANNED,)))
    assert [rows[PAIRED].batch_id for rows in paired_batches(begun.rows(1))] == [1]
