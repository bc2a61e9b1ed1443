"""The quality pages of all pipelines inside Airflow's web server, behind its login and its permissions on DAGs, at /quality/<pipeline>/, and
a page over all of them at /quality/.

Everything shown of a pipeline is a file that a report wrote. The page over all also asks the metadata database which servers live and which DAGs
are paused; the state and the metrics of a pipeline ask it whether the DAG is paused. Nothing else here reads it. Airflow's own login does (for
revoked tokens), and so do its permissions where there are teams.
plugins/event_pairing.py registers the app.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import cache
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from airflow.exceptions import AirflowNotFoundException
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, StrictUndefined

from include.airflow.connections import WAREHOUSE, options_of
from include.airflow.current import current_metrics, current_state
from include.airflow.overview import overview, overview_style
from include.airflow.pages import batch_of
from include.config.health import FILE as STATE_FILE
from include.config.health import METRICS_FILE, OPENMETRICS
from include.config.page_head import POLICY, THEME, THEME_FILE
from include.config.pipeline import MAINTENANCE_SUFFIX, PIPELINES, pipeline_of
from include.config.store import Store, exists, local_folder, pages_store, read_text, warehouse_root

# Of every answer. Airflow shows the pages in a frame of its own.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The data are scripts, which a page of another site could load with the cookies of somebody who is logged in.
    "Cross-Origin-Resource-Policy": "same-origin",
}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FILES = {
    re.compile(r"(index|trend|batch-[0-9]{1,18}(-expectations)?)\.html"): "text/html",
    re.compile(r"(charts|trend|trend-data|batch-[0-9]{1,18})\.js"): "text/javascript",
    re.compile(r"(page|trend)\.css"): "text/css",
    re.compile(r"metrics\.prom"): OPENMETRICS,
    re.compile(r"state\.json"): "application/json",
}
# These say more than the files of their names: what no report can know.
_CURRENT = {METRICS_FILE: current_metrics, STATE_FILE: current_state}
_NOTHING = Environment(autoescape=True, undefined=StrictUndefined).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>No quality page</title>
<script src="{{ own }}/theme.js"></script><link rel="stylesheet" href="{{ own }}/message.css"></head>
<body><p>{{ text }}</p>{% if trend %}<p><a href="{{ trend }}">All batches</a></p>{% endif %}</body></html>
""")
# Of that page, which is there before any report has written a file, and of the page over all pipelines.
_OWN = {
    THEME_FILE: (THEME, "text/javascript"),
    "overview.css": (overview_style(), "text/css"),
    "message.css": (
        ":root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; } body { margin: 2rem; }\n",
        "text/css",
    ),
}


def may_read(dag_id: str, user: GetUserDep) -> None:
    """Answers 403 to a user who may not see the DAG in Airflow."""
    if not _sees(user, dag_id):
        raise HTTPException(403, "Forbidden")


def _sees(user: BaseUser, dag_id: str) -> bool:
    team = DagModel.get_team_name(dag_id) if conf.getboolean("core", "multi_team", fallback=False) else None
    return get_auth_manager().is_authorized_dag(method="GET", details=DagDetails(id=dag_id, team_name=team), user=user)


app = FastAPI(dependencies=[Depends(requires_access_view(AccessView.WEBSITE))], docs_url=None, openapi_url=None)
# Everything of one pipeline.
_OF_DAG = [Depends(may_read)]


@app.middleware("http")
async def with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refusals and redirects have the headers, too. A browser without a login is sent to Airflow's form, which leads back here."""
    answer = await call_next(request)
    if answer.status_code == 401 and request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        answer = RedirectResponse(f"{_up(request)}../api/v2/auth/login?next={quote(request.url.path, safe='')}")
    answer.headers.update(_HEADERS)
    return answer


@app.get("/")
def all_pipelines(user: GetUserDep) -> HTMLResponse:
    """The page over all pipelines that the user may read."""
    return HTMLResponse(
        overview([name for file in sorted(PIPELINES.glob("*.yaml")) if _sees(user, name := file.stem)], _pages)
    )


@app.get("/-/{page}")
def own_file(page: str) -> Response:
    """What the page over all pipelines loads."""
    if page not in _OWN:
        raise HTTPException(404, "no such page")
    return Response(_OWN[page][0], media_type=_OWN[page][1])


@app.get("/-/dag/{dag_id}", dependencies=_OF_DAG)
@app.get("/-/dag/{dag_id}/run/{run_id}", dependencies=_OF_DAG)
@app.get("/-/dag/{dag_id}/run/{run_id}/task/{task_id}", dependencies=_OF_DAG)
def to_batch(request: Request, dag_id: str, run_id: str | None = None, task_id: str | None = None) -> Response:
    """Redirects from Airflow's page of a DAG, run or task to the report of its batch; of a DAG, to the newest."""
    name = pipeline_of(dag_id)
    if not _NAME.fullmatch(name) or not ((PIPELINES / f"{name}.yaml").is_file() or _is_there(name, "index.html")):
        return _nothing(request, f"{dag_id} pairs no events: it has no quality page.")
    if run_id and dag_id == f"{name}{MAINTENANCE_SUFFIX}":
        return _nothing(request, "Maintenance works on the tables, not on a batch.", _trend(request, name))
    batch_id = batch_of(_pages(name), dag_id, run_id, task_id) if run_id else None
    if run_id and batch_id is None:
        return _nothing(request, f"This run has not worked on a batch of {name} yet.", _trend(request, name))
    page = "index" if batch_id is None else f"batch-{batch_id}"
    if batch_id is not None and not _is_there(name, f"{page}.html"):
        return _nothing(request, f"Batch {batch_id} of {name} is not reported yet.", _trend(request, name))
    return RedirectResponse(f"{_up(request)}{name}/{page}.html")


@app.get("/{dag_id}", dependencies=_OF_DAG)
def to_latest(dag_id: str) -> RedirectResponse:
    """Redirects to the newest batch's page."""
    return RedirectResponse(f"{_pipeline(dag_id)}/index.html")


@app.get("/{dag_id}/{page}", dependencies=_OF_DAG)
def quality_page(request: Request, dag_id: str, page: str) -> Response:
    """One file of a pipeline, which has the name of its DAG. Only names of known forms are read, so no path leads out of the folder."""
    if page in _OWN:
        return Response(_OWN[page][0], media_type=_OWN[page][1])
    name = _pipeline(dag_id)
    page = METRICS_FILE if page == "metrics" else page
    media_type = next((media_type for form, media_type in _FILES.items() if form.fullmatch(page)), None)
    if media_type is None:
        raise HTTPException(404, "no such page")
    text = _CURRENT[page](_pages(name)) if page in _CURRENT else read_text(_pages(name), page)
    if text is None:
        missing = f"No batch of {name} has been reported yet. The first run of the DAG brings the first one."
        if _is_there(name, "index.html"):
            missing = f"There is no such page of {name}: the batch is not reported yet, or its page is older than those that are kept."
        return _nothing(request, missing, _trend(request, name))
    return Response(text, media_type=media_type)


def _pipeline(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise HTTPException(404, "no such pipeline")
    return name


def _pages(pipeline: str) -> Store:
    return pages_store(pipeline, options=None if local_folder(warehouse_root()) else _options())


@cache
def _options() -> dict[str, str]:
    """The storage options of the connection warehouse_default, read once a process; empty without that connection."""
    try:
        return options_of(Connection.get_connection_from_secrets(WAREHOUSE))
    except AirflowNotFoundException:
        return {}


def _is_there(pipeline: str, page: str) -> bool:
    return exists(_pages(pipeline), page)


def _up(request: Request) -> str:
    # Relative, since Airflow may be served below a path.
    return "../" * request.scope["path"].removeprefix(request.scope.get("root_path", "")).strip("/").count("/")


def _trend(request: Request, pipeline: str) -> str:
    """The address of the page of all batches; empty if there is no such page yet."""
    return f"{_up(request)}{pipeline}/trend.html" if _is_there(pipeline, "trend.html") else ""


def _nothing(request: Request, text: str, trend: str = "") -> HTMLResponse:
    # The user was let in under this name.
    own = f"{_up(request)}{quote(request.path_params['dag_id'], safe='')}"
    return HTMLResponse(_NOTHING.render(own=own, text=text, trend=trend), status_code=404)
