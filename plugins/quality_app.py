"""The quality pages of all pipelines inside Airflow's web server, behind its login, at /quality/<pipeline>/."""

from __future__ import annotations

import re

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse, RedirectResponse

from include.warehouse_folder import pages_folder, warehouse_root

_PAGE = re.compile(r"(index|batch-\d{1,18}(-expectations)?)\.html")

app = FastAPI(dependencies=[Depends(requires_access_view(AccessView.WEBSITE))])


@app.get("/{pipeline}")
def to_latest(pipeline: str) -> RedirectResponse:
    """Sends to the latest batch's page."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", pipeline):
        raise HTTPException(404, "no such pipeline")
    return RedirectResponse(f"{pipeline}/index.html")


@app.get("/{pipeline}/{page}")
def quality_page(pipeline: str, page: str) -> FileResponse:
    """One page; only names of the known form are looked for, so no path leads out of the folder."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", pipeline) or not _PAGE.fullmatch(page):
        raise HTTPException(404, "no such page")
    path = pages_folder(warehouse_root(), pipeline) / page
    if not path.is_file():
        raise HTTPException(404, f"no batch of {pipeline} has been reported yet")
    return FileResponse(path, media_type="text/html", headers={"Cache-Control": "no-store"})
