"""The lasting state of the pipeline, made by each report from the one before: problems, counts of windows, lag, and what is news of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from include.config.health import WARNING, Lag, Problem, State, stored_state, with_marks, write_state
from include.config.problem_marks import HealMark, LookMark, Marks, drop_mark, read_marks, write_mark
from include.config.store import Store, pages_store
from spark_jobs.quality.batch import Batch, chosen_batches, stored_batches
from spark_jobs.quality.late_intervals import looks_of, waiting_after
from spark_jobs.quality.problem_texts import SILENCES
from spark_jobs.quality.problems import LATE, Problems, late_problem, own_problems, problems_after
from spark_jobs.quality.suite import LAWS, judge_bounds
from spark_jobs.quality.trend import Trend
from spark_jobs.quality.trend_files import reported_before
from spark_jobs.quality.windows import LONGEST_S, late_events, void_batches, windows_of, with_late
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.warehouse import Warehouse

# News of a problem that ended begin with this; topics come first in all others, and none has a space in its name.
OVER = "over: "


def add_to_state(
    warehouse: Warehouse,
    ledger: Ledger,
    trend: Trend,
    batches: Sequence[Batch],
    reported: int,
    again: Collection[int],
    lag: Lag,
) -> State:
    """Called by the report with successive judged batches that the trend has; returns the state with what people said of it.

    `reported`: the last batch before them that was reported for good; 0: none. `again`: those of them that have a row in quality_metrics
    already. The state goes on from the one that knows exactly the batches up to `reported`. Where that knows others, because a report has died
    or is made again, or there is none, it is made anew from the tables.
    """
    pages, pipeline = pages_store(warehouse.pipeline.name, warehouse.root), warehouse.pipeline
    old, marks = stored_state(pages), read_marks(pages)
    if again:
        marks = _judged_again(warehouse, pages, [batch for batch in batches if batch.batch_id in again], marks)
    problems, past = _of_checks(with_marks(old, marks) if old else None), list[Batch]()
    if reported != (old.batch if old else 0):
        oldest = _oldest(trend)
        problems = {name: each for name, each in problems.items() if each.newest < oldest}
        past = reported_before(warehouse, ledger, batches[0].batch_id, oldest)
    for batch in (*past, *batches):
        problems = problems_after(batch, problems, pipeline, marks.healed)
    at, (windows, hours) = trend.columns["at"][-1], windows_of(trend)
    problems |= late_problem(late_events(trend, _left(warehouse, trend, batches, marks.looked)), pipeline, at)
    state = State(
        pipeline=pipeline.name,
        at=at,
        batch=batches[-1].batch_id,
        problems=tuple(problems.values()),
        windows=windows,
        hours=hours,
        lag=lag,
        remarks=tuple(own_problems(batches[-1])[1]),
    )
    # Somebody may have acknowledged a problem meanwhile.
    state = with_marks(state.model_copy(update={"news": _news(old, state)}), read_marks(pages))
    write_state(pages, state)
    return state


def _left(warehouse: Warehouse, trend: Trend, batches: Sequence[Batch], noted: Sequence[LookMark]) -> dict[int, int]:
    """How many late events still wait, of the batches of which replays may have paired some."""
    late, replays = with_late(trend)
    if not late or not (replays or noted):
        return {}
    now = {batch.batch_id: batch for batch in batches}
    stored = chosen_batches(warehouse, {*late, *replays} - now.keys())
    known, void = {batch.batch_id: batch for batch in stored} | now, void_batches(trend)
    looks = looks_of((known[each] for each in replays if each in known), (each for each in noted if each.batch not in void))
    return waiting_after((known[each] for each in late if each in known), looks)


def _of_checks(state: State | None) -> Problems:
    """Without those that batches say nothing of, and the late events, which are counted anew."""
    return {each.name: each for each in (state.problems if state else ()) if not each.is_finding and each.name != LATE}


def _oldest(trend: Trend) -> int:
    """The first batch of the last 7 days."""
    at = trend.columns["at"]
    return next(batch for batch, each in zip(trend.columns["batch"], at, strict=True) if each >= at[-1] - LONGEST_S)


def _judged_again(warehouse: Warehouse, pages: Store, batches: Iterable[Batch], marks: Marks) -> Marks:
    """Notes which laws these batches keep now and broke the first time, or the other way round: their rows in the tables stay as they were."""
    for batch in batches:
        assert batch.verdict is not None
        now = {judged.check.metric: judged.passed for judged in batch.verdict.checks}
        for first in stored_batches(warehouse, batch.batch_id, batch.batch_id):
            for judged in judge_bounds(first.metrics, warehouse.pipeline.quality):
                name, mark = judged.check.metric, marks.healed.get(judged.check.metric, HealMark())
                if name not in LAWS or judged.passed:
                    continue
                if now.get(name):
                    write_mark(pages, name, mark.model_copy(update={"alone": tuple({*mark.alone, batch.batch_id})}))
                elif name in marks.healed:
                    drop_mark(pages, name, HealMark)
    return read_marks(pages)


def _news(old: State | None, new: State) -> tuple[str, ...]:
    """What began or ended since the report before; a report that is made again says what it said then, too."""
    before, now = _by_name(old.problems if old else ()), _by_name(new.problems)
    began = [each.text for name, each in now.items() if name not in before and each.severity == WARNING]
    ended = [f"{OVER}{each.text}" for name, each in before.items() if name not in now]
    again = old.news if old is not None and old.batch == new.batch else ()
    return tuple(dict.fromkeys((*again, *began, *ended)))


def _by_name(problems: Iterable[Problem]) -> Problems:
    """Those of the report; notices tell when a silence begins and ends."""
    return {each.name: each for each in problems if not each.is_finding and each.name not in SILENCES}
