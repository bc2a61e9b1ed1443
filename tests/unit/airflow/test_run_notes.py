"""What stands beside a run, and what leads from its tasks to other pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from include.airflow.operators import UI_VARIABLE, SparkPage
from include.airflow.run_notes import _progress, failures_in_words, in_words, on_dag_run_running
from include.config.health import Problem, State

LANDED = {"batch_id": 7, "landed": 1_024, "backlog": 0}
PAIRED = {"batch_id": 7, "pair": 310, "left_only": 12, "right_only": 0, "duplicate": 2, "late": 1, "open_after": 20}


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            {"land_events": LANDED, "pair_events": PAIRED, "publish_compounds": {"batch_id": 7, "sent": 1_322}},
            "batch 7: 1,024 records landed; 310 pair, 12 left_only, 2 duplicate, 1 late, 20 events wait; 1,322 published",
        ),
        (
            {"land_events": {"batch_id": 8, "landed": 0}, "pair_events": {"pair": 0, "open_after": 20}, "publish_compounds": {}},
            "batch 8: no new records; nothing closed, 20 events wait; nothing to publish",
        ),
        (
            {"land_events": {"batch_id": 9, "landed": 3}, "pair_events": {"superseded": 2, "open_after": 1}},
            "batch 9: 3 records landed; 2 superseded, 1 events wait",
        ),
        # Its publication failed, so it says nothing.
        ({"land_events": LANDED | {"backlog": 9_000}}, "batch 7: 1,024 records landed, 9,000 more are waiting"),
        (
            {"land_events": {"batch_id": 7, "landed": 0, "backlog": 0, "held": 1_700, "held_since": 1_700_000_000_000}},
            "batch 7: no new records, 1,700 offsets are held by a transaction that is open since 2023-11-14 22:13 UTC",
        ),
        (
            {"land_events": LANDED | {"batch_id": 1, "lost": 5, "began_calls-0": 700, "began_calls-1": 1_002}},
            "batch 1: 1,024 records landed, 5 given up as lost, calls-0 began at 700, calls-1 began at 1,002",
        ),
        (
            {"land_events": {"batch_id": 1, "landed": 0} | {f"began_t-{number}": 5 for number in range(6)}},
            "batch 1: no new records, t-0 began at 5, t-1 began at 5, t-2 began at 5, t-3 began at 5 and 2 more",
        ),
        # A replay that came between has finished the batch, and is published with it.
        (
            {"publish_compounds": {"batch_id": 8, "sent": 9}, "pair_events": {}, "land_events": LANDED},
            "batch 7: 1,024 records landed; paired before; 9 published",
        ),
        (
            {"replay_interval": {"batch_id": 9, "new": 1, "changed": 0, "retracted": 2, "unchanged": 40}, "publish_compounds": {"sent": 3}},
            "batch 9: 1 new, 2 retracted, 40 unchanged; 3 published",
        ),
        ({"replay_interval": {"new": 0, "unchanged": 4}, "publish_compounds": {}}, "nothing to correct, 4 unchanged; nothing to publish"),
        (
            {"land_events": LANDED, "report_quality": {"batch_id": 7, "says": "analyticsTopic has been silent since 14:05"}},
            "batch 7: 1,024 records landed; analyticsTopic has been silent since 14:05",
        ),
        (
            {"maintain_tables": {"removed_raw": 1_200, "removed_rejected": 0, "removed_ledger": 40, "late_given_up": 2, "files_put_together": 9}},
            "files put together: 9; raw rows removed: 1,200; ledger rows removed: 40; late events given up, never replayed: 2",
        ),
        ({"maintain_tables": {"removed_raw": 0, "files_put_together": 0}}, "nothing to do"),
        (
            {"maintain_tables": {}, "reconcile": {"published batches": 1_200, "records landed": 44_000}},
            "nothing to do; reconciled: 44,000 records of 1,200 batches are right",
        ),
        ({"replay_late": {"started": ["a", "b"], "waiting": 1}}, "replays started: 2; waiting for open events: 1"),
        ({"replay_late": {"started": [], "waiting": 0}, "report_quality": {"batch_id": 7}}, ""),
    ],
    ids=[
        *("a batch", "nothing new", "superseded", "a backlog", "held", "begun", "many begun", "finished by another", "a replay", "nothing differs"),
        *("a silent side", "maintenance", "nothing maintained", "reconciled", "late events", "none late"),
    ],
)  # fmt: skip
def test_what_a_run_has_done(counts, words):
    assert in_words(counts) == words


PROBLEM = Problem(name="landing_difference_left", severity="failed", text="3 are missing", batch=7, since=1.0, last=2.0)
STATE = State(pipeline="calls", at=2.0, batch=8, problems=(PROBLEM,)).in_short


@pytest.mark.parametrize(
    ("failed", "is_reported", "words"),
    [
        ({}, False, []),
        (
            {"report_quality": {"reason": "the counts do not add up", "state": STATE}},
            False,
            [
                "report_quality failed: the counts do not add up",
                "last known state of the pipeline: failed after batch 8 (landing_difference_left: failed since batch 7)",
            ],
        ),
        # The report has said it.
        ({"publish_compounds": {"reason": "no broker", "state": STATE}}, True, ["publish_compounds failed: no broker"]),
        ({"pair_events": {"reason": "no space"}}, False, ["pair_events failed: no space"]),
        ({"pair_events": {}}, False, ["pair_events failed: it was ended from outside"]),
        (
            {"land_events": {"reason": "x" * 351, "state": "healthy after batch 1"}, "report_quality": {"reason": "y", "state": "z" * 350}},
            False,
            [f"land_events failed: {'x' * 350}…", "report_quality failed: y", f"last known state of the pipeline: {'z' * 350}"],
        ),
    ],
    ids=["nothing", "a report", "reported", "no state", "from outside", "long"],
)  # fmt: skip
def test_what_has_failed_and_the_last_known_state(failed, is_reported, words):
    assert failures_in_words(failed, is_reported) == words


def run_of(dag_id, conf=None, **named):
    at = datetime(2026, 1, 31, 13, tzinfo=UTC)
    given = {"run_type": "manual", "data_interval_start": at, "data_interval_end": at + timedelta(hours=1), "note": None}
    return SimpleNamespace(dag_id=dag_id, conf=conf or {}, **given | named)


@pytest.mark.parametrize(
    ("run", "note"),
    [
        (run_of("calls_replay", run_type="backfill"), "2026-01-31 13:00 to 2026-01-31 14:00 UTC"),
        (run_of("calls_replay", run_type="backfill", note="for Ann"), "for Ann\n2026-01-31 13:00 to 2026-01-31 14:00 UTC"),
        (
            run_of("calls_replay", {"window_start": "2026-01-01T01:00:00.500+01:00", "window_end": "1767225660000"}),
            "2026-01-01 00:00:00.500000 to 2026-01-01 00:01 UTC",
        ),
        # The job refuses these.
        (run_of("calls_replay", {"window_start": "yesterday", "window_end": "99999999999999999999"}), None),
        (run_of("calls_replay", {"window_start": "2026-01-01"}), None),
        (run_of("calls", run_type="backfill"), None),
        (run_of("others_replay", run_type="backfill"), None),
    ],
)
def test_a_replay_says_of_which_interval_it_is_when_it_begins(run, note):
    # A run that was cleared begins twice.
    for _ in range(2):
        on_dag_run_running(run, "")
        assert run.note == note


def test_how_far_a_backfill_is(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    from airflow.models.backfill import BackfillDagRun
    from airflow.models.base import Base
    from airflow.models.dagrun import DagRun
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine, tables=[BackfillDagRun.__table__, DagRun.__table__])
    run = (
        "insert into dag_run (id, dag_id, run_id, state, run_type, run_after, clear_number, span_status, updated_at) values "
    )
    of_backfill = "insert into backfill_dag_run (id, backfill_id, dag_run_id, sort_ordinal, logical_date) values "
    with Session(engine) as session:
        # The run that ends may still count as running.
        for number, state in enumerate(("success", "failed", "running", "queued"), 1):
            session.execute(
                text(f"{run} ({number}, 'd', 'r{number}', '{state}', 'backfill', '2026-01-01', 0, '', '2026-01-01')")
            )
            session.execute(text(f"{of_backfill} ({number}, 7, {number}, {number}, '2026-01-0{number}')"))
        said = [_progress(SimpleNamespace(backfill_id=7, id=number), session) for number in (1, 3)]
        assert said == ["2 of 4 of the backfill", "3 of 4 of the backfill"]
        assert _progress(SimpleNamespace(backfill_id=None, id=9), session) == ""


@pytest.mark.parametrize(
    ("page", "application", "link"),
    [
        (None, "app-1", ""),
        ("http://spark:4040", None, "http://spark:4040"),
        ("http://history:18080/history/{app}/", "app-1", "http://history:18080/history/app-1/"),
        # Whose job never got so far.
        ("http://history:18080/history/{app}/", None, ""),
    ],
    ids=["there is none", "of a server that stays up", "of a history server", "no application"],
)
def test_the_button_to_spark(page, application, link, monkeypatch):
    monkeypatch.delenv(UI_VARIABLE, raising=False)
    if page is not None:
        monkeypatch.setenv(UI_VARIABLE, page)
    assert SparkPage().get_link(SimpleNamespace(spark_application=application), ti_key=None) == link
