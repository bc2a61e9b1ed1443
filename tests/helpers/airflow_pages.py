"""An Airflow with a made-up history, and what a person does in it: for the test of its pages and for the screenshots.

Nothing runs in it: the DAG is paused, and its runs are marked as what they shall be. Neither Kafka nor Spark is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from include.airflow.pages import note_batch
from include.airflow.run_notes import in_words
from include.local.airflow import LocalAirflow
from include.local.process import free_port
from tests.helpers.batch_history import BROKEN, END, EVERY, history
from tests.helpers.browser import Page
from tests.helpers.job_processes import JOBS
from tests.helpers.pages import pages_folder, pages_in
from tests.helpers.screenshots import write_history
from tests.helpers.timeline import CALLS

BATCHES = 300
FAILED = BATCHES - BROKEN
# In the frame in which Airflow shows a page of a plugin.
FRAME = "document.querySelector('iframe')?.contentDocument?.body"


@contextmanager
def airflow_with_history(
    folder: Path, shown: range, database: str | None = None, bootstrap: str = "127.0.0.1:1"
) -> Iterator[tuple[LocalAirflow, dict[int, str]]]:
    """A running Airflow, and the ids of the runs of the batches `shown`; those of the others are long gone.

    `database`: as LocalAirflow has it. `bootstrap`: of Kafka, where by default nobody answers.
    """
    warehouse = folder / "warehouse"
    pages = pages_folder(str(warehouse), CALLS.name)
    write_history(pages, BATCHES)
    with LocalAirflow(folder / "airflow", free_port(), bootstrap, str(warehouse), database=database) as airflow:
        airflow.client().wait_for_dag(CALLS.name, 120)
        yield airflow, {batch: _made_up_run(airflow, pages, batch) for batch in shown}


def _made_up_run(airflow: LocalAirflow, pages: Path, batch: int) -> str:
    client, at = airflow.client(), END - (BATCHES - batch) * EVERY
    body = {"logical_date": at.isoformat(), "dag_run_id": f"manual__{at.isoformat()}", "conf": {}}
    run_id = str(client.call("POST", f"/dags/{CALLS.name}/dagRuns", body)["dag_run_id"])
    run = f"/dags/{CALLS.name}/dagRuns/{quote(run_id, safe='')}"
    for task in JOBS:
        failed = batch == FAILED and task == "report_quality"
        client.call("PATCH", f"{run}/taskInstances/{task}", {"new_state": "failed" if failed else "success"})
        note_batch(pages_in(pages), CALLS.name, run_id, task, batch)
    client.call("PATCH", run, {"state": "failed" if batch == FAILED else "success", "note": _note(batch)})
    return run_id


def _note(batch: int) -> str:
    found = {name: round(value) for name, value in history(BATCHES)[batch - 1].metrics.items()} | {"batch_id": batch}
    return in_words({"land_events": found, "pair_events": found, "publish_compounds": {"sent": found["compounds"]}})


def log_in(page: Page, airflow: LocalAirflow, path: str = "/", shows: str = "Assets") -> None:
    """Asks for a page of Airflow, is sent to the form, fills it in, and is where it wanted to be. `shows`: what that page has."""
    page.send("Page.navigate", url=f"{airflow.url}{path}")
    page.wait_for("location.pathname.endsWith('/auth/login') && !!document.querySelector('input[name=password]')", 60)
    for name, text in (("username", airflow.client().user), ("password", airflow.password())):
        page.click_on(f"document.querySelector('input[name={name}]')")
        page.type(text)
    page.click_on("[...document.querySelectorAll('button')].find((each) => each.innerText === 'Sign in')")
    page.wait_for(f"location.pathname === {json.dumps(path)} && {has(shows)}", 60)


def go(page: Page, airflow: LocalAirflow, path: str, text: str) -> None:
    """Opens a page of Airflow's, of which nothing is there before its script has run, and waits for the text."""
    page.open(f"{airflow.url}{path}", has(text), within=60)


def has(text: str) -> str:
    """Whether the page shows the text."""
    return f"!!document.body?.innerText?.includes({json.dumps(text)})"


def button(text: str) -> str:
    """A button, link or tab with this text or title."""
    told = json.dumps(text)
    return (
        "[...document.querySelectorAll('button, a, [role=menuitem]')].find((each) => each.checkVisibility() && "
        f"[each.innerText.trim(), each.title, each.ariaLabel].includes({told}))"
    )


def dialog(rest: str = "") -> str:
    """The window that is open within the page, or something of it."""
    return f"[...document.querySelectorAll('[role=dialog][data-state=open]')].pop(){rest}"


def open_dialog(page: Page, airflow: LocalAirflow, path: str, name: str, text: str) -> None:
    """Opens a DAG's page and clicks on the button of this name; waits until the window that opens has the text."""
    go(page, airflow, path, "Audit Log")
    page.click_on(button(name))
    page.wait_for(f"{dialog()}?.innerText.includes({json.dumps(text)})")


def in_dialog(kind: str, start: str) -> str:
    """The label or button in the open window whose text begins so."""
    return f"[...{dialog('.querySelectorAll')}({kind!r})].find((each) => each.innerText.trim().startsWith({start!r}))"


def to_quality(page: Page) -> None:
    """Clicks on the tab; again where Airflow has drawn its page anew just then."""
    deadline = time.monotonic() + 60
    while not page.ask("location.pathname.includes('/plugin/quality-of-')"):
        assert time.monotonic() < deadline, "the tab Quality leads nowhere"
        page.click_on(button("Quality"))
        time.sleep(0.5)


def framed(page: Page, start: str) -> str:
    """What the page of the plugin says, once it begins so."""
    try:
        page.wait_for(f"{FRAME}?.innerText?.startsWith({json.dumps(start)})", 30)
    except AssertionError:
        shown = page.ask(f"location.href + ' shows ' + {FRAME}?.innerText?.slice(0, 200)")
        raise AssertionError(f"{start!r} was expected, {shown!r}; errors: {page.errors}") from None
    return str(page.ask(f"{FRAME}.innerText"))


def dark(page: Page, wanted: bool) -> None:
    """Chooses Airflow's dark or light for the pages that are opened from now on."""
    page.ask(f"localStorage.setItem('theme', '{'dark' if wanted else 'light'}')")
