"""What Airflow's trigger form asks for, and how it reaches the jobs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

# With this one only report_quality has something to do.
REPORT_ONLY = "report_only"

LIVE_PARAMS = {
    "max_records": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Records at most",
        description="In this batch, instead of max_records_per_batch.",
    ),
    "accept_lost_range": Param(
        None,
        type=["null", "string"],
        pattern=r"^[A-Za-z0-9._-]+-\d+:\d+-\d+( [A-Za-z0-9._-]+-\d+:\d+-\d+)*$",
        title="Accept lost ranges",
        description="topic-partition:first-until, with spaces between: go on without these records, which the broker no longer has. "
        "Copy them from the failed task.",
    ),
    "release_batch": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Release batch",
        description="With quality.gate: before_publish, publish up to this batch although it failed its checks.",
    ),
    REPORT_ONLY: Param(
        False,
        # Else the form says that it is required.
        type=["null", "boolean"],
        title="Report only",
        description="Land, pair and publish nothing; count what is there afresh and write the quality page.",
    ),
}

LAND_ARGUMENTS = [
    "{% if params.max_records %}--max-records={{ params.max_records }}{% endif %}",
    "{% if params.accept_lost_range %}--accept-lost-range={{ params.accept_lost_range }}{% endif %}",
]
PUBLISH_ARGUMENTS = ["{% if params.release_batch %}--release-batch={{ params.release_batch }}{% endif %}"]
REPORT_ARGUMENTS = ["{% if params.report_only %}--again{% endif %}"]

_TIME: dict[str, Any] = {
    "type": ["null", "string"],
    # Gives the form its calendar; Airflow checks only the pattern.
    "format": "date-time",
    "pattern": r"^(\d{4}-\d{2}-\d{2}([T ][\d:.]+(Z|[+-][\d:]+)?)?|\d{9,})$",
}
REPLAY_PARAMS = {
    # A backfill's form has a "From" and a "To" of its own above these.
    "window_start": Param(
        None,
        **_TIME,
        title="Interval begins",
        description="Single run: first moment of the interval; the dates above mean nothing. Backfill: leave it empty.",
    ),
    "window_end": Param(
        None,
        **_TIME,
        title="Interval ends",
        description="Single run: first moment after the interval. Backfill: leave it empty.",
    ),
}

REPLAY_ARGUMENTS = [
    "{% if params.window_start %}--window-start={{ params.window_start }}"
    "{% elif dag_run.run_type == 'backfill' %}--window-start={{ data_interval_start.isoformat() }}{% endif %}",
    "{% if params.window_end %}--window-end={{ params.window_end }}"
    "{% elif dag_run.run_type == 'backfill' %}--window-end={{ data_interval_end.isoformat() }}{% endif %}",
]
