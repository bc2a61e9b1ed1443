"""Which problems a pipeline has after a batch, given those before it. docs/quality.md has a table of what begins and what ends each.

Pure: the same batches give the same problems, whether they are added one by one or all anew from the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from include.config.health import FAILED, WARNING, Problem
from include.config.pipeline import FEWEST_ORPHANS, Pipeline
from include.config.problem_marks import HealMark
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.foreign_changes import FOREIGN_CHANGES, check_sentences
from spark_jobs.quality.problem_texts import late_text, problem_text, runbook_of
from spark_jobs.quality.suite import CRITICAL, INFO, LAWS, JudgedCheck, judge_bounds
from spark_jobs.quality.windows import LateEvents
from spark_jobs.tables.records import REWIND

Problems = dict[str, Problem]
LATE = "late_healable"
# The metric that says of how much a ratio was made.
_MADE_OF = {"orphan_ratio": "compounds", "orphan_ratio_deviation": "compounds", "skew_drift": "pair"}
# What happened once stays true, whatever later batches bring.
_LASTING = LAWS | {"lost", FOREIGN_CHANGES}
# With `late: replay` the live DAG heals late events itself; only what still waits after this time is a problem.
_HEALS_WITHIN_S = 3_600


def problems_after(batch: Batch, before: Problems, pipeline: Pipeline, healed: Mapping[str, HealMark]) -> Problems:
    """The problems of checks after a batch. `healed`: what was mended, for a batch that is not judged now but read from the tables."""
    problems = dict(before)
    if batch.paired.kind == REWIND:
        target = batch.paired.rewind.to_batch
        problems = {name: each for name, each in problems.items() if each.batch <= target}
    for judged in _judged(batch, pipeline):
        name = judged.check.metric
        if judged.check.severity == INFO:
            continue
        if not judged.passed and not _was_mended(batch, healed.get(name)):
            problems[name] = problem_of(batch, judged, problems.get(name))
        elif judged.passed and name in problems:
            problems |= _calmed(problems.pop(name), batch)
    return problems


def late_problem(late: LateEvents, pipeline: Pipeline, now: float) -> Problems:
    """The problem of late events that wait for a replay, if there is one. `now`: W of the newest batch, epoch seconds."""
    if not late.number or (pipeline.late == "replay" and now - late.since <= _HEALS_WITHIN_S):
        return {}
    problem = Problem(
        name=LATE,
        severity=WARNING,
        text=late_text(late.number),
        batch=late.first,
        since=late.since,
        last=late.last,
        newest=late.newest,
        runbook=runbook_of(LATE),
    )
    return {LATE: problem}


def _judged(batch: Batch, pipeline: Pipeline) -> Iterable[JudgedCheck]:
    if batch.verdict is not None:
        return batch.verdict.checks
    return judge_bounds(batch.metrics, pipeline.quality, check_sentences(pipeline, batch))


def _was_mended(batch: Batch, healed: HealMark | None) -> bool:
    is_judged_now = batch.verdict is not None
    return not is_judged_now and healed is not None and (batch.batch_id <= healed.batch or batch.batch_id in healed.alone)


def own_problems(batch: Batch) -> tuple[list[Problem], list[Problem]]:
    """What the batch alone has failed, and what could not be judged of it."""
    found = [judged for judged in (batch.verdict.checks if batch.verdict else ()) if not judged.passed]
    failed, unknown = ([each for each in found if (each.check.severity == INFO) is is_info] for is_info in (False, True))
    return [problem_of(batch, each) for each in failed], [problem_of(batch, each) for each in unknown]


def problem_of(batch: Batch, judged: JudgedCheck, known: Problem | None = None) -> Problem:
    """The problem of a check that the batch has not passed. `known`: the same as earlier batches showed it."""
    name, at = judged.check.metric, batch.at / 1000
    return Problem(
        name=name,
        severity=FAILED if judged.check.severity == CRITICAL else WARNING,
        text=problem_text(batch, judged),
        batch=known.batch if known else batch.batch_id,
        since=known.since if known else at,
        last=at,
        newest=batch.batch_id,
        runbook=runbook_of(name),
    )


def _calmed(problem: Problem, batch: Batch) -> Problems:
    """The problem if it outlives a batch that was judged good; else nothing. A ratio of a few compounds says little."""
    if problem.name in _LASTING:
        return {problem.name: problem}
    if problem.name not in _MADE_OF:
        return {}
    calm = problem.calm + int(batch.metrics.get(_MADE_OF[problem.name], 0))
    return {} if calm >= FEWEST_ORPHANS else {problem.name: problem.model_copy(update={"calm": calm})}
