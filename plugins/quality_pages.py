"""Shows the quality pages of all pipelines inside Airflow: in the navigation, and on DAGs, runs and tasks. plugins/quality_app.py serves them."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from include.config.pipeline import PIPELINES

# What the navigation shows of each pipeline.
_PAGES = {"index": "Quality", "trend": "Quality trend"}
# Where Airflow shows a DAG, one of its runs or tasks, the report of that batch; Airflow puts the ids in. Of other projects' DAGs there is none.
_PLACES = {
    "dag": "quality/-/dag/{DAG_ID}",
    "task": "quality/-/dag/{DAG_ID}",
    "dag_run": "quality/-/dag/{DAG_ID}/run/{RUN_ID}",
    "task_instance": "quality/-/dag/{DAG_ID}/run/{RUN_ID}/task/{TASK_ID}",
}


def _views() -> list[dict[str, Any]]:
    # Without a slash in front: Airflow may be served below a path.
    names = [path.stem for path in sorted(PIPELINES.glob("*.yaml"))]
    pages = [
        {
            "name": f"{told}: {name}",
            "href": f"quality/{name}/{page}.html",
            "destination": "nav",
            "url_route": f"quality-{page}-{name}",
        }
        for name in names
        for page, told in _PAGES.items()
    ]
    places = [
        {"name": "Quality", "href": href, "destination": place, "url_route": f"quality-of-{place.replace('_', '-')}"}
        for place, href in _PLACES.items()
    ]
    return pages + places


class QualityPages(AirflowPlugin):
    """Registers the pages and the places that lead to them."""

    name = "quality_pages"
    external_views = _views()

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Asked for by the API server only. Every task's process loads this plugin, too, and should not wait for a web framework."""
        from plugins.quality_app import app

        return [{"app": app, "url_prefix": "/quality", "name": "Quality pages"}]
