"""`state.json` and `metrics.prom` as Airflow serves them: what the last report wrote, and whether the pipeline stands still now.

A report cannot say that of itself, since a pipeline that stands still makes none.
"""

from __future__ import annotations

import json
import time

from include.airflow.overdue import NAME, as_of, paused
from include.config.health import METRICS_FILE, State, read_state
from include.config.store import Store, read_text

_END = "# EOF\n"
_FAMILIES = """# TYPE event_pairing_overdue_seconds gauge
# UNIT event_pairing_overdue_seconds seconds
# HELP event_pairing_overdue_seconds How long ago the run was due that has not come; 0: none is overdue
event_pairing_overdue_seconds{{{labels}}} {overdue}
# TYPE event_pairing_paused gauge
# HELP event_pairing_paused 1: the pipeline's DAG is paused, 0: it is not
event_pairing_paused{{{labels}}} {paused:d}
"""


def current_state(pages: Store) -> str | None:
    """The JSON of the State, with `verdict` and `is_paused` before its fields; None without a state."""
    found = _now(pages)
    if found is None:
        return None
    state, is_paused = found
    return json.dumps({"verdict": state.verdict, "is_paused": is_paused, **state.model_dump()})


def current_metrics(pages: Store) -> str | None:
    """The text of the last report with gauges for what is so now; None without one. A pipeline that is overdue is not healthy here either."""
    text, found = read_text(pages, METRICS_FILE), _now(pages)
    if text is None or found is None:
        return text
    state, is_paused = found
    labels = f'pipeline="{state.pipeline}"'
    overdue = next((round(each.last - each.since) for each in state.problems if each.name == NAME), 0)
    if overdue:
        healthy, warning = (f"event_pairing_state{{{labels}}} {number}\n" for number in (0, 1))
        text = text.replace(healthy, warning)
    return text.removesuffix(_END) + _FAMILIES.format(labels=labels, overdue=overdue, paused=is_paused) + _END


def _now(pages: Store) -> tuple[State, bool] | None:
    """The state, and whether the DAG is paused."""
    state = read_state(pages)
    if state is None:
        return None
    is_paused = state.pipeline in paused([state.pipeline])
    return as_of(state, is_paused, time.time()), is_paused
