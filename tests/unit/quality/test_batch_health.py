"""Which state a batch's page shows: the one that its own report left, else what the batch itself says."""

from __future__ import annotations

from include.config.health import write_state
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.batch_health import health
from spark_jobs.quality.suite import CRITICAL, INFO, WARNING, Check, Judged, Verdict
from spark_jobs.tables.ledger import PAIRED
from tests.helpers.ledger_rows import ledger_row
from tests.helpers.pages import pages_in
from tests.helpers.states import SILENT, made_up_state
from tests.helpers.timeline import CALLS
from tests.unit.quality.test_pages import ORPHANS

LAW = Check("landing_difference_left", 0, 0, CRITICAL, "every record is a raw row (left)")


def batch(*judged, **metrics):
    verdict = Verdict([*judged], "<head></head>")
    return Batch(7, 1_767_225_600_000, {PAIRED: ledger_row(7, PAIRED, pipeline=CALLS)}, ORPHANS | metrics, verdict=verdict)


def test_without_a_state_the_batch_speaks_for_itself(tmp_path):
    shown = health(pages_in(tmp_path), batch(Judged(LAW, True, 0.0), backlog=12.0, landed=10_000.0))
    assert "Batch 7 is healthy" in shown and 'Landed, this batch</dt><dd class="large">10,000</dd>' in shown
    assert '<dd class="large">12</dd>' in shown and "late: 43" in shown and "a replay pairs 37" in shown


def test_checks_that_failed_are_problems_of_the_batch(tmp_path):
    others = Check("orphan_ratio", 0, 0.05, WARNING, "one-sided compounds stay below the bound")
    info = Check("delivery_not_judged", 0, 0, INFO, "every message was read back: not judgeable, because retention …")
    shown = health(pages_in(tmp_path), batch(Judged(others, False, 0.1), Judged(LAW, False, None), Judged(info, False, 2.0)))
    assert "Batch 7: 1 failed check and 2 warnings" in shown
    for text in (
        "does not hold: every record is a raw row (left) (nothing, allowed 0)",
        "does not hold: one-sided compounds stay below the bound (0.1, allowed 0 to 0.05)",
        "</span> every message was read back: not judgeable",
    ):
        assert text in shown
    assert shown.index("every record") < shown.index("one-sided"), "what failed comes first"


def test_the_state_of_this_batch_counts_and_no_other(tmp_path):
    pages = pages_in(tmp_path)
    write_state(pages, made_up_state(7, SILENT))
    broken = batch(Judged(LAW, False, 3.0), Judged(Check("silent_left", 0, 1, WARNING, "x"), False, 9.0))
    shown = health(pages, broken)
    assert "calls: 1 failed check and 1 warning" in shown and "Landed, 24 h" in shown, "what the state does not name yet"
    assert shown.count("<article") == 2
    for other in (made_up_state(8), made_up_state(7, pipeline="orders")):
        write_state(pages, other)
        assert "Batch 7 is healthy" in health(pages, batch())
    (tmp_path / "state.json").write_text("{")
    assert "Batch 7 is healthy" in health(pages, batch())
