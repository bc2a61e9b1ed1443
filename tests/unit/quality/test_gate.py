"""Which batches go out when they are judged before they are published."""

from __future__ import annotations

import pytest

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.quality.gate import held_back, refuse_held
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED, REPORTED
from spark_jobs.tables.records import LIVE, REWIND
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.timeline import CALLS


def row(batch_id, step, kind=LIVE, **named):
    return ledger_row(batch_id, step, kind, CALLS, **named)


def batch(batch_id, failed=None):
    """Paired, and reported with so many failed checks; None: not judged."""
    judged = [] if failed is None else [row(batch_id, REPORTED, failed_checks=failed)]
    return [row(batch_id, PAIRED), *judged]


def held(*batches, released=0):
    rows = [each for steps in batches for each in steps]
    found = held_back([each for each in rows if each.step == PAIRED], rows, released)
    return found and found.batch_id


def test_the_first_that_failed_or_was_not_judged_is_held_back():
    assert held(batch(1, 0), batch(2, 0)) is None
    assert held(batch(1, 0), batch(2, 1), batch(3, 0), batch(4, 2)) == 2
    assert held(batch(1, 0), batch(2)) == 2
    assert held() is None


def test_a_release_lets_go_up_to_its_batch_and_no_further():
    assert held(batch(1, 1), batch(2, 1), batch(3, 1), released=2) == 3
    assert held(batch(1, 1), batch(2, 0), released=1) is None


def test_what_a_rewind_gave_up_goes_out_with_it():
    rewind = [row(4, PLANNED, REWIND, to_batch=1), row(4, PAIRED, REWIND, to_batch=1)]
    judged = [row(4, REPORTED, REWIND, to_batch=1, failed_checks=0)]
    assert held(batch(2, 1), batch(3), [*rewind, *judged]) is None
    assert held(batch(2, 1), batch(3), rewind) == 4


def test_the_line_says_which_why_and_what_to_do():
    failed, unjudged = batch(7, 2), batch(8)
    with pytest.raises(NeedsOperator, match=r"^batch 7 of pipeline calls failed 2 critical checks .* --release-batch 7, or"):
        refuse_held("calls", failed[0], [*failed, *unjudged])
    with pytest.raises(NeedsOperator, match=r"^batch 8 of pipeline calls has not been judged yet and is held back"):
        refuse_held("calls", unjudged[0], [*failed, *unjudged])
