"""The trend page, and a batch's, as a person has them: in a real browser, opened as a file, by keyboard and mouse. Skipped, and said so, without Chromium."""

from __future__ import annotations

import pytest

from spark_jobs.quality.trend_files import write_trend
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.pages import pages_in
from tests.helpers.screenshots import write_history
from tests.helpers.silent_history import HOSTILE, silent_history
from tests.unit.quality.test_pages import BREAKDOWNS, ORPHANS, page_of

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason=f"the trend page was not looked at: {NEEDED}"),
]
READY = "window.readyAfterMs > 0"
PICKED = "document.getElementById('picked').textContent"
DETAILS = "document.getElementById('details').innerText"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {count: write_history(folder / str(count), count, 160) for count in (0, 1, 300, 5_000)}


@pytest.fixture
def browser(tmp_path):
    """browser(address, …) opens a page; whatever fails in it, or is loaded from elsewhere, fails the test."""
    opened = []

    def show(address, ready=READY, **options):
        page = Page(tmp_path / str(len(opened)), **options)
        opened.append(page)
        page.open(address, ready)
        return page

    yield show
    for page in opened:
        with page:
            page.ask("1")
            assert page.errors == [] and page.stopped == []
            assert [each for each in page.requests if not each.startswith("file:")] == []


def test_by_keyboard(pages, browser):
    page = browser(pages[300])
    assert page.ask(PICKED) == "batch 300 · 2026-01-31 12:00 UTC · passed"
    assert page.ask("document.querySelectorAll('#charts figure').length") == 9
    assert page.ask("document.getElementById('summary').textContent") == (
        "291 batches, 1 failed, 1 warning, 1 replay, 1 rewind, 1 loss accepted, 1 settings changed, up to 2026-01-31 12:00 UTC"
    )
    page.press("Tab", "Tab")
    assert page.ask("document.activeElement.name") == "range"
    page.press("ArrowLeft")
    assert page.ask("document.querySelector('input[name=range]:checked').value") == "6"
    assert "1 replay" in page.ask("document.getElementById('summary').textContent")
    assert "failed" not in page.ask("document.getElementById('summary').textContent")
    page.press("Tab")
    assert page.ask("document.activeElement.id") == "slider"
    page.press("ArrowLeft", "ArrowLeft")
    assert page.ask(PICKED).startswith("batch 298 · ")
    assert page.ask("document.getElementById('slider').getAttribute('aria-valuetext')") == page.ask(PICKED)
    page.press("Tab", "Enter")
    assert page.ask("document.activeElement.id") == "before"
    assert page.ask(PICKED) == "batch 270 · 2026-01-31 09:30 UTC · passed · replay"
    page.press("Enter")
    assert page.ask(PICKED).endswith("passed · rewind to batch 228")
    page.press("Enter", "Enter", "Enter")
    assert page.ask(PICKED) == "batch 150 · 2026-01-30 23:30 UTC · failed"
    page.wait_for(f"{DETAILS}.includes('Events to look up')")
    assert page.ask("location.hash") == "#batch-150"
    page.press("Tab", "Tab", "Enter")
    assert page.ask("document.activeElement.id") == "batch"
    page.press("Tab", "Tab", "Tab")
    assert page.ask("document.activeElement.tagName") == "SUMMARY"
    assert page.ask("document.activeElement.parentElement.open") is False
    page.press("Enter")
    assert "analyticsTopic-0-300000" in page.ask("document.activeElement.parentElement.innerText")


def test_a_click_picks_the_batch_below_it(pages, browser):
    page = browser(pages[300])
    x, y, batch = page.ask(
        "(() => { const [plot] = plots.keys(), at = plot.over.getBoundingClientRect();"
        "return [at.left + plot.valToPos(times[259], 'x'), at.top + 40, data.batch[259]]; })()"
    )
    page.click(x, y)
    assert (batch, page.ask(PICKED).split(" · ")[0]) == (260, "batch 260")
    page.wait_for(f"{DETAILS}.includes('analyticsTopic-0')")
    assert page.ask("[...document.querySelectorAll('#facts a')].map((link) => link.getAttribute('href'))") == [
        "batch-260.html", "batch-260-expectations.html",
    ]  # fmt: skip


def test_the_batch_is_told_while_the_slider_is_dragged(pages, browser):
    page = browser(pages[300])
    page.ask("(() => { const slider = byId('slider'); slider.value = 99; slider.dispatchEvent(new Event('input')); })()")
    assert page.ask(PICKED).startswith("batch 100 · ")
    assert page.ask("times[99] >= shown.from && times[99] <= shown.to"), "what was out of sight comes into it"


def test_a_silence_is_said_above_shaded_and_marked(tmp_path, browser):
    for folder in ("now", "over"):
        (tmp_path / folder).mkdir()
    write_trend(pages_in(tmp_path / "now"), "calls", silent_history(30, 20, 99), list)
    write_trend(pages_in(tmp_path / "over"), "calls", silent_history(30, 20, 26), list)
    now = browser((tmp_path / "now" / "trend.html").as_uri())
    assert now.ask("byId('now').hidden") is False
    assert now.ask("byId('now').textContent").startswith(f"{HOSTILE} has been silent since 2026-01-31 10:30 UTC: ")
    assert now.ask("silences.length") == 1 and now.ask("silences[0][1] == times[29]")
    assert now.ask("[...plots.values()].some((figure) => figure.textContent.includes('Silence while the other side sends'))")
    page = browser((tmp_path / "over" / "trend.html").as_uri())
    assert page.ask("byId('now').hidden") is True
    assert page.ask("silences.map(([from, to]) => [times.indexOf(from), times.indexOf(to)])") == [[19, 24]]
    said = page.ask("[...document.querySelectorAll('#marks td.silent')].map((cell) => cell.textContent)")
    assert [each.removeprefix(HOSTILE)[:12] for each in said] == [" sends again", " has been si"]
    page.ask("pick(24, true)")
    page.ask("pick(25, true)")
    assert "sends again" in page.ask(PICKED)
    for each in (now, page):
        assert each.ask("window.hurt ?? null") is None and each.ask("document.querySelectorAll('img').length") == 0


def test_a_void_batch_says_so(pages, browser):
    assert browser(f"{pages[300]}#batch-230").ask(PICKED).endswith("passed · void")


def test_five_thousand_batches_are_there_within_a_second(pages, browser):
    page = browser(pages[5_000])
    assert page.ask("data.batch.length") == 5_000
    page.ask("document.querySelector('input[value=Infinity]').click()")
    assert page.ask("document.getElementById('summary').textContent").startswith("5,000 batches")
    took = page.ask("window.readyAfterMs")
    print(f"5,000 batches are drawn {took:.0f} ms after the page was asked for")
    # A machine that runs other tests beside is given thrice the time.
    assert took < 3_000


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_little(count, pages, browser):
    page = browser(pages[count], "document.readyState == 'complete'")
    assert page.ask("document.querySelectorAll('#charts figure').length") == 9 * count
    assert page.ask("getComputedStyle(document.getElementById('empty')).display") == ("none" if count else "block")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_by_day_and_by_night(dark, pages, browser):
    page = browser(pages[300], width=360, height=740, phone=True, dark=dark)
    assert page.ask("document.documentElement.scrollWidth") == 360, "nothing has to be scrolled sideways"
    red, green, blue = page.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (red + green + blue < 100) is dark
    page.open(pages[300].replace("trend.html", "batch-150.html"), "document.readyState == 'complete'")
    assert page.ask("document.documentElement.scrollWidth") == 360
    # In Airflow, whose navigation takes a fifth of the width, nobody has to look for the result of a check.
    page.send("Emulation.setDeviceMetricsOverride", width=296, height=740, deviceScaleFactor=1, mobile=True)
    page.ask("document.querySelector('details.law').open = true")
    assert page.ask("document.querySelector('.critical').getBoundingClientRect().right") <= 296
    assert page.ask("document.querySelector('td.critical').getBoundingClientRect().right") <= 296
    assert page.ask("getComputedStyle(document.querySelector('.critical')).color") == (
        "rgb(255, 123, 114)" if dark else "rgb(207, 34, 46)"
    )


def test_the_batch_s_own_page_has_the_same_details(pages, browser):
    page = browser(pages[300].replace("trend.html", "batch-150.html"), "document.readyState == 'complete'")
    text = page.ask("document.body.innerText")
    assert "Events to look up" in text and text.count("allowed 0 to 0") == 1 and "\tfailed" not in text
    page.ask("document.querySelector('details.law summary').click()")
    assert page.ask("document.body.innerText").count("\tfailed") == 1
    assert text.startswith("calls: batch 150 failed")
    page.open(page.ask("document.querySelector('a[href^=\"trend.html\"]').href"), READY)
    assert page.ask(PICKED).startswith("batch 150 · ")
    page.open(page.ask("location.href").replace("trend.html", "batch-300.html").partition("#")[0])
    assert page.ask("document.body.innerText").startswith("calls: batch 300 passed")


INKED = """[...document.querySelectorAll("figure canvas")].map((canvas) =>
  new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size > 3)"""


@pytest.mark.parametrize("width", [1280, 360])
def test_a_batch_s_charts_are_drawn_from_the_file_beside_it(width, tmp_path, browser):
    (tmp_path / "pages").mkdir()
    page_of(tmp_path / "pages", ORPHANS, breakdowns=BREAKDOWNS)
    alone = browser((tmp_path / "pages" / "batch-7.html").as_uri(), "document.readyState == 'complete'", width=width)
    assert alone.ask("document.querySelectorAll('figure canvas').length") == 0
    assert "up to 75 s\t150\t100\t250" in alone.ask("document.querySelector('#orphans').innerText"), (
        "the numbers need no script"
    )
    write_trend(pages_in(tmp_path / "pages"), "calls", [], list)
    page = browser((tmp_path / "pages" / "batch-7.html").as_uri(), "document.readyState == 'complete'", width=width)
    assert page.ask(INKED) == [True] * 3
    assert page.ask("document.documentElement.scrollWidth") == width
    x, y = page.ask(
        "(() => { document.querySelector('figure').scrollIntoView(); const at = document.querySelector('.u-over').getBoundingClientRect();"
        "return [at.left + at.width / 2, at.top + 40]; })()"
    )
    page.click(x, y)
    legend = "[...document.querySelectorAll('figure:first-of-type .u-legend td')].map((cell) => cell.textContent).join(' ')"
    page.wait_for(f"{legend} === '75 s 150 100'")
