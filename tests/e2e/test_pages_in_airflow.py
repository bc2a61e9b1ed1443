"""The pages and forms as a person has them: in a real Airflow, logged in by its form, in a real browser. Nothing runs in that Airflow."""

from __future__ import annotations

import json
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from include.airflow.pages import note_batch
from include.config.pipeline import MAINTENANCE_SUFFIX, REPLAY_SUFFIX
from tests.helpers.airflow_pages import (
    FAILED,
    FRAME,
    airflow_with_history,
    button,
    dark,
    dialog,
    framed,
    go,
    has,
    in_dialog,
    log_in,
    open_dialog,
    to_quality,
)
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.local_postgres import NEEDED as NO_POSTGRES
from tests.helpers.local_postgres import local_postgres, programs
from tests.helpers.pages import pages_folder, pages_in
from tests.helpers.stores import skip_or_fail
from tests.helpers.timeline import CALLS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason=f"the pages in Airflow were not looked at: {NEEDED}"),
]
DAG = f"/dags/{CALLS.name}"
FIELDS = {
    "Records at most": "In this batch, instead of max_records_per_batch.",
    "Accept lost ranges": "topic-partition:first-until, with spaces between: go on without these records, which the broker no longer has. "
    "Copy them from the failed task.",
    "Release batch": "With quality.gate: before_publish, publish up to this batch although it failed its checks.",
    "Report only": "Land, pair and publish nothing; count what is there afresh and write the quality page.",
}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def airflow_and_runs(request, tmp_path_factory):
    """Airflow on each of its databases, and the ids of three runs: of the batch that failed, and of the two before it."""
    with ExitStack() as until_then:
        database = None
        if request.param == "postgres":
            if programs() is None:
                skip_or_fail(NO_POSTGRES)
            database = until_then.enter_context(local_postgres())
        shown = range(FAILED - 2, FAILED + 1)
        yield until_then.enter_context(airflow_with_history(tmp_path_factory.mktemp("airflow"), shown, database))


@pytest.fixture(scope="module")
def airflow(airflow_and_runs):
    return airflow_and_runs[0]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("chromium"), width=1400, height=900) as page:
        yield page


@pytest.fixture
def stranger(chrome):
    """A browser in which nobody is logged in; whatever fails in its pages, or is asked of another machine, fails the test."""
    chrome.errors.clear()
    chrome.requests.clear()
    chrome.stopped.clear()
    chrome.send("Network.clearBrowserCookies")
    yield chrome
    chrome.ask("1")
    assert chrome.errors == [] and chrome.stopped == []
    # What the editor in Airflow's forms makes for itself, and pages without an address.
    own = ("about:", "blob:http://127.0.0.1:", "data:")
    assert {urlsplit(each).hostname for each in chrome.requests if not each.startswith(own)} == {"127.0.0.1"}


@pytest.fixture
def person(stranger, airflow):
    """The same, logged in."""
    log_in(stranger, airflow)
    dark(stranger, False)
    return stranger


def test_without_a_login_there_is_nothing_but_the_form(stranger, airflow, airflow_and_runs):
    run = f"{DAG}/runs/{airflow_and_runs[1][FAILED]}"
    for page in ("index.html", "trend.html", "trend-data.js", f"batch-{FAILED}.html", "metrics"):
        stranger.send("Page.navigate", url=f"{airflow.url}/quality/{CALLS.name}/{page}")
        stranger.wait_for(f"location.pathname === '/auth/login' && {has('Sign into Airflow')}", 30)
    for path in (f"/plugin/quality-trend-{CALLS.name}", f"{run}/plugin/quality-of-dag-run"):
        stranger.send("Page.navigate", url=f"{airflow.url}{path}")
        stranger.wait_for(f"location.pathname === '/auth/login' && {has('Sign into Airflow')}", 30)
        assert not stranger.ask(f"{has(CALLS.name)} || !!document.querySelector('iframe')"), path
    log_in(stranger, airflow, f"/plugin/quality-trend-{CALLS.name}")
    framed(stranger, f"{CALLS.name}: all batches")


def test_a_bookmark_is_there_after_the_login(stranger, airflow):
    page = f"/quality/{CALLS.name}/batch-{FAILED}.html"
    log_in(stranger, airflow, page, f"batch {FAILED}")
    assert stranger.ask("location.pathname") == page


def test_both_pages_are_in_the_navigation(person, airflow):
    for entry, start in (
        (f"Quality: {CALLS.name}", "calls: batch 300 passed"),
        (f"Quality trend: {CALLS.name}", "calls: all batches"),
    ):
        person.click_on(button("Plugins"))
        person.click_on(button(entry))
        framed(person, start)
    person.wait_for(f"{FRAME}.querySelectorAll('#charts figure').length === 9")
    person.ask(f"{FRAME}.querySelector('#newest').click()")
    framed(person, "calls: batch 300 passed")
    person.ask(f"{FRAME}.querySelector('a[href$=expectations\\\\.html]').click()")
    framed(person, "calls: batch 300\n")


def test_the_page_over_all_pipelines_is_in_the_navigation_and_leads_to_each(person, airflow):
    person.click_on(button("Plugins"))
    person.click_on(button("Quality: all pipelines"))
    text = framed(person, "All pipelines: ")
    # This Airflow has no Kafka. Its batches are of long ago, but it is paused on purpose.
    assert "Servers: 1 of 6 down" in text and "127.0.0.1:1 does not answer" in text
    assert "calls is healthy" in text and "ago; the DAG is paused" in text
    person.ask(f"{FRAME}.querySelector('a[href=\"calls/index.html\"]').click()")
    framed(person, "calls: batch 300 passed")


def test_a_dag_a_run_and_a_task_have_the_report_of_their_batch(person, airflow, airflow_and_runs):
    runs = airflow_and_runs[1]
    # What a run publishes may be the batch of a later one, too.
    note_batch(
        pages_in(pages_folder(airflow.warehouse, CALLS.name)), CALLS.name, runs[FAILED - 2], "publish_compounds", FAILED - 1
    )
    for path, start in (
        (DAG, "calls: batch 300 passed"),
        (f"{DAG}/tasks/pair_events", "calls: batch 300 passed"),
        *((f"{DAG}/runs/{run}", f"calls: batch {batch} {'failed' if batch == FAILED else 'passed'}") for batch, run in runs.items()),
        (f"{DAG}/runs/{runs[FAILED - 2]}/tasks/pair_events", f"calls: batch {FAILED - 2} passed"),
        (f"{DAG}/runs/{runs[FAILED - 2]}/tasks/publish_compounds", f"calls: batch {FAILED - 1} passed"),
        (f"{DAG}{REPLAY_SUFFIX}", "calls: batch 300 passed"),
    ):  # fmt: skip
        go(person, airflow, path, "Quality")
        to_quality(person)
        text = framed(person, start)
        # The report itself, and not only its name.
        assert "laws hold" in text, path
        said = (
            f"batch {FAILED}: every event is in a compound, open, collapsed or rejected (left): pairing_difference_left is"
        )
        assert (said in text) is start.endswith("failed"), path
    client = airflow.client()
    for dag_id, told in (
        (CALLS.name, "This run has not worked on a batch of calls yet."),
        (f"{CALLS.name}{MAINTENANCE_SUFFIX}", "Maintenance works on the tables, not on a batch."),
    ):
        go(person, airflow, f"/dags/{dag_id}/runs/{client.trigger(dag_id)}", "Quality")
        to_quality(person)
        assert framed(person, told).splitlines()[-1] == "All batches"
        person.ask(f"{FRAME}.querySelector('a').click()")
        framed(person, "calls: all batches")


@pytest.mark.parametrize("wanted", [True, False])
def test_the_pages_are_as_dark_as_airflow(wanted, person, airflow):
    dark(person, wanted)
    for path, start in ((f"{DAG}/plugin/quality-of-dag", "calls: batch 300"), ("/plugin/quality-trend-calls", "calls: all")):
        go(person, airflow, path, "Assets")
        framed(person, start)
        ink = f"getComputedStyle({FRAME}.querySelector('h1')).color.match(/\\d+/g).reduce((sum, each) => sum + Number(each), 0)"
        assert (person.ask(ink) > 600) is wanted, path
    # Also where Airflow is changed while the page is shown.
    dark(person, not wanted)
    person.wait_for(f"({ink} > 600) === {str(not wanted).lower()}")


def test_the_text_of_each_dag_is_whole_and_its_links_lead_somewhere(person, airflow):
    for suffix, told in (
        ("", "analyticsTopic + metricsTopic → outputTopic"),
        (REPLAY_SUFFIX, "schedule is 0 * * * *; nothing"),
    ):
        open_dialog(person, airflow, f"{DAG}{suffix}", "Dag Docs", told)
        links = person.ask(f"[...{dialog('.querySelectorAll')}('a')].map((each) => each.href)")
        assert f"{airflow.url}/quality/{CALLS.name}/index.html" in links
        assert {person.ask(f"fetch({link!r}).then((answer) => answer.status)") for link in links} == {200}


def test_the_form_tells_what_it_asks_for_and_refuses_what_cannot_be(person, airflow):
    open_dialog(person, airflow, DAG, "Trigger", "Report only")
    lines = [line for line in person.ask(f"{dialog()}.innerText").splitlines() if line]
    assert lines[lines.index("Run Parameters") + 1 : lines.index("Advanced Options")] == [
        text for field in FIELDS.items() for text in field
    ]
    assert person.ask(f"{dialog('.querySelector')}('input[value=backfill]').disabled"), (
        "a backfill would do the same again and again"
    )
    # Airflow unpauses the DAG even if it refuses the run.
    person.click_on(in_dialog("label", "Unpause"))
    person.click_on(dialog(".querySelector('input[name=element_accept_lost_range]')"))
    person.type("analyticsTopic-0:5")
    before = airflow.client().runs(CALLS.name)
    person.click_on(f"[...{dialog('.querySelectorAll')}('button')].find((each) => each.innerText.trim() === 'Trigger')")
    person.wait_for(f"{dialog()}?.innerText.includes(\"param accept_lost_range: 'analyticsTopic-0:5' does not match\")")
    assert airflow.client().runs(CALLS.name) == before
    assert airflow.client().call("GET", DAG)["is_paused"]


def test_a_replay_is_asked_for_by_backfill_or_with_an_interval(person, airflow):
    go(person, airflow, "/dags", "backfill, or by hand")
    open_dialog(person, airflow, f"{DAG}{REPLAY_SUFFIX}", "Trigger", "Interval ends")
    person.click_on(in_dialog("label", "Backfill"))
    person.wait_for(f"{dialog()}?.innerText.includes('Reprocess Behavior')")
    text = person.ask(f"{dialog()}.innerText")
    assert [text.count(f"\n{label}\n") for label in ("From", "To", "Interval begins", "Interval ends")] == [1] * 4
    assert text.count("Backfill: leave it empty.") == 2


def test_state_and_metrics_say_that_the_dag_is_paused_or_overdue(person, airflow):
    asked = f"fetch('{airflow.url}/quality/{CALLS.name}/%s').then((answer) => answer.text())"

    def now():
        state, text = json.loads(person.ask(asked % "state.json")), person.ask(asked % "metrics")
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        numbers = [float(lines[f'event_pairing_{name}{{pipeline="{CALLS.name}"}}']) for name in ("paused", "state")]
        is_overdue = float(lines[f'event_pairing_overdue_seconds{{pipeline="{CALLS.name}"}}']) > 3_900
        return state["verdict"], state["is_paused"], [each["name"] for each in state["problems"]], *numbers, is_overdue

    # The last of the tests: a run may begin.
    client = airflow.client()
    assert now() == ("healthy", True, [], 1, 0, False)
    client.pause(CALLS.name, False)
    try:
        assert now() == ("warning", False, ["overdue"], 0, 1, True)
    finally:
        client.pause(CALLS.name, True)
