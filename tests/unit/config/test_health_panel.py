"""The first screen of a pipeline: what it says of every state, in which order, and that nothing of it becomes markup."""

from __future__ import annotations

import re

import pytest

from include.config.health import Counts, Lag, State
from include.config.health_panel import cards, panel, sentence, tiles
from include.config.pictures import Series, bars, sparkline
from tests.helpers.states import AT, BROKEN, SILENT, TAKEN, made_up_state

HOSTILE = "<img src=x onerror=hurt()>"


@pytest.mark.parametrize(
    ("problems", "said", "verdict"),
    [
        ((), "calls is healthy", "healthy"),
        ((TAKEN,), "calls is healthy, 1 problem taken over", "healthy"),
        ((TAKEN, SILENT), "calls: 1 warning", "warning"),
        ((SILENT, BROKEN, TAKEN), "calls: 1 failed check and 1 warning", "failed"),
    ],
)
def test_the_verdict_is_the_heading(problems, said, verdict):
    state = made_up_state(300, *problems)
    assert sentence(state, "calls") == said
    page = panel(state)
    assert f'<section class="health {verdict}"' in page and f"</span>{said}</h2>" in page
    assert page.count("<article") == len(problems)


def test_what_nobody_has_taken_over_comes_first_and_what_failed_before_it():
    worse = TAKEN.model_copy(update={"severity": "failed", "since": AT})
    ordered = [card.problem.severity for card in cards(made_up_state(300, worse, SILENT, BROKEN))]
    assert ordered == ["failed", "warning", "failed"], "the last one is taken over"
    state = made_up_state(300, TAKEN, SILENT, BROKEN)
    assert [card.problem.name for card in cards(state)] == [
        "pairing_difference_left",
        "silent_left",
        "orphan_ratio_deviation",
    ]
    page = panel(state)
    assert "ann took it over, 2026-01-31 11:56 UTC: “the right service restarts”" in page
    # What is first is explained at once, the others when somebody opens them.
    first, second, third = page.split("<article")[1:]
    assert "<strong>Look for</strong> a table changed by hand; else a defect." in first.partition("<details")[0]
    assert "For longer than" not in second.partition("<details")[0] and "For longer than" in second
    assert "<pre><code" in second, "the runbook's own commands"
    assert "More compounds have one side only than you allow" in third


def test_what_harms_nothing_now_comes_last():
    late = SILENT.model_copy(update={"name": "late_healable", "since": AT, "runbook": "docs/runbooks/late-events.md"})
    unknown = SILENT.model_copy(update={"name": "delivery_not_judged", "runbook": ""})
    state = made_up_state(300, late, SILENT).model_copy(update={"remarks": (unknown,)})
    assert [(card.problem.name, card.word) for card in cards(state)] == [
        ("silent_left", "warning"),
        ("late_healable", "warning"),
        ("delivery_not_judged", "not judged"),
    ]
    # What could not be judged is no warning.
    assert "calls: 2 warnings" in panel(state)
    alone = panel(made_up_state(300).model_copy(update={"remarks": (unknown,)}))
    assert "calls is healthy" in alone and "Nothing says that one is missing" in alone.partition("<details")[2]


def test_numbers_of_a_day_have_their_trend_and_the_other_windows():
    found = {tile.name: tile for tile in tiles(made_up_state(300), None)}
    assert [*found] == [
        "Records unread",
        "Landed, 24 h",
        "Paired, 24 h",
        "Left only, 24 h",
        "Right only, 24 h",
        "Rejected, 24 h",
    ]
    assert (found["Records unread"].number, found["Records unread"].lines) == (
        1_204,
        ["oldest unread 14 s", "oldest open 4.3 min"],
    )
    assert found["Landed, 24 h"].number == 2_160_000 and found["Landed, 24 h"].lines == ["1 h: 27,646", "7 d: 15,120,000"]
    assert found["Left only, 24 h"].lines == ["4.0% of compounds", "1 h: 553 (4.0%)", "7 d: 302,400 (4.0%)"]
    assert found["Landed, 24 h"].picture.count("M") == 24 and "style=" not in panel(made_up_state(300))


def test_a_state_without_a_day_shows_the_batch_and_no_times_that_nobody_knows():
    state = State(pipeline="calls", at=AT, batch=7, lag=Lag(unread=3))
    found = [*tiles(state, Counts(landed=10, pair=3, left_only=1))]
    assert [(tile.name, tile.number) for tile in found[:4]] == [
        ("Records unread", 3), ("Landed, this batch", 10), ("Paired, this batch", 3), ("Left only, this batch", 1),
    ]  # fmt: skip
    assert [*found[0].lines] == [] and [each.picture for each in found] == [""] * 6
    (only,) = tiles(state, None)
    assert [*only.lines] == [], "a rewind lands nothing"
    empty = made_up_state(7).model_copy(update={"lag": Lag()})
    assert next(tiles(empty, None)).lines == ["oldest unread none", "oldest open none"]


def test_how_old_it_is_is_said_where_somebody_looks_later():
    assert "UTC, 5 min ago</p>" in panel(made_up_state(300), now=AT + 300)
    assert "ago" not in panel(made_up_state(300)).partition("</p>")[0]


def test_texts_are_no_markup():
    note = TAKEN.acknowledged.model_copy(update={"by": HOSTILE, "note": HOSTILE})
    problem = SILENT.model_copy(update={"text": HOSTILE, "name": HOSTILE, "runbook": f"docs/runbooks/../{HOSTILE}"})
    state = made_up_state(300, problem, TAKEN.model_copy(update={"acknowledged": note}), pipeline=HOSTILE)
    page = panel(state, links=[(f"{HOSTILE}/index.html", HOSTILE)])
    assert "<img" not in page and page.count("&lt;img") >= 8
    assert "<img" not in sparkline(HOSTILE, [1, 2], "usual") + bars(
        HOSTILE, [Series(HOSTILE, [1])], 0, HOSTILE, (HOSTILE, HOSTILE)
    )


def test_a_picture_shows_what_is_there_however_little():
    picture = sparkline("Landed", [0, 1, 1_000_000], "usual")
    assert picture.count("M") == 2 and "from 0 to 1,000,000, 1,000,000 in the last" in picture
    assert [float(each) for each in re.findall(r"v-([\d.]+)h", picture)] == [1.5, 30.7]
    assert sparkline("Landed", [], "usual") == "" and sparkline("Landed", [0, 0], "usual").count("M") == 0
    stacked = bars("both", [Series("first", [1, 0]), Series("second", [1, 2])], 1, "T = 1 s", ("a", "b"))
    assert stacked.count("M") == 4 and 'x1="320.0"' in stacked and 'text-anchor="end">T = 1 s' in stacked
