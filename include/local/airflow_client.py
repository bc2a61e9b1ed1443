"""A client for the calls of Airflow's REST API that the demo and the end-to-end tests need."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

COMPONENTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
FINAL_RUN_STATES = ("success", "failed")
# Airflow lists at most so many.
RUNS_AT_ONCE = 100
# Repetitions of a request that Airflow could not answer at that moment.
READ_AGAIN = 3


class AirflowError(Exception):
    """Airflow refused or did not answer in time; the text is one line."""


class AirflowUnavailable(AirflowError):
    """Airflow did not answer, or could not at that moment: its database was locked, for one."""


class AirflowKnowsNothing(AirflowError):
    """Airflow has no such object, or not yet."""


class AirflowClient:
    """Calls the Airflow at `url` as `user`; logs in when needed. Every method raises AirflowError."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self.user = user
        self.password = password
        self._token: str | None = None

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The parsed answer to a call of `/api/v2<path>`."""
        if self._token is None:
            login = {"username": self.user, "password": self.password}
            self._token = str(self._send("POST", "/auth/token", login)["access_token"])
        for _ in range(READ_AGAIN if method in ("GET", "PATCH") else 0):
            try:
                return self._send(method, f"/api/v2{path}", body)
            except AirflowUnavailable:
                time.sleep(1)
        return self._send(method, f"/api/v2{path}", body)

    def health(self) -> dict[str, str]:
        """Status of each part (metadatabase, scheduler, dag_processor, triggerer); needs no login."""
        return {part: str(answer.get("status")) for part, answer in self._health().items()}

    def takes_tasks(self) -> bool:
        """Whether the API of tasks answers; needs no login. It is built at its first request, which takes longer than a task would wait."""
        try:
            return bool(self._send("GET", "/execution/health", None)["status"] == "healthy")
        except AirflowError:
            return False

    def is_healthy(self, since: datetime | None = None) -> bool:
        """Whether every part is healthy and, if `since` is given, had a heartbeat at or after that time.

        Airflow itself calls a part healthy until half a minute after it was killed.
        """
        try:
            parts = self._health()
        except AirflowError:
            return False
        beats = [parts[part].get(f"latest_{part}_heartbeat") for part in COMPONENTS[1:]]
        shown = since is None or all(beat is not None and datetime.fromisoformat(beat) >= since for beat in beats)
        return shown and all(answer.get("status") == "healthy" for answer in parts.values())

    def _health(self) -> dict[str, dict[str, Any]]:
        answer = self._send("GET", "/api/v2/monitor/health", None)
        return {part: answer.get(part) or {} for part in COMPONENTS}

    def wait_for_dag(self, dag_id: str, timeout_s: float) -> dict[str, Any]:
        """The DAG when Airflow has parsed it. Raises AirflowError after `timeout_s`, or with the import error."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                dag: dict[str, Any] = self.call("GET", f"/dags/{quote(dag_id)}")
                if not dag["is_stale"]:
                    return dag
            except AirflowKnowsNothing:
                pass
            for broken in self.call("GET", "/importErrors")["import_errors"]:
                cause = str(broken["stack_trace"]).strip().splitlines()[-1]
                raise AirflowError(f"{broken['filename']} cannot be imported: {cause}")
            if time.monotonic() > deadline:
                raise AirflowError(f"Airflow did not find a DAG {dag_id} within {timeout_s:.0f} s")
            time.sleep(0.5)

    def pause(self, dag_id: str, is_paused: bool) -> None:
        """Pauses the DAG's schedule, or unpauses it."""
        self.call("PATCH", f"/dags/{quote(dag_id)}?update_mask=is_paused", {"is_paused": is_paused})

    def trigger(self, dag_id: str, params: dict[str, Any] | None = None) -> str:
        """Starts a run by hand; returns its run id."""
        body = {"logical_date": None, "conf": params or {}}
        return str(self.call("POST", f"/dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def runs(
        self, dag_id: str, states: tuple[str, ...] = (), limit: int = RUNS_AT_ONCE, offset: int = 0
    ) -> list[dict[str, Any]]:
        """The newest runs first, without the first `offset`, in one of `states` if given."""
        page = [("order_by", "-run_after"), ("limit", limit), ("offset", offset)]
        query = urlencode([*page, *(("state", state) for state in states)])
        answer: list[dict[str, Any]] = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns?{query}")["dag_runs"]
        return answer

    def active_runs(self, dag_id: str) -> list[str]:
        """Ids of the runs that are queued or running."""
        return [run["dag_run_id"] for run in self.runs(dag_id, ("queued", "running"))]

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return str(self.call("GET", f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}")["state"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The run's task instances by task id."""
        answer = self.call("GET", f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/taskInstances")
        return {task["task_id"]: task for task in answer["task_instances"]}

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """State of each task, None before it is scheduled."""
        return {name: task["state"] for name, task in self.tasks(dag_id, run_id).items()}

    def wait_for_run(
        self, dag_id: str, run_id: str, timeout_s: float, on_change: Callable[[str, str], None] = lambda task, state: None
    ) -> str:
        """The run's final state; `on_change(task, state)` is called whenever a task's state has changed."""
        deadline = time.monotonic() + timeout_s
        seen: dict[str, str | None] = {}
        while True:
            state = self.run_state(dag_id, run_id)
            now = self.task_states(dag_id, run_id)
            for task, task_state in sorted(now.items(), key=lambda item: item[1] != "success"):
                if task_state is not None and task_state != seen.get(task):
                    on_change(task, task_state)
            seen = now
            if state in FINAL_RUN_STATES:
                return state
            if time.monotonic() > deadline:
                raise AirflowError(f"run {run_id} of {dag_id} has not ended after {timeout_s:.0f} s: {now}")
            time.sleep(0.3)

    def task_log(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """The lines of a task's latest try."""
        attempt = max(1, int(self.tasks(dag_id, run_id)[task_id]["try_number"]))
        path = f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}/taskInstances/{quote(task_id)}/logs/{attempt}"
        content = self.call("GET", f"{path}?full_content=true")["content"]
        return [line if isinstance(line, str) else _log_line(line) for line in content]

    def _send(self, method: str, path: str, body: object) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            # No proxy of the user's environment stands between this machine and itself.
            with _OPENER.open(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            detail = " ".join(error.read().decode(errors="replace").split())[:300]
            kind = AirflowUnavailable if error.code >= 500 else _KINDS.get(error.code, AirflowError)
            raise kind(f"Airflow answered {error.code} to {method} {path}: {detail}") from None
        except (OSError, ValueError) as error:
            raise AirflowUnavailable(f"no answer from Airflow at {self.url} ({error}): make stop, then make demo") from None


_KINDS = {404: AirflowKnowsNothing}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _log_line(line: dict[str, Any]) -> str:
    """A structured log line as text, with the type and text of the error it carries."""
    causes = [f"{detail.get('exc_type')}: {detail.get('exc_value')}" for detail in line.get("error_detail") or []]
    return " ".join([str(line.get("event", "")), *causes]).strip()
