"""Which parts of the platform live: Airflow's by their heartbeats, as its own health page has them, servers by a connection.

A look costs a few queries and connections, so its answer serves for some seconds. It says that somebody listens, not that a job would succeed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from functools import partial
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from airflow.sdk.bases.hook import BaseHook

from include.config.pipeline import KAFKA, PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline

WITHIN_S = 2.0
_CONNECT_WITHIN_S = 1.5
_SERVES_FOR_S = 5.0
_CONNECTION_SERVES_FOR_S = 300.0
_SPARK = "spark_default"
_SPARK_PORT = 15002
_DATABASE = "metadata database"
# As Airflow's health page calls them -> as people do.
_BY_HEARTBEAT = {"scheduler": "scheduler", "dag_processor": "DAG processor", "triggerer": "triggerer"}


class Part(NamedTuple):
    """`text`: how that is known, in a few words for people."""

    name: str
    ok: bool
    text: str


_lock = Lock()
_connections: dict[str, tuple[float, Any]] = {}
_last: tuple[float, list[Part]] = (float("-inf"), [])


def parts() -> list[Part]:
    """All parts, always in the same order; at most 5 s old, within 2 s. What does not answer by then is not ok. Never raises."""
    global _last
    with _lock:
        if time.monotonic() - _last[0] > _SERVES_FOR_S:
            found = look()
            _last = time.monotonic(), found
        return _last[1]


def look() -> list[Part]:
    """The same, of this moment."""
    checks: list[tuple[tuple[str, ...], Callable[[], list[Part]]]] = [
        (("API server",), _api_server),
        ((_DATABASE, *_BY_HEARTBEAT.values()), _by_heartbeat),
        (("Spark server",), _spark_server),
        *(((_kafka_name(connection),), partial(_kafka, connection)) for connection in _kafka_connections()),
    ]
    pool = ThreadPoolExecutor(len(checks), thread_name_prefix="parts")
    asked = [(names, pool.submit(check)) for names, check in checks]
    wait([answer for _, answer in asked], timeout=WITHIN_S)
    pool.shutdown(wait=False)
    found: list[Part] = []
    for names, answer in asked:
        if not answer.done():
            found += [Part(name, False, f"no answer within {WITHIN_S:g} s") for name in names]
        elif error := answer.exception():
            # Only the type: the text of a database's error may hold its address.
            found += [Part(name, False, f"cannot be asked: {type(error).__name__}") for name in names]
        else:
            found += answer.result()
    return found


def _api_server() -> list[Part]:
    """Where tasks reach it. A request would tell less of an API server that is busy: its own look is one of its requests."""
    from airflow.executors.base_executor import get_execution_api_server_url

    address = get_execution_api_server_url()
    return [_listens("API server", [_place(address, 443 if address.startswith("https:") else 80)])]


def _by_heartbeat() -> list[Part]:
    from airflow.api.common.airflow_health import HEALTHY, get_airflow_health

    health = get_airflow_health()
    if health["metadatabase"]["status"] != HEALTHY:
        return [Part(name, False, "the metadata database does not answer") for name in (_DATABASE, *_BY_HEARTBEAT.values())]
    beats = [
        _beat(name, health[key]["status"] == HEALTHY, health[key][f"latest_{key}_heartbeat"])
        for key, name in _BY_HEARTBEAT.items()
    ]
    return [Part(_DATABASE, True, "answers"), *beats]


def _beat(name: str, ok: bool, at: str | None) -> Part:
    if at is None:
        return Part(name, ok, "has never run")
    seconds = max(0, round((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()))
    return Part(
        name, ok, f"heartbeat {seconds} s ago" if ok else f"last heartbeat {seconds} s ago: see its log, start it again"
    )


def _spark_server() -> list[Part]:
    """Empty if each job has a Spark of its own."""
    connection = _connection(_SPARK)
    if connection.conn_type != "spark_connect":
        return []
    host, port = _place(connection.host or "localhost", connection.port or _SPARK_PORT)
    return [_listens("Spark server", [(host, port)])]


def _kafka_connections() -> list[str]:
    """Those of all pipelines, kafka_default first; a file that is refused has a DAG that says so."""
    named = {KAFKA: None}
    for file in sorted(PIPELINES.glob("*.yaml")):
        try:
            named |= dict.fromkeys(load_pipeline(file).connections)
        except PipelineError:
            continue
    return [*named]


def _kafka_name(connection: str) -> str:
    return "Kafka" if connection == KAFKA else f"Kafka ({connection})"


def _kafka(connection: str) -> list[Part]:
    """One broker of the cluster is enough for a client to find the others."""
    servers = str(_connection(connection).extra_dejson.get("bootstrap.servers", ""))
    places = [_place(server.strip(), 9092) for server in servers.split(",") if server.strip()]
    return [_listens(_kafka_name(connection), places)]


def _connection(name: str) -> Any:
    """At most five minutes old: it seldom changes, and of some types Airflow logs a warning each time."""
    at, known = _connections.get(name, (float("-inf"), None))
    if time.monotonic() - at > _CONNECTION_SERVES_FOR_S:
        known = BaseHook.get_connection(name)
        _connections[name] = time.monotonic(), known
    return known


def _place(address: str, port: int) -> tuple[str, int]:
    parts = urlsplit(address if "://" in address else f"//{address}")
    return parts.hostname or "", parts.port or port


def _listens(name: str, places: list[tuple[str, int]]) -> Part:
    text, until = "no address is configured", time.monotonic() + _CONNECT_WITHIN_S
    for place in places:
        address = f"{place[0]}:{place[1]}"
        try:
            socket.create_connection(place, timeout=max(0.1, until - time.monotonic())).close()
        except OSError as error:
            text = f"{address} does not answer: {error}"
        else:
            return Part(name, True, f"{address} answers")
    return Part(name, False, text)
