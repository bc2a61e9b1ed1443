"""Which state a batch's page shows: the one that its own report left, else what the batch itself says."""

from __future__ import annotations

from spark_jobs.quality.batch import Batch
from spark_jobs.quality.batch_health import health
from spark_jobs.quality.suite import CRITICAL, INFO, WARNING, Check, JudgedCheck, Verdict
from spark_jobs.tables.ledger_rows import PAIRED
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.states import SILENT, made_up_state
from tests.helpers.timeline import CALLS
from tests.unit.quality.test_pages import ORPHANS

LAW = Check("landing_difference_left", 0, 0, CRITICAL, "every record is a raw row (left)")


def batch(*judged, **metrics):
    verdict = Verdict([*judged], "<head></head>")
    return Batch(7, 1_767_225_600_000, {PAIRED: ledger_row(7, PAIRED, pipeline=CALLS)}, ORPHANS | metrics, verdict=verdict)


def test_without_a_state_the_batch_speaks_for_itself():
    shown = health(batch(JudgedCheck(LAW, True, 0.0), backlog=12.0, landed=10_000.0, rejected_late=43.0), None)
    assert "Batch 7 is healthy" in shown and 'Landed, this batch</dt><dd class="large">10,000</dd>' in shown
    assert '<dd class="large">12</dd>' in shown and "late: 43" in shown and "with a partner: 37" in shown


def test_checks_that_failed_are_problems_of_the_batch():
    others = Check("orphan_ratio", 0, 0.05, WARNING, "one-sided compounds stay below the bound")
    info = Check("delivery_not_judged", 0, 0, INFO, "every message was read back: not judgeable, because retention …")
    shown = health(
        batch(
            JudgedCheck(others, False, 0.1), JudgedCheck(LAW, False, None), JudgedCheck(info, False, 2.0), compounds=100.0
        ),
        None,
    )
    assert "Batch 7: 1 failed check and 1 warning" in shown
    for text in (
        "batch 7: every record is a raw row (left): landing_difference_left is None, allowed 0 to 0",
        "compounds of batch 7 are one-sided: 10.0% where quality.max_orphan_ratio allows 5.0%",
        # It is no warning, and does not count as one.
        '<span class="badge">not judged</span> every message was read back: not judgeable',
    ):
        assert text in shown
    assert shown.index("every record") < shown.index("are one-sided"), "what failed comes first"


def test_the_state_of_this_batch_counts_and_no_other():
    broken = batch(JudgedCheck(LAW, False, 3.0), JudgedCheck(Check("silent_left", 0, 1, WARNING, "x"), False, 9.0))
    shown = health(broken, made_up_state(7, SILENT))
    assert "calls: 1 failed check and 1 warning" in shown and "Landed, 24 h" in shown, "what the state does not name yet"
    assert shown.count("<article") == 2
    assert "Batch 7 is healthy" in health(batch(), made_up_state(8))
