"""Shows the quality pages of all pipelines inside Airflow: a navigation entry each, served by plugins/quality_app.py."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from include.pipeline_config import PIPELINES


def _views() -> list[dict[str, Any]]:
    names = [path.stem for path in sorted(PIPELINES.glob("*.yaml"))]
    return [
        {
            "name": f"Quality: {name}",
            "href": f"/quality/{name}/index.html",
            "destination": "nav",
            "url_route": f"quality-{name}",
        }
        for name in names
    ]


class QualityPages(AirflowPlugin):
    """Registers the pages and a navigation entry a pipeline."""

    name = "quality_pages"
    external_views = _views()

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Asked for by the API server only. Every task's process loads this plugin, too, and should not wait for a web framework."""
        from plugins.quality_app import app

        return [{"app": app, "url_prefix": "/quality", "name": "Quality pages"}]
