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
