"""The pages inside Airflow: who gets which file, and that nothing else is to be had. No metadata database is asked."""

from __future__ import annotations

import re

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api import security
from fastapi import FastAPI
from fastapi.testclient import TestClient

from include.airflow import current, overview, quality_app
from include.airflow.pages import batch_of, note_batch
from include.config.health import METRICS_FILE, write_state
from include.config.pipeline import PIPELINES
from plugins.event_pairing import EventPairing
from spark_jobs.quality.metrics_text import exposition
from spark_jobs.quality.pages import details_script
from spark_jobs.quality.trend_files import write_trend
from tests.helpers.batch_history import history
from tests.helpers.pages import pages_folder, pages_in
from tests.helpers.states import made_up_state

LOADED = re.compile(r"(?:<script src|<link rel=\"stylesheet\" href)=\"(.+?)\"")
RUN = "scheduled__2026-01-31T12:00:00+00:00"


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The pages of `calls`, with 17 batches."""
    monkeypatch.setenv("PAIRING_WAREHOUSE", str(tmp_path))
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "writer.lock").write_text("secret")
    folder = pages_folder(str(tmp_path), "calls")
    folder.mkdir()
    trend = write_trend(pages_in(folder), "calls", history(17), list)
    (folder / METRICS_FILE).write_text(exposition(trend))
    for name in ("index", "batch-17", "batch-17-expectations"):
        (folder / f"{name}.html").write_text(f"<p>{name}</p>")
    (folder / "batch-17.js").write_text(details_script(17, "<p>"))
    # Neither half-written files nor what somebody has put there.
    for name in ("index.html.draft", "notes.txt", "abatch-17.html"):
        (folder / name).write_text("secret")
    return folder


@pytest.fixture
def client(pages, monkeypatch):
    """client(role) is a browser of somebody with that role in Airflow's own simple auth manager; client(None) of nobody."""

    def asked(*_, **__):
        raise AssertionError("the metadata database was asked")

    monkeypatch.setattr("sqlalchemy.orm.session.Session.execute", asked)
    monkeypatch.setattr("sqlalchemy.engine.base.Engine.connect", asked)
    monkeypatch.setattr(security, "get_auth_manager", SimpleAuthManager)
    monkeypatch.setattr(quality_app, "get_auth_manager", SimpleAuthManager)
    airflow = FastAPI()
    airflow.mount("/quality", quality_app.app)

    def browser(role):
        overrides = quality_app.app.dependency_overrides
        overrides.clear()
        if role:
            overrides[security.get_user] = lambda: SimpleAuthManagerUser(
                username="somebody", role=None if role == "nothing" else role
            )
        return TestClient(airflow, follow_redirects=False)

    yield browser
    quality_app.app.dependency_overrides.clear()


PLACES = (
    "/quality/calls", "/quality/calls/index.html", "/quality/calls/trend.html", "/quality/calls/trend-data.js", "/quality/calls/batch-17.js",
    "/quality/calls/charts.js", "/quality/calls/state.json",
    "/quality/calls/metrics", f"/quality/-/dag/calls/run/{RUN}", "/quality/-/dag/calls", "/quality/calls/batch-99.html", "/quality/nobody/x",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_nobody_gets_anything_without_a_login(place, client):
    assert client(None).get(place).status_code == 401
    assert client("nothing").get(place).status_code == 403


def test_the_page_over_all_pipelines_has_those_that_the_user_may_read(client, pages, monkeypatch):
    monkeypatch.setattr(overview, "parts", list)
    monkeypatch.setattr(overview, "paused", set)
    write_state(pages_in(pages), made_up_state(17))
    assert client(None).get("/quality/").status_code == 401
    assert client("nothing").get("/quality/").status_code == 403
    answer = client("viewer").get("/quality/")
    assert answer.status_code == 200 and "calls is healthy" in answer.text
    assert answer.headers["content-security-policy"].endswith("frame-ancestors 'self'")
    for loaded, media_type in zip(LOADED.findall(answer.text), ("text/javascript", "text/css"), strict=True):
        file = client("viewer").get(str(answer.url.join(loaded)))
        assert file.status_code == 200 and file.headers["content-type"].startswith(media_type), loaded
        assert client("nothing").get(str(answer.url.join(loaded))).status_code == 403
    assert client("viewer").get("/quality/-/notes.txt").status_code == 404
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda *_, details, **__: details.id != "calls")
    answer = client("viewer").get("/quality/")
    assert answer.status_code == 200 and "none that you may read" in answer.text and "calls" not in answer.text


def test_a_bookmark_leads_to_the_login_form_and_back(client):
    browser, accepts = client(None), {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = browser.get("/quality/calls/batch-17.html", headers=accepts)
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        "../../api/v2/auth/login?next=%2Fquality%2Fcalls%2Fbatch-17.html",
    )
    assert (
        browser.get("/quality/calls", headers=accepts).headers["location"] == "../api/v2/auth/login?next=%2Fquality%2Fcalls"
    )
    # Of those who are logged in.
    assert client("nothing").get("/quality/calls/batch-17.html", headers=accepts).status_code == 403


def test_who_may_see_airflow_but_not_the_dag_gets_nothing(client, monkeypatch):
    others = []

    class NotCalls(SimpleAuthManager):
        def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
            others.append((method, details.id))
            return details.id != "calls"

    monkeypatch.setattr(quality_app, "get_auth_manager", NotCalls)
    assert {client("viewer").get(place).status_code for place in PLACES[:10]} == {403}
    assert set(others) == {("GET", "calls")}


@pytest.mark.parametrize(
    ("page", "media_type"),
    [("index.html", "text/html"), ("batch-17.html", "text/html"), ("batch-17-expectations.html", "text/html"), ("trend.html", "text/html"),
     ("trend-data.js", "text/javascript"), ("batch-17.js", "text/javascript"), ("charts.js", "text/javascript"),
     ("trend.js", "text/javascript"), ("theme.js", "text/javascript"), ("page.css", "text/css"), ("trend.css", "text/css"),
     ("metrics", "application/openmetrics-text; version=1.0.0"), ("metrics.prom", "application/openmetrics-text; version=1.0.0")],
)  # fmt: skip
def test_a_viewer_gets_the_files(page, media_type, client, pages):
    answer = client("viewer").get(f"/quality/calls/{page}")
    file = pages / (page if page != "metrics" else "metrics.prom")
    assert (answer.status_code, answer.content) == (200, file.read_bytes())
    assert answer.headers["content-type"].startswith(media_type)
    assert answer.headers["cache-control"] == "no-store"


def test_state_and_metrics_say_whether_the_dag_is_paused(client, pages, monkeypatch):
    write_state(pages_in(pages), made_up_state(17))
    monkeypatch.setattr(current, "paused", set)
    answer = client("viewer").get("/quality/calls/state.json")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.json()["verdict"], answer.json()["is_paused"]) == ("healthy", True)
    for page in ("metrics", "metrics.prom"):
        assert 'event_pairing_paused{pipeline="calls"} 1\n' in client("viewer").get(f"/quality/calls/{page}").text


@pytest.mark.parametrize("role", [None, "nothing", "viewer"])
@pytest.mark.parametrize("place", PLACES)
def test_every_answer_tells_the_browser_what_it_must_not_do(place, role, client):
    """Pages, scripts, redirects and refusals alike."""
    headers = client(role).get(place).headers
    policy = dict(directive.split(" ", 1) for directive in headers["content-security-policy"].split("; "))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "base-uri": "'none'", "form-action": "'none'",
        "frame-ancestors": "'self'",
    }  # fmt: skip
    others = (
        "cache-control",
        "x-frame-options",
        "x-content-type-options",
        "referrer-policy",
        "cross-origin-resource-policy",
    )
    assert [headers[name] for name in others] == ["no-store", "SAMEORIGIN", "nosniff", "no-referrer", "same-origin"]


def test_what_a_page_without_a_report_loads_is_there(client, pages):
    browser = client("viewer")
    for start in ("/quality/-/dag/others", "/quality/-/dag/Other.s%3Cb%3E", "/quality/calls/batch-99.html"):
        page = browser.get(start)
        for loaded, media_type in zip(LOADED.findall(page.text), ("text/javascript", "text/css"), strict=True):
            answer = browser.get(str(page.url.join(loaded)))
            assert answer.status_code == 200 and answer.headers["content-type"].startswith(media_type), loaded
        assert "<style" not in page.text and "<script>" not in page.text


@pytest.mark.parametrize(
    "path",
    ["calls/..%2Fwriter.lock", "calls/..%2f..%2fcalls%2fwriter.lock", "calls/%2e%2e/writer.lock", "..%2fcalls/index.html", "calls/index.html%00",
     "calls//etc/passwd", "calls/runs", "calls/runs/x.json", "calls/index.html.draft", "calls/notes.txt", "calls/abatch-17.html",
     "calls/batch-17.html%0a", "Calls/index.html",
     "calls/batch-\u0661\u0667.html", "./index.html", "-/dag/..%2fcalls", "-/dag/calls%2f..", "-/dag/_replay", "-/dag/calls/run/x/../../../calls/writer.lock"],
)  # fmt: skip
def test_no_path_leads_out_of_the_pages(path, client):
    answer = client("admin").get(f"/quality/{path}")
    assert answer.status_code == 404
    assert b"secret" not in answer.content


def landed_at(client, start):
    """Where a browser ends that follows every redirect."""
    client.follow_redirects = True
    answer = client.get(start)
    return answer.status_code, answer.url.path, answer.text


def test_a_dag_a_run_and_a_task_lead_to_their_batch(client, pages):
    note_batch(pages_in(pages), "calls", RUN, "land_events", 17)
    note_batch(pages_in(pages), "calls", RUN, "publish_compounds", 18)
    browser = client("viewer")
    newest, mine = "/quality/calls/index.html", "/quality/calls/batch-17.html"
    for start, end in (
        ("/quality/calls", newest),
        ("/quality/calls/", newest),
        ("/quality/-/dag/calls", newest),
        ("/quality/-/dag/calls_replay", newest),
        (f"/quality/-/dag/calls/run/{RUN}", mine),
        (f"/quality/-/dag/calls/run/{RUN.replace('+', '%2B').replace(':', '%3A')}", mine),
        (f"/quality/-/dag/calls/run/{RUN}/task/land_events", mine),
        (f"/quality/-/dag/calls/run/{RUN}/task/report_quality", mine),
    ):
        assert landed_at(browser, start)[:2] == (200, end), start
    for start, told in (
        (f"/quality/-/dag/calls/run/{RUN}/task/publish_compounds", "Batch 18 of calls is not reported yet"),
        ("/quality/-/dag/calls/run/manual__x", "has not worked on a batch of calls yet"),
        (f"/quality/-/dag/calls_replay/run/{RUN}", "has not worked on a batch of calls yet"),
        (f"/quality/-/dag/calls_maintenance/run/{RUN}", "works on the tables, not on a batch"),
        ("/quality/-/dag/others", "others pairs no events: it has no quality page"),
        ("/quality/-/dag/Other.s%3Cb%3E", "Other.s&lt;b&gt; pairs no events: it has no quality page"),
        ("/quality/calls/batch-99.html", "no such page of calls"),
    ):
        status, _, text = landed_at(browser, start)
        assert status == 404 and told in text
        assert ("trend.html" in text) is ("no quality page" not in text), "a link where there is something to see"
    for page in pages.iterdir():
        page.is_file() and page.unlink()
    status, _, text = landed_at(browser, "/quality/-/dag/calls")
    assert status == 404 and "The first run of the DAG brings the first one" in text and "<a href" not in text


def test_airflow_below_a_path_is_led_right(pages, client):
    note_batch(pages_in(pages), "calls", RUN, "land_events", 17)
    client("viewer")
    outer = FastAPI()
    airflow = FastAPI()
    airflow.mount("/quality", quality_app.app)
    outer.mount("/airflow", airflow)
    browser = TestClient(outer)
    for start in (f"/-/dag/calls/run/{RUN}", f"/-/dag/calls/run/{RUN}/task/land_events"):
        assert landed_at(browser, f"/airflow/quality{start}")[:2] == (200, "/airflow/quality/calls/batch-17.html")


def test_a_run_is_told_by_its_dag_and_a_folder_that_cannot_be_written_fails_no_task(tmp_path, caplog):
    note_batch(pages_in(tmp_path), "calls", "same", "land_events", 3)
    note_batch(pages_in(tmp_path), "calls_replay", "same", "replay_interval", 4)
    assert (batch_of(pages_in(tmp_path), "calls", "same"), batch_of(pages_in(tmp_path), "calls_replay", "same")) == (3, 4)
    (tmp_path / "file").write_text("")
    note_batch(pages_in(tmp_path / "file"), "calls", "same", "land_events", 3)
    assert "will not be found" in caplog.text
    next((tmp_path / "runs").glob("*.json")).write_text("{")
    assert {batch_of(pages_in(tmp_path), name, "same") for name in ("calls", "calls_replay")} in ({None, 3}, {None, 4})


def test_the_views_lead_to_routes_that_exist(client, pages, monkeypatch):
    monkeypatch.setattr(overview, "parts", list)
    monkeypatch.setattr(overview, "paused", set)
    note_batch(pages_in(pages), "calls", RUN, "land_events", 17)
    views = EventPairing.external_views
    assert {view["destination"] for view in views} == {"nav", "dag", "dag_run", "task", "task_instance"}
    assert len({view["url_route"] for view in views}) == len(views) == 2 * len([*PIPELINES.glob("*.yaml")]) + 5
    for view in views:
        href = view["href"].replace("{DAG_ID}", "calls").replace("{RUN_ID}", RUN).replace("{TASK_ID}", "land_events")
        assert "{" not in href and landed_at(client("viewer"), f"/{href}")[0] == 200, href
