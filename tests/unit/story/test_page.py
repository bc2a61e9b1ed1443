"""The story as a page: the same sentences, nothing from elsewhere, nothing that a key could smuggle in."""

import re

from spark_jobs.story.page import page

STORY = [
    "<b>, v: 1 message in 1 batch, pipeline calls (tolerance 1m)",
    "batch 1: 1 message read, clock none yet",
    "",
    "a-0-0 (analytics), now, read in batch 1",
    "  alone (left_only): no event of the other side was read",
    "  <script>",
    "  with `gap: 2m` it would be paired with b-0-0, 50ms later",
    "",
    "outputTopic was not read, so offsets are not told: no broker",
]


def test_a_page_says_what_the_story_says():
    text = page(STORY)
    assert re.findall(r"<h1>(.*)</h1><p>(.*)</p>", text) == [
        ("&lt;b&gt;, v", "1 message in 1 batch, pipeline calls (tolerance 1m)")
    ]
    assert re.findall(r"<h2>(.*)</h2>", text) == ["a-0-0 (analytics), now, read in batch 1"]
    assert re.findall(r"<li(.*?)>(.*)</li>", text) == [
        ("", "batch 1: 1 message read, clock none yet"),
        (' class="warning"', "alone (left_only): no event of the other side was read"),
        ("", "&lt;script&gt;"),
        ("", "with <code>gap: 2m</code> it would be paired with b-0-0, 50ms later"),
    ]
    assert text.count("outputTopic was not read") == 1


def test_a_page_needs_nothing_but_itself():
    text = page(STORY)
    assert "color-scheme: light dark" in text and "light-dark(" in text
    assert not re.search(r"https?:|<script|<link|<img|src=|@import|url\(", text)
