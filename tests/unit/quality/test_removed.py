"""Where reconcile draws the line when rows went for their age, and what it says of those behind it."""

from __future__ import annotations

from spark_jobs.quality.checks import Finding, Offenders
from spark_jobs.quality.ledger_checks import find_removed
from spark_jobs.quality.reconcile import without_collapsed
from spark_jobs.tables.ledger_rows import PAIRED, PUBLISHED, PUBLISHED_ORPHANS
from tests.helpers.ledger_in_a_list import FakeLedger
from tests.helpers.ledger_rows import ledger_row, ledger_rows

TOPIC = "topic_1"


def ledger(*removals):
    batches = [
        ledger_rows(number, (PAIRED, PUBLISHED), open_after=number, topic_id=TOPIC, ends={0: number * 10})
        for number in range(1, 6)
    ]
    return FakeLedger(*batches, list(removals))


RAW = ledger_row(4, "removed_raw", removed_ever=40)
REJECTED, COMPOUNDS = ledger_row(3, "removed_rejected", removed_ever=3), ledger_row(2, "removed_compounds", removed_ever=20)
SUMMARY = ledger_row(2, "removed_ledger", removed_ever=10, landed=11)


def test_nothing_went():
    removed = find_removed(ledger(), TOPIC)
    assert (removed.raw, removed.compounds, removed.unchecked, removed.first_in_ledger, removed.waiting, removed.ends) == (
        0,
        0,
        0,
        1,
        0,
        {},
    )
    assert removed.sentence() == "" and removed.from_ledger("landed") == 0


def test_raw_rows_alone_leave_every_outcome_to_be_compared():
    removed = find_removed(ledger(RAW), TOPIC)
    assert (removed.raw, removed.unchecked, removed.sentence()) == (4, 0, "")


def test_the_line_is_the_last_batch_whose_outcomes_went():
    removed = find_removed(ledger(RAW, COMPOUNDS, REJECTED, SUMMARY), TOPIC)
    # 3 events waited when batch 3 ended; messages of compounds that went end where those of batch 2 do.
    assert (removed.raw, removed.compounds, removed.unchecked, removed.first_in_ledger, removed.waiting) == (4, 2, 3, 2, 3)
    assert removed.ends == {0: 20} and removed.from_ledger("landed") == 11
    assert removed.sentence() == (
        "batches 1 to 3 were removed for their age, with 40 raw rows (those up to batch 4), 3 rejected events and 20 compounds: not checked"
    )


def test_a_topic_for_orphans_ends_where_the_last_removed_batch_that_went_to_it_does():
    # Batch 2 and all after it went to the output topic alone.
    orphans = ledger_rows(1, (PUBLISHED_ORPHANS,), topic_id="orphans", ends={0: 7, 1: 5})
    known = ledger(RAW, COMPOUNDS)
    known.all += orphans
    assert find_removed(known, TOPIC).ends_beside == {"orphans": {0: 7, 1: 5}}
    assert find_removed(ledger(RAW), TOPIC).ends_beside == {}


def test_messages_on_another_topic_are_of_later_batches():
    assert find_removed(ledger(RAW, COMPOUNDS), "topic_2").ends == {}


def counts(removed=0, seen=0, waited=0, waited_seen=0, collapsed=0):
    return {
        "records removed from the raw tables for their age": removed,
        "… that have an outcome or are on the input topics": seen,
        "events that waited when outcomes before went for their age": waited,
        "… that have an outcome": waited_seen,
        "collapsed": collapsed,
    }


def test_what_is_missing_must_be_what_collapsed():
    collapsed = [Offenders(Finding.NO_OUTCOME, 2, ["a"])]
    assert without_collapsed(collapsed, counts(collapsed=2)) == []
    assert without_collapsed(collapsed, counts(removed=9, seen=8, waited=3, waited_seen=1, collapsed=5)) == []
    assert without_collapsed([], counts(waited=3, waited_seen=3)) == []
    # An event that waited at the line and has no outcome behind it, though nothing collapsed.
    (found,) = without_collapsed([], counts(waited=3, waited_seen=2))
    assert (found.finding, found.number) == (Finding.REMOVED_WITHOUT_OUTCOME, 1)
