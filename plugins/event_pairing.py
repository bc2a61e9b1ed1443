"""All that Airflow registers of this project: the replay DAGs' timetable, the listeners, the quality pages with the places that lead to them,
and the parts of the platform. Airflow imports every file of this folder in every process, so nothing else is here, and the web framework is
imported on demand.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from include.airflow import forked_jobs, part_alerts, run_notes, scheduling
from include.config.pipeline import PIPELINES

# What the navigation shows of each pipeline.
_PAGES = {"index": "Quality", "trend": "Quality trend"}
# Where Airflow shows a DAG, a run or a task: the report of that batch. Airflow fills in the ids. DAGs of other projects have no report.
_PLACES = {
    "dag": "quality/-/dag/{DAG_ID}",
    "task": "quality/-/dag/{DAG_ID}",
    "dag_run": "quality/-/dag/{DAG_ID}/run/{RUN_ID}",
    "task_instance": "quality/-/dag/{DAG_ID}/run/{RUN_ID}/task/{TASK_ID}",
}


def _view(name: str, href: str, destination: str, route: str) -> dict[str, Any]:
    # `href` has no slash in front: Airflow may be served below a path.
    return {"name": name, "href": href, "destination": destination, "url_route": route}


class EventPairing(AirflowPlugin):
    """What is registered."""

    name = "event_pairing"
    timetables: list[Any] = [scheduling.OnlyBackfills]  # noqa: RUF012
    listeners: list[Any] = [scheduling, run_notes, forked_jobs, part_alerts]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        _view("Quality: all pipelines", "quality/", "nav", "quality-all"),
        *(
            _view(f"{title}: {file.stem}", f"quality/{file.stem}/{page}.html", "nav", f"quality-{page}-{file.stem}")
            for file in sorted(PIPELINES.glob("*.yaml"))
            for page, title in _PAGES.items()
        ),
        *(_view("Quality", href, place, f"quality-of-{place.replace('_', '-')}") for place, href in _PLACES.items()),
    ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Read by the API server only."""
        from include.airflow import parts_app, quality_app

        return [
            {"app": quality_app.app, "url_prefix": "/quality", "name": "Quality pages"},
            {"app": parts_app.app, "url_prefix": "/parts", "name": "Parts of the platform"},
        ]
