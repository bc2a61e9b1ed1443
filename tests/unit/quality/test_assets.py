"""What pages load is beside them, and nothing is in them that their policy would have to allow."""

from __future__ import annotations

import base64
import hashlib
import html
import re

import pytest

from include.config.page_head import POLICY
from spark_jobs.quality.assets import assets, write_assets
from spark_jobs.quality.pages import write_unjudged
from spark_jobs.quality.trend_files import trend_page
from spark_jobs.story.page import page as story_page
from tests.helpers.pages import pages_in
from tests.unit.quality.test_pages import BREAKDOWNS, ORPHANS, page_of

POLICY_OF = re.compile('<meta http-equiv="Content-Security-Policy" content="(.*?)">')
# Whatever a policy without 'unsafe-inline' stops.
INLINE = re.compile(r"""<script(?![^>]*\bsrc=)|<style|\s(?:style|on[a-z]+)\s*=|javascript:""", re.I)


@pytest.fixture
def pages(tmp_path):
    """Name -> text of a page of each kind."""
    page_of(tmp_path, ORPHANS, breakdowns=BREAKDOWNS)
    write_unjudged(pages_in(tmp_path), "calls", 8, ValueError("<b onclick='x'>"))
    return {file.name: file.read_text() for file in tmp_path.glob("*.html")} | {"trend.html": trend_page("calls")}


def test_no_page_has_a_script_or_style_in_it(pages):
    assert set(pages) == {"batch-7.html", "batch-7-expectations.html", "batch-8.html", "trend.html"}
    for name, text in pages.items():
        assert html.unescape(POLICY_OF.search(text)[1]) == POLICY, name
        assert INLINE.findall(text.replace("&lt;b onclick=", "")) == [], name
        # The policy comes before all that it is for.
        assert text.index("Content-Security-Policy") < text.index("<title>") < text.index("<script")


def test_what_pages_load_is_written_beside_them(pages, tmp_path):
    loaded = {name for text in pages.values() for name in re.findall(r'(?:src|<link rel="stylesheet" href)="([^"]+)"', text)}
    assert loaded - {"trend-data.js"} == set(assets())
    assert {name: (tmp_path / name).read_text() for name in assets()} == assets(), (
        "by the page of a batch that was not judged, too"
    )
    assert not re.findall("&#?[a-z0-9]+;", assets()["trend.js"]), "a script is not escaped"
    assert "unsafe" not in POLICY and not re.findall("style=|<style", "".join(assets().values()))


def test_only_what_is_missing_or_differs_is_written(tmp_path):
    store = pages_in(tmp_path)
    write_assets(store, {"more.html": "text"})
    written = {file.name: file.stat().st_ino for file in tmp_path.iterdir()}
    assert set(written) == {*assets(), "more.html"}
    (tmp_path / "theme.js").unlink()
    (tmp_path / "page.css").write_text("of another version")
    write_assets(store, {"more.html": "text"})
    changed = {file.name for file in tmp_path.iterdir() if file.stat().st_ino != written[file.name]}
    assert {"page.css"} <= changed <= {"page.css", "theme.js"}
    assert {name: (tmp_path / name).read_text() for name in assets()} == assets()


def test_a_story_has_its_style_in_it_and_its_policy_allows_that_alone():
    text = story_page(["x: what became of <b>", "", "a heading", "alone: <img onerror=x>"])
    (style,) = re.findall("<style>(.*?)</style>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = html.unescape(POLICY_OF.search(text)[1])
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "<script" not in text and "<img" not in text and "<b>" not in text
