"""The quality pages of all pipelines inside Airflow's web server, behind its login and its permissions on DAGs, at /quality/<pipeline>/.

Everything shown is a file that a report wrote: nothing here asks the metadata database. Airflow's own login does (tokens that were taken back), and
so does its permission where there are teams.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from include.pipeline_config import pipeline_of
from include.warehouse_folder import pages_folder, warehouse_root
from plugins.quality_runs import batch_of

# Whatever a page may hold, a browser loads nothing from elsewhere for it.
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
}
_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_FILES = {
    re.compile(r"(index|trend|batch-[0-9]{1,18}(-expectations)?)\.html"): "text/html",
    re.compile(r"(trend-data|batch-[0-9]{1,18})\.js"): "text/javascript",
    re.compile(r"metrics\.prom"): _METRICS,
}


def may_read(dag_id: str, user: GetUserDep) -> None:
    """Refuses whom Airflow does not let see the DAG: 403."""
    team = DagModel.get_team_name(dag_id) if conf.getboolean("core", "multi_team", fallback=False) else None
    if not get_auth_manager().is_authorized_dag(method="GET", details=DagDetails(id=dag_id, team_name=team), user=user):
        raise HTTPException(403, "Forbidden")


app = FastAPI(
    dependencies=[Depends(requires_access_view(AccessView.WEBSITE)), Depends(may_read)], docs_url=None, openapi_url=None
)


@app.get("/-/dag/{dag_id}")
@app.get("/-/dag/{dag_id}/run/{run_id}")
@app.get("/-/dag/{dag_id}/run/{run_id}/task/{task_id}")
def to_batch(request: Request, dag_id: str, run_id: str | None = None, task_id: str | None = None) -> Response:
    """Sends from Airflow's page of a DAG, run or task to the report of its batch: of a DAG the newest one."""
    name = _pipeline(pipeline_of(dag_id))
    batch_id = batch_of(_folder(name), dag_id, run_id, task_id) if run_id else None
    if run_id and batch_id is None:
        return _not_yet(f"This run has not worked on a batch of {name} yet.", f"{_up(request)}{name}")
    page = "index" if batch_id is None else f"batch-{batch_id}"
    if batch_id is not None and not (_folder(name) / f"{page}.html").is_file():
        return _not_yet(f"Batch {batch_id} of {name} is not reported yet.", f"{_up(request)}{name}")
    return RedirectResponse(f"{_up(request)}{name}/{page}.html")


@app.get("/{dag_id}")
def to_latest(dag_id: str) -> RedirectResponse:
    """Sends to the latest batch's page."""
    return RedirectResponse(f"{_pipeline(dag_id)}/index.html")


@app.get("/{dag_id}/{page}")
def quality_page(dag_id: str, page: str) -> Response:
    """One file; only names of the known forms are looked for, so no path leads out of the folder. The pipeline has the name of its DAG."""
    name = _pipeline(dag_id)
    page = "metrics.prom" if page == "metrics" else page
    media_type = next((media_type for form, media_type in _FILES.items() if form.fullmatch(page)), None)
    if media_type is None:
        raise HTTPException(404, "no such page")
    path = _folder(name) / page
    if not path.is_file():
        return _not_yet(f"No batch of {name} has been reported yet, or not this one.", ".")
    return FileResponse(path, media_type=media_type, headers=_HEADERS)


def _pipeline(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise HTTPException(404, "no such pipeline")
    return name


def _folder(pipeline: str) -> Path:
    return pages_folder(warehouse_root(), pipeline)


def _up(request: Request) -> str:
    # Relative, since Airflow may be served below a path.
    return "../" * request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/").count("/")


def _not_yet(told: str, pages: str) -> HTMLResponse:
    text = (
        '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>Nothing yet</title>'
        "<style>:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}body{margin:2rem}</style>"
        f'<p>{html.escape(told)}</p><p><a href="{html.escape(pages)}/trend.html">All batches</a></p>'
    )
    return HTMLResponse(text, status_code=404, headers=_HEADERS)
