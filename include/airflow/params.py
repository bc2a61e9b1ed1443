"""The fields of Airflow's trigger forms, and the templates that pass them to the jobs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

# If it is set, all tasks but report_quality do nothing.
REPORT_ONLY = "report_only"
_RANGE = r"[A-Za-z0-9._-]+-\d+:\d+-\d+"
# More records than a batch can hold, and more batches than one a second makes in thirty years. Airflow itself cannot hold what 64 bits cannot.
_MOST = 1_000_000_000
# Of texts: more lost ranges than partitions that a pipeline was tried with.
_LONGEST = 100_000
_TIME = r"\d{4}-\d{2}-\d{2}([T ][\d:.]+(Z|[+-][\d:]+)?)?|\d{9,}"


def _optional(kind: str, title: str, description: str, default: Any = None, **schema: Any) -> Param:
    """A field that may stay empty: without null among its types the form would require it."""
    return Param(default, type=["null", kind], title=title, description=description, **schema)


LIVE_PARAMS = {
    "max_records": _optional(
        "integer", "Records at most", "In this batch, instead of max_records_per_batch.", minimum=1, maximum=_MOST
    ),
    "accept_lost_range": _optional(
        "string",
        "Accept lost ranges",
        "topic-partition:first-until, with spaces between: go on without these records, which the broker no longer has. "
        "Copy them from the failed task.",
        pattern=f"^{_RANGE}( {_RANGE})*$",
        maxLength=_LONGEST,
    ),
    "release_batch": _optional(
        "integer",
        "Release batch",
        "With quality.gate: before_publish, publish up to this batch although it failed its checks.",
        minimum=1,
        maximum=_MOST,
    ),
    REPORT_ONLY: _optional(
        "boolean",
        "Report only",
        "Land, pair and publish nothing; count what is there afresh and write the quality page.",
        default=False,
    ),
}
LAND_ARGUMENTS = [
    "{% if params.max_records %}--max-records={{ params.max_records }}{% endif %}",
    "{% if params.accept_lost_range %}--accept-lost-range={{ params.accept_lost_range }}{% endif %}",
]
PUBLISH_ARGUMENTS = ["{% if params.release_batch %}--release-batch={{ params.release_batch }}{% endif %}"]
REPORT_ARGUMENTS = ["{% if params.report_only %}--again{% endif %}"]


def _time(title: str, description: str) -> Param:
    # The format gives the form its calendar. Airflow checks the pattern only.
    return _optional("string", title, description, format="date-time", pattern=f"^({_TIME})$", maxLength=40)


# The form of a backfill shows a "From" and a "To" of its own above these.
REPLAY_PARAMS = {
    "window_start": _time(
        "Interval begins",
        "Single run: first moment of the interval; the dates above mean nothing. Backfill: leave it empty.",
    ),
    "window_end": _time("Interval ends", "Single run: first moment after the interval. Backfill: leave it empty."),
}
REPLAY_ARGUMENTS = [
    "{% if params.window_start %}--window-start={{ params.window_start }}"
    "{% elif dag_run.run_type == 'backfill' %}--window-start={{ data_interval_start.isoformat() }}{% endif %}",
    "{% if params.window_end %}--window-end={{ params.window_end }}"
    "{% elif dag_run.run_type == 'backfill' %}--window-end={{ data_interval_end.isoformat() }}{% endif %}",
]
