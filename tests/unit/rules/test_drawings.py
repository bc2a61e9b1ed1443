"""The drawings in docs/pairing.md are what `python -m tests.draw_timelines` makes of the cases that the tests play."""

import re
from xml.etree import ElementTree

import pytest

from tests.draw_timelines.panel import Panel
from tests.draw_timelines.pictures import FOLDER, PICTURES, drawings
from tests.helpers.timeline import ROOT, Timeline

DRAWINGS = drawings()
every_drawing = pytest.mark.parametrize("path", DRAWINGS, ids=[path.stem for path in DRAWINGS])


@every_drawing
def test_a_drawing_is_what_the_rules_answer_today(path):
    assert path.read_text(encoding="utf-8") == DRAWINGS[path], "run: .venv/bin/python -m tests.draw_timelines"


def test_there_are_no_other_drawings_and_all_are_shown():
    assert set(FOLDER.glob("*")) == set(DRAWINGS)
    shown = re.findall(r"!\[[^\]]+\]\((pairing/[\w.]+)\)", (ROOT / "docs/pairing.md").read_text())
    assert sorted(shown) == sorted(f"pairing/{path.name}" for path in DRAWINGS)


@every_drawing
def test_a_drawing_is_whole_by_itself_and_tells_in_words_what_it_shows(path):
    picture = ElementTree.fromstring(DRAWINGS[path])
    name = "{http://www.w3.org/2000/svg}"
    title, description = picture.find(f"{name}title"), picture.find(f"{name}desc")
    assert picture.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text and description.text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|<script|<image", DRAWINGS[path])


def test_what_is_drawn_is_the_answer_and_not_the_expectation():
    shown = PICTURES["tolerance"].shown
    pair, orphans = (
        Panel("case", Timeline([(f"a0 m{at}", 1_000_000)], ["what the case expects does not matter"]), shown)
        for at in (100, 101)
    )
    assert (
        pair.description()
        == "case: left event at 0 paired with the event at 100; right event at 100 paired with the event at 0."
    )
    assert orphans.description() == "case: left event at 0 alone; right event at 101 alone."
    assert "pair, 100 apart" in "".join(pair.draw(0)[0])
    assert "101, alone" in "".join(orphans.draw(0)[0])


def test_names_leave_room_for_the_settings_beside_them():
    for picture in PICTURES.values():
        settings = len(", ".join(picture.shown.settings)) + 5 * len(picture.shown.settings)
        assert max(8.3 * len(name) for name in picture.names) + 6.5 * settings < 760
