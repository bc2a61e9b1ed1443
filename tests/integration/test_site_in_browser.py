"""The documentation site, built as `make docs` builds it: every link holds, and a browser shows it from a strict server and from files."""

from __future__ import annotations

import subprocess
import sys
from http.server import SimpleHTTPRequestHandler

import pytest

from tests.helpers.axe import axe_script, violations
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.timeline import ROOT
from tests.helpers.web_server import serving

pytestmark = [
    pytest.mark.long,
    pytest.mark.integration,
    pytest.mark.skipif(chromium() is None, reason=f"the site was not looked at: {NEEDED}"),
]
# One of each kind: front page, tutorial, drawings, long tables, generated parts, runbook, decision.
PAGES = ("docs/README", "docs/start", "docs/pairing", "README", "docs/quality", "docs/reference/settings",
         "docs/reference/commands", "docs/runbooks/README", "docs/runbooks/rewind", "docs/decisions/0015-linear-matching")  # fmt: skip
RESULTS = "document.querySelectorAll('#search-results li').length"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-n",
        "-c",
        "docs/site",
        "-d",
        folder / "doctrees",
        ".",
    ]
    built = subprocess.run([*command, folder / "html"], cwd=ROOT, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "html"


@pytest.fixture(scope="module")
def address(site):
    """A server that allows nothing but its own files."""

    class Strict(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(site))

        def end_headers(self):
            self.send_header("Content-Security-Policy", "default-src 'self'; img-src 'self' data:")
            super().end_headers()

        def log_message(self, *arguments):
            pass

    with serving(Strict) as address:
        yield address


@pytest.fixture
def chrome(tmp_path):
    with Page(tmp_path / "chromium") as page:
        yield page
        assert page.errors == [] and page.stopped == []


def show(chrome, url, width, dark):
    chrome.send("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 500)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chrome.send("Emulation.setEmulatedMedia", features=[scheme])
    chrome.open(url, within=60)


def test_pages_are_whole_on_screens_and_phones_by_day_and_by_night(chrome, address):
    script = axe_script()
    for name in PAGES:
        for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
            show(chrome, f"{address}/{name}.html", width, dark)
            assert chrome.ask("[document.documentElement.scrollWidth, innerWidth]") == [width, width], name
            top = chrome.ask("document.querySelector('article h1').getBoundingClientRect().top")
            assert 0 < top < 120, "the page begins with its heading"
            assert violations(chrome, script, "color-contrast") == [], (name, dark)
    assert [url for url in chrome.requests if not url.startswith((address, "data:"))] == []


def test_the_front_page_leads_to_the_documentation(chrome, address):
    # Not `open`: the page may have led on before it is looked at.
    chrome.send("Page.navigate", url=f"{address}/index.html")
    chrome.wait_for("location.pathname == '/docs/README.html' && document.readyState == 'complete'")
    captions = chrome.ask(
        "[...document.querySelectorAll('.sidebar-tree .caption')].map((each) => each.innerText.toLowerCase())"
    )
    assert captions == ["start", "concepts", "how-to", "reference", "runbooks", "decisions"]


def test_the_search_finds_words_on_a_server_and_from_files(chrome, address, site):
    chrome.open(f"{address}/search.html?q=max_session", f"{RESULTS} > 3", within=60)
    chrome.wait_for("document.querySelector('#search-results').innerText.includes('max_session')")
    chrome.open(f"{(site / 'search.html').as_uri()}?q=tolerance", f"{RESULTS} > 3", within=60)
    assert "How events are paired" in chrome.ask("document.querySelector('#search-results').innerText")


def test_old_anchors_of_the_operating_guide_still_lead_somewhere(chrome, address):
    for anchor in ("replay-an-interval", "the-archive", "columns-of-the-ledger", "the-trend-page", "kafka_default"):
        chrome.open(f"{address}/docs/operating.html#{anchor}", "true")
        chrome.wait_for(f"document.getElementById('{anchor}') || document.getElementById('{anchor.replace('_', '-')}')")
