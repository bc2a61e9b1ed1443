"""The calls of the REST API, against a server that answers as Airflow does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from include.local.airflow_client import AirflowClient, AirflowError
from include.local.process import free_port


class FakeApi(BaseHTTPRequestHandler):
    """Answers like Airflow's REST API with what the test put into `answers`; notes every request."""

    answers: dict[str, list[tuple[int, Any]]]
    requests: list[str]

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        self.requests.append(f"{self.command} {path}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        prepared = self.answers.get(path, [(404, {"detail": "not found"})])
        status, body = prepared.pop(0) if len(prepared) > 1 else prepared[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    do_GET = do_POST = do_PATCH = answer

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def api() -> Iterator[SimpleNamespace]:
    class Api(FakeApi):
        answers = {"/auth/token": [(201, {"access_token": "t"})]}  # noqa: RUF012
        requests = []  # noqa: RUF012

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        client = AirflowClient(f"http://127.0.0.1:{server.server_port}", "admin", "secret")
        yield SimpleNamespace(client=client, answers=Api.answers, requests=Api.requests)
        server.shutdown()


def test_a_run_is_followed_to_its_end_and_each_change_is_told_once(api: SimpleNamespace) -> None:
    def tasks(**states: str | None) -> tuple[int, Any]:
        return 200, {"task_instances": [{"task_id": name, "state": state} for name, state in states.items()]}

    run = "/api/v2/dags/calls/dagRuns/manual__2026"
    api.answers[run] = [(200, {"state": "running"}), (200, {"state": "running"}), (200, {"state": "failed"})]
    api.answers[f"{run}/taskInstances"] = [
        tasks(land="running", pair=None),
        tasks(land="running", pair=None),
        tasks(land="success", pair="failed"),
    ]
    told: list[tuple[str, str]] = []
    assert api.client.wait_for_run("calls", "manual__2026", 20, lambda *change: told.append(change)) == "failed"
    assert told == [("land", "running"), ("land", "success"), ("pair", "failed")]
    assert api.requests.count("POST /auth/token") == 1


def test_a_question_that_airflow_could_not_answer_just_then_is_asked_again(api: SimpleNamespace) -> None:
    runs = "/api/v2/dags/calls/dagRuns"
    api.answers[runs] = [(500, {"detail": "database is locked"}), (200, {"dag_runs": [{"dag_run_id": "r"}]})]
    assert api.client.runs("calls") == [{"dag_run_id": "r"}]


def test_a_request_to_change_something_is_made_once(api: SimpleNamespace) -> None:
    runs = "/api/v2/dags/calls/dagRuns"
    api.answers[runs] = [(500, {"detail": "database is locked"})]
    with pytest.raises(AirflowError, match=r"^Airflow answered 500 to POST .*dagRuns: .*database is locked"):
        api.client.trigger("calls")
    assert api.requests.count(f"POST {runs}") == 1


def test_a_run_without_end_is_given_up(api: SimpleNamespace) -> None:
    run = "/api/v2/dags/calls/dagRuns/r"
    api.answers |= {run: [(200, {"state": "running"})], f"{run}/taskInstances": [(200, {"task_instances": []})]}
    with pytest.raises(AirflowError, match="run r of calls has not ended after 0 s"):
        api.client.wait_for_run("calls", "r", 0)


def test_a_dag_that_cannot_be_imported_is_named_with_its_error(api: SimpleNamespace) -> None:
    broken = {"filename": "event_pairing.py", "stack_trace": "Traceback\n  line\nPipelineError: calls.yaml: gap: missing\n"}
    api.answers["/api/v2/importErrors"] = [(200, {"import_errors": [broken]})]
    with pytest.raises(
        AirflowError, match=r"^event_pairing.py cannot be imported: PipelineError: calls.yaml: gap: missing$"
    ):
        api.client.wait_for_dag("calls", 5)


def test_health_of_a_part_that_was_killed_is_not_believed(api: SimpleNamespace) -> None:
    beats = {"scheduler": "12:00:05", "dag_processor": "12:00:00", "triggerer": "12:00:09"}
    answer: dict[str, Any] = {"metadatabase": {"status": "healthy"}}
    for part, beat in beats.items():
        answer[part] = {"status": "healthy", f"latest_{part}_heartbeat": f"2026-01-01T{beat}+00:00"}
    api.answers["/api/v2/monitor/health"] = [(200, answer)]
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert api.client.is_healthy()
    assert api.client.is_healthy(moment)
    assert not api.client.is_healthy(moment.replace(second=1))


def test_whether_tasks_are_answered(api: SimpleNamespace) -> None:
    api.answers["/execution/health"] = [(500, {}), (200, {"status": "healthy"})]
    assert [api.client.takes_tasks(), api.client.takes_tasks()] == [False, True]


def test_no_airflow_is_one_line() -> None:
    client = AirflowClient(f"http://127.0.0.1:{free_port()}", "admin", "secret")
    assert not client.is_healthy() and not client.takes_tasks()
    with pytest.raises(
        AirflowError, match=r"^no answer from Airflow at http://127\.0\.0\.1:\d+ \(.*\): make stop, then make demo$"
    ):
        client.runs("calls")
