"""What keeps rows from being removed, besides their age."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_jobs.maintenance import retention
from spark_jobs.maintenance.retention import LedgerState, parts
from spark_jobs.tables.ledger_rows import PAIRED, PLANNED, REMOVED_COMPOUNDS, REMOVED_RAW
from spark_jobs.tables.records import LIVE, REPLAY
from tests.helpers.ledger_rows import ledger_row, ledger_rows
from tests.helpers.timeline import CALLS

TWO_TOPICS = replace(CALLS, output_orphans_topic="orphans")


@pytest.mark.parametrize(
    ("kind", "settings", "until", "may_go"),
    [
        (REPLAY, [CALLS, TWO_TOPICS], 2, 0),
        (REPLAY, [CALLS], 2, 2),
        (LIVE, [CALLS, TWO_TOPICS], 2, 2),
        (REPLAY, [CALLS, TWO_TOPICS], 3, 3),
    ],
)
def test_compounds_stay_while_a_correction_has_to_find_them(kind, settings, until, may_go, monkeypatch):
    _, paired = ledger_rows(3, (PLANNED, PAIRED), kind=kind, compounds=1)
    removals = {REMOVED_RAW: replace(paired, batch_id=9, step=REMOVED_RAW)}
    monkeypatch.setattr(retention, "Ledger", lambda _: type("Known", (), {"settings": lambda _: settings})())
    (part,) = (each for each in parts(CALLS) if each.step == REMOVED_COMPOUNDS)
    assert retention._bound(SimpleNamespace(pipeline=CALLS), LedgerState([paired], removals, until, until), part) == may_go


@pytest.mark.parametrize(
    ("rejected", "topic", "until", "may_go"), [(1, "dead", 2, 0), (0, "dead", 2, 2), (1, None, 2, 2), (1, "dead", 3, 3)]
)
def test_raw_rows_stay_while_dead_letters_wait_for_their_headers(rejected, topic, until, may_go, monkeypatch):
    paired = ledger_row(3, PAIRED, pipeline=replace(CALLS, output_rejected_topic=topic), rejected=rejected)
    monkeypatch.setattr(retention, "oldest_batch", lambda _: None)
    (part,) = (each for each in parts(CALLS) if each.step == REMOVED_RAW)
    warehouse = SimpleNamespace(pipeline=CALLS, newest=lambda _: None)
    assert retention._bound(warehouse, LedgerState([paired], {}, until, until), part) == may_go
