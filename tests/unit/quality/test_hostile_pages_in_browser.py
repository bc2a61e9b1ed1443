"""Hostile names and texts on every page, in a real browser: nothing of them runs, and no page asks for what its policy forbids.

As files, and from Airflow's quality app over HTTP. Skipped, and said so, without Chromium.
"""

from __future__ import annotations

import threading
import time

import pytest
import uvicorn
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api import security
from fastapi import FastAPI

from include.airflow import quality_app
from include.config.health import Acknowledgement, write_state
from include.local.process import free_port
from spark_jobs.quality.current_pages import write_index
from spark_jobs.quality.numbers import Breakdown
from spark_jobs.quality.offenders import Offender
from spark_jobs.quality.pages import batch_details, details_script, write_unjudged
from spark_jobs.quality.trend_files import write_trend
from spark_jobs.story.page import page as story_page
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.pages import pages_folder, pages_in
from tests.helpers.silent_history import silent_history
from tests.helpers.states import SILENT, TAKEN, made_up_state
from tests.unit.quality.test_pages import BREAKDOWNS, ORPHANS, page_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason=f"no hostile page was looked at: {NEEDED}"),
]
HURT = "window.top.hurt=(window.top.hurt||0)+1"
# User names and payloads that break out of text, attributes, scripts, comments, templates and reading order.
HOSTILE = [
    f"<script>{HURT}</script>",
    f"</script><script>{HURT}</script>",
    f"<img src=x onerror={HURT}>",
    f"\"><svg onload='{HURT}'>",
    f"' onmouseover='{HURT}' x='",
    f"javascript:{HURT}",
    f'<a href="javascript:{HURT}">click</a>',
    f"</style><style>@import url(http://127.0.0.1:1/);</style><body onload={HURT}>",
    f"--><iframe srcdoc='<script>{HURT}</script>'></iframe>",
    f"{{{{ {HURT} }}}}${{{HURT}}}`{HURT}`",
    "\u202egnp.exe\u2066 <b>\u2069 \u200f\u0000\u2028\u2029\ufeff",
]
ALL = " ".join(HOSTILE)
# What would be there if any text had become markup.
MARKUP = "document.querySelectorAll('svg:not(.spark, .bars), iframe, img, b:not(#key b), body *[onload], [onmouseover], [onerror], a[href^=javascript]').length"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """A warehouse whose pages of `calls` have hostile texts wherever a text can be; `story.html` beside them."""
    root = tmp_path_factory.mktemp("hostile")
    folder = pages_folder(str(root), "calls")
    folder.mkdir(parents=True)
    users = [Breakdown("top_user", 412, None, "user1", ALL), Breakdown("users", 12, field="user1")]
    problem = SILENT.model_copy(update={"name": ALL, "text": ALL, "runbook": ALL})
    taken = TAKEN.model_copy(update={"acknowledged": Acknowledgement(by=ALL, at=0, note=ALL)})
    write_state(pages_in(folder), made_up_state(7, problem, taken))
    page_of(folder, ORPHANS, breakdowns=[row for row in BREAKDOWNS if row.family not in ("top_user", "users")] + users)
    store, batches = pages_in(folder), silent_history(30, 20, 99)
    offenders = [Offender(30, "duplicate", text, 0, 7, 1_767_225_600_000) for text in HOSTILE]
    details = batch_details(batches[-1], offenders)
    (folder / "batch-30.js").write_text(details_script(30, details))
    (folder / "batch-7.html").write_text((folder / "batch-7.html").read_text().replace("</body>", f"{details}</body>"))
    write_unjudged(store, ALL, 8, ValueError(ALL))
    write_trend(store, "calls", batches, list)
    write_index(store, 7)
    lines = [f"{ALL}: what became of {ALL}", *HOSTILE, "", f"`{ALL}`", f"alone: {ALL}", *HOSTILE]
    (folder / "story.html").write_text(story_page(lines), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def served(warehouse):
    """The address of the pages in a web server, to somebody who may read them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAIRING_WAREHOUSE", str(warehouse))
        patch.setattr(security, "get_auth_manager", SimpleAuthManager)
        patch.setattr(quality_app, "get_auth_manager", SimpleAuthManager)
        patch.setitem(
            quality_app.app.dependency_overrides,
            security.get_user,
            lambda: SimpleAuthManagerUser(username="ann", role="viewer"),
        )
        airflow = FastAPI()
        airflow.mount("/quality", quality_app.app)
        port = free_port()
        server = uvicorn.Server(uvicorn.Config(airflow, host="127.0.0.1", port=port, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/quality/calls"
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module", params=["file", "http"])
def place(request, warehouse):
    if request.param == "http":
        return request.getfixturevalue("served")
    return pages_folder(str(warehouse), "calls").as_uri()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def browser(chrome):
    """An empty page, of which nothing was asked yet."""
    chrome.open("about:blank")
    for seen in (chrome.errors, chrome.requests, chrome.stopped):
        seen.clear()
    return chrome


PAGES = ("index", "batch-7", "batch-7-expectations", "batch-8", "trend", "story")


@pytest.mark.parametrize("name", PAGES)
def test_no_text_becomes_script_or_markup(name, place, browser):
    if name == "story" and place.startswith("http"):
        pytest.skip("a story is a file that explain_pair writes; Airflow does not serve it")
    browser.open(f"{place}/{name}.html")
    if name == "trend":
        browser.wait_for("document.getElementById('details').textContent.includes('onerror')")
    browser.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    browser.ask(
        "document.querySelectorAll('*').forEach((each) => each.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})))"
    )
    browser.ask("new Promise((done) => setTimeout(done, 200))")
    assert browser.ask("window.hurt ?? null") is None
    assert browser.ask(MARKUP) == 0
    assert browser.stopped == [], "the page itself asked for what its policy forbids"
    assert browser.errors == []
    assert {each.partition(":")[0] for each in browser.requests} == {place.partition(":")[0]}
    shown = browser.ask("document.body.innerText")
    if name != "batch-7-expectations":
        assert "onerror=" in shown, "the text itself is there to be read"
    if name == "trend":
        assert browser.ask("document.querySelectorAll('#charts canvas').length") >= 9
    if name in ("index", "batch-7"):
        assert browser.ask("document.querySelectorAll('figure canvas').length") == 3
    if name != "batch-7-expectations":
        style = browser.ask("getComputedStyle(document.body).maxWidth")
        assert style == ("1600px" if name == "trend" else "1024px"), "the style beside the page is in force"


@pytest.mark.parametrize("hostile", HOSTILE[:9])
def test_what_got_into_a_page_all_the_same_does_not_run(hostile, place, warehouse, browser):
    """As if an escape had been forgotten: the page's policy is a second wall."""
    folder = pages_folder(str(warehouse), "calls")
    page = (folder / "batch-7.html").read_text().replace("<main>", f"<main>{hostile}")
    assert hostile in page
    (folder / "batch-9.html").write_text(page)
    browser.open(f"{place}/batch-9.html")
    browser.ask(
        "document.querySelectorAll('*').forEach((each) => each.dispatchEvent(new MouseEvent('mouseover', {bubbles: true})))"
    )
    browser.ask("document.querySelectorAll('a[href^=javascript]').forEach((each) => each.click())")
    browser.ask("new Promise((done) => setTimeout(done, 200))")
    assert browser.ask("window.hurt ?? null") is None
    assert not [each for each in browser.requests if "127.0.0.1:1/" in each]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_other_site_may_frame_the_pages(elsewhere, served, browser):
    """Airflow itself, of the same origin, does."""
    browser.open("about:blank" if elsewhere else served.partition("/quality")[0])
    browser.ask(
        "new Promise((done) => { const frame = document.createElement('iframe'); frame.onload = () => setTimeout(done, 200);"
        f"frame.src = '{served}/index.html'; document.body.append(frame); }})"
    )
    (frame,) = browser.send("Page.getFrameTree")["frameTree"]["childFrames"]
    assert ("unreachableUrl" in frame["frame"]) is elsewhere, frame
