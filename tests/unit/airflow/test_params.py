"""What the trigger forms accept, by Airflow's own check of parameters."""

from __future__ import annotations

import pytest
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from include.airflow.params import LIVE_PARAMS, REPLAY_PARAMS


def validated(params, given):
    """As Airflow makes a run's parameters."""
    merged = ParamsDict(params)
    merged.update(given)
    return merged.validate()


@pytest.mark.parametrize(
    ("params", "given"),
    [
        (LIVE_PARAMS, {"max_records": 1, "release_batch": 1_000_000_000, "report_only": True}),
        (LIVE_PARAMS, {"max_records": None, "accept_lost_range": "a.b-0:10-90 t_2-11:5300-6500"}),
        (REPLAY_PARAMS, {"window_start": "2026-01-31T13:00:00Z", "window_end": "1795474800000"}),
    ],
)
def test_these_are_accepted(params, given):
    assert validated(params, given).items() >= given.items()


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        *(
            (LIVE_PARAMS, name, value)
            for name in ("max_records", "release_batch")
            for value in (0, -1, 1.5, "7", 10**10, 10**21)
        ),
        *(
            (LIVE_PARAMS, "accept_lost_range", value)
            for value in ("", "t-0", "t-0:1-2,t-1:1-2", "t-0:1-2 " * 20_000 + "t-0:1-2")
        ),
        (LIVE_PARAMS, "report_only", "yes"),
        *((REPLAY_PARAMS, "window_start", value) for value in ("yesterday", "12", "9" * 41, "2026-01-31T13:00:00Z; rm")),
    ],
)
def test_these_are_refused(params, name, value):
    with pytest.raises(ParamValidationError):
        validated(params, {name: value})
