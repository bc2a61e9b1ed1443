"""The parts of the platform inside Airflow's web server, behind its login: /parts/ as JSON, /parts/metrics for Prometheus.

plugins/event_pairing.py registers the app. While it is served, its process tells of parts that are down.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from json import dumps
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse, Response

from include.airflow.part_alerts import start_watch
from include.airflow.parts import parts
from include.config.health import OPENMETRICS

_HEAD = (
    "# TYPE event_pairing_part_up gauge\n# HELP event_pairing_part_up 1: the part of the platform answers, 0: it does not\n"
)
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@asynccontextmanager
async def _watching(_: FastAPI) -> AsyncIterator[None]:
    start_watch()
    yield


app = FastAPI(
    dependencies=[Depends(requires_access_view(AccessView.WEBSITE))], lifespan=_watching, docs_url=None, openapi_url=None
)


# Not async: Airflow's event loop does not wait for them.
@app.get("/")
def as_json() -> JSONResponse:
    """`[{"name": …, "ok": …, "text": …}, …]`."""
    found: list[dict[str, Any]] = [part._asdict() for part in parts()]
    return JSONResponse(found, headers=_HEADERS)


@app.get("/metrics")
def as_metrics() -> Response:
    """One gauge with a sample for each part."""
    # A connection's name may have a backslash in it, which JSON writes as OpenMetrics does.
    samples = "".join(
        f"event_pairing_part_up{{part={dumps(part.name, ensure_ascii=False)}}} {part.ok:d}\n" for part in parts()
    )
    return Response(f"{_HEAD}{samples}# EOF\n", media_type=OPENMETRICS, headers=_HEADERS)
