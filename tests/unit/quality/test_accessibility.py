"""The pages for everybody: no rule of axe-core is broken, by day and by night, and nothing has to be scrolled sideways on a phone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.airflow import overview
from include.airflow.parts import Part
from include.config.health import write_state
from include.config.page_head import THEME
from spark_jobs.quality.pages import write_unjudged
from spark_jobs.quality.trend_files import write_trend
from spark_jobs.story.page import page as story_page
from tests.helpers.axe import axe_script, violations
from tests.helpers.batch_history import history
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.pages import pages_in
from tests.helpers.screenshots import READY, write_batches
from tests.helpers.states import BROKEN, SILENT, TAKEN, made_up_state
from tests.unit.quality.test_pages import BREAKDOWNS, ORPHANS

pytestmark = pytest.mark.skipif(chromium() is None, reason=f"the pages were not looked at: {NEEDED}")
# A metric of such a long name and sentence is in real histories: the list of other numbers has it.
LONG = {"dead_letter_difference": 0.0}
PAGES = ("index", "batch-19", "batch-20-expectations", "batch-21", "trend", "story", "all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pages with everything on them: problems of all kinds, pictures, tables."""
    folder = tmp_path_factory.mktemp("pages")
    pages, batches = pages_in(folder), history(20)
    batches[-1] = replace(batches[-1], metrics=batches[-1].metrics | ORPHANS | LONG, breakdowns=BREAKDOWNS)
    write_trend(pages, "calls", batches, list)
    state = made_up_state(20, TAKEN, SILENT, BROKEN)
    write_state(pages, state)
    write_batches(folder, batches[-2:])
    write_unjudged(pages, "calls", 21, ValueError("no broker"))
    (folder / "story.html").write_text(story_page(["pair `x`: what became of it", "landed", "", "`x`", "alone"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "parts", lambda: [Part("scheduler", True, "lives"), Part("triggerer", False, "never ran")])
        patch.setattr(overview, "paused", lambda _: {"new", "orders"})
        other = tmp_path_factory.mktemp("other")
        write_state(pages_in(other), made_up_state(7, pipeline="orders"))
        places = {"calls": pages, "orders": pages_in(other), "new": pages_in(tmp_path_factory.mktemp("new"))}
        (folder / "all.html").write_text(overview.overview(list(places), places.__getitem__))
    (folder / "-").mkdir()
    (folder / "-" / "overview.css").write_text(overview.overview_style())
    (folder / "-" / "theme.js").write_text(THEME)
    return folder


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("chromium")) as page:
        yield page
        assert page.errors == [] and page.stopped == []


def show(chrome, folder, name, width, dark):
    chrome.send("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 500)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.send("Emulation.setEmulatedMedia", features=[scheme])
    chrome.open((folder / f"{name}.html").as_uri(), READY if name == "trend" else "document.readyState == 'complete'")


def test_no_rule_is_broken_by_day_and_by_night(chrome, folder):
    script = axe_script()
    for name in PAGES:
        show(chrome, folder, name, 1280, False)
        assert violations(chrome, script) == [], name
        show(chrome, folder, name, 1280, True)
        assert violations(chrome, script, "color-contrast") == [], name


@pytest.mark.parametrize("width", [1280, 390, 320])
def test_nothing_is_scrolled_sideways(width, chrome, folder):
    for name in PAGES:
        show(chrome, folder, name, width, False)
        chrome.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        wide = (
            "[...document.querySelectorAll('body *')].filter((each) => each.getBoundingClientRect().right > innerWidth + 1)"
        )
        seen = chrome.ask(
            f"{wide}.map((each) => each.tagName + '.' + each.getAttribute('class') + ' ' + each.id).slice(0, 5)"
        )
        assert chrome.ask("[document.documentElement.scrollWidth, innerWidth]") == [width, width], (name, seen)


def test_the_first_screen_says_it_all(chrome, folder):
    show(chrome, folder, "index", 1280, False)
    for found in (".verdict", ".problem.failed", ".problem.warning", ".tiles .large"):
        assert chrome.ask(f"document.querySelector('{found}').getBoundingClientRect().bottom") < 844, found
    text = chrome.ask("document.body.innerText")
    assert "Look for a table changed by hand; else a defect." in text and "laws hold" in text
    assert "every rejected event is in rejected_events" not in text, "what holds is folded"
    chrome.ask("document.querySelector('details.law summary').click()")
    assert "every rejected event is in rejected_events" in chrome.ask("document.body.innerText")
