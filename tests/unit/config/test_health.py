"""The state of a pipeline as its file carries it."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.config.health import (
    FAILED,
    HEALTHY,
    WARNING,
    Acknowledgement,
    Counts,
    Lag,
    Problem,
    State,
    acknowledge,
    add_finding,
    heal,
    read_state,
    write_state,
)
from include.config.store import Store, write_text

_WARNED = Problem(name="orphan_ratio", severity="warning", text="too many orphans", batch=7, since=100.0, last=160.0)
_FAILED = _WARNED.model_copy(update={"name": "pairing_difference_left", "severity": "failed"})
_SEEN = Acknowledgement(by="ann", at=200.0, note="the producer is being mended")


@pytest.mark.parametrize(
    ("problems", "verdict"),
    [
        ((), HEALTHY),
        ((_WARNED,), WARNING),
        ((_WARNED, _FAILED), FAILED),
        ((_WARNED, _FAILED.model_copy(update={"acknowledged": _SEEN})), WARNING),
        ((_FAILED.model_copy(update={"acknowledged": _SEEN}),), HEALTHY),
    ],
)
def test_the_worst_problem_that_nobody_has_acknowledged_is_the_verdict(problems: tuple[Problem, ...], verdict: str) -> None:
    assert State(pipeline="calls", at=160.0, batch=8, problems=problems).verdict == verdict


def test_what_is_written_is_read(tmp_path: Path) -> None:
    pages = Store(str(tmp_path))
    assert read_state(pages) is None
    state = State(
        pipeline="calls",
        at=160.0,
        batch=8,
        problems=(_WARNED.model_copy(update={"acknowledged": _SEEN}),),
        windows={"1h": Counts(landed=4, pair=1, left_only=2)},
        hours=(Counts(), Counts(landed=4)),
        lag=Lag(unread=3, oldest_unread=150.5),
    )
    write_state(pages, state)
    assert read_state(pages) == state


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pipeline": "calls"}', '{"pipeline": "calls", "at": 1, "batch": 1, "of": 2}']
)
def test_a_file_of_another_form_is_none(tmp_path: Path, text: str) -> None:
    write_text(Store(str(tmp_path)), "state.json", text)
    assert read_state(Store(str(tmp_path))) is None


def written(pages: Store) -> State:
    state = State(pipeline="calls", at=160.0, batch=8, problems=(_WARNED,))
    write_state(pages, state)
    return state


def test_a_named_person_acknowledges_a_problem_that_is_there(tmp_path: Path) -> None:
    pages = Store(str(tmp_path))
    with pytest.raises(ValueError, match="there is no problem 'orphan_ratio' to acknowledge; the pipeline has: none"):
        acknowledge(pages, "orphan_ratio", "ann", "known")
    written(pages)
    with pytest.raises(ValueError, match="the pipeline has: orphan_ratio"):
        acknowledge(pages, "orphans", "ann", "known")
    for by, note in ((" ", "known"), ("ann", "")):
        with pytest.raises(ValueError, match="needs the name of a person"):
            acknowledge(pages, "orphan_ratio", by, note)
    assert acknowledge(pages, "orphan_ratio", " ann ", "known").acknowledged is not None
    state = read_state(pages)
    assert state is not None and state.verdict == HEALTHY and state.problems[0].acknowledged is not None
    assert (state.problems[0].acknowledged.by, state.problems[0].acknowledged.note) == ("ann", "known")


def test_what_is_said_at_the_same_moment_is_kept(tmp_path: Path) -> None:
    pages = Store(str(tmp_path))
    state = written(pages)
    acknowledge(pages, "orphan_ratio", "ann", "known")
    add_finding(pages, "reconcile", "failed", "3 messages are missing")
    # A report that has not seen either writes last.
    write_state(pages, state)
    found = read_state(pages)
    assert found is not None and [each.name for each in found.problems] == ["orphan_ratio", "reconcile"]
    assert found.problems[0].acknowledged is not None and found.verdict == FAILED
    acknowledge(pages, "reconcile", "bob", "restored")
    assert read_state(pages).verdict == HEALTHY  # type: ignore[union-attr]
    # Found again, it is the same problem.
    add_finding(pages, "reconcile", "failed", "4 messages are missing")
    assert read_state(pages).verdict == HEALTHY  # type: ignore[union-attr]


def test_a_finding_has_a_name_that_is_a_file(tmp_path: Path) -> None:
    for name in ("../x", "a b", "", "ä"):
        with pytest.raises(ValueError, match="cannot name a problem"):
            add_finding(Store(str(tmp_path)), name, "failed", "x")
        with pytest.raises(ValueError, match="cannot name a problem"):
            heal(Store(str(tmp_path)), name)


def test_a_mark_of_another_form_is_none(tmp_path: Path) -> None:
    pages = Store(str(tmp_path))
    state = written(pages)
    for text in ("", "{", '{"by": "ann"}'):
        write_text(pages.at("problems"), "orphan_ratio.acknowledged.json", text)
        assert read_state(pages) == state
