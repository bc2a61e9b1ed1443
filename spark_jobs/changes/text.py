"""A plan of changes in words."""

from __future__ import annotations

from collections.abc import Iterator

from include.config.time_text import count, moment
from spark_jobs.changes.open_events import Effect
from spark_jobs.changes.plan import FORBIDDEN, NEW, UNCHANGED, ChangePlan
from spark_jobs.kafka.settings import VARIABLE

_FATES = {
    "sessions": "sessions",
    "closed_next": "sessions that the next batch closes, unless records join them",
    "closed_by_now": "sessions that a batch without new records closes now",
    "duplicate": "events that the next batch rejects as duplicate",
    "late": "events that the next batch rejects as late",
    "pair": "as they are: pairs",
    "left_only": "as they are: left events alone",
    "right_only": "as they are: right events alone",
    "collapsed": "as they are: collapsed events",
}


def plan_lines(plan: ChangePlan) -> Iterator[str]:
    """Lines of text, the verdict first."""
    yield f"{plan.pipeline}: {_verdict(plan)}"
    if not plan.asked_kafka:
        yield f"  the topics were not asked: {VARIABLE} is not set"
    yield from (f"  refused: {line}" for line in plan.forbidden)
    if plan.is_unfinished:
        yield f"  batch {plan.batch_id} is unfinished: it is finished with the settings of its plan first"
    for each in plan.changes:
        yield f"  {each.change}, {each.since}: {each.consequence}"
    if plan.effect is not None and plan.changes:
        yield from _effect_lines(plan, plan.effect)


def _verdict(plan: ChangePlan) -> str:
    if plan.state == NEW:
        return f"new: {plan.place} has no tables yet, and it begins at the topics' first offsets"
    if plan.state == UNCHANGED:
        return f"nothing would change against batch {plan.batch_id}"
    changes = count(len(plan.changes), "change")
    if plan.state == FORBIDDEN:
        return f"forbidden: {changes} against batch {plan.batch_id}, refused"
    return f"{changes} against batch {plan.batch_id}"


def _effect_lines(plan: ChangePlan, effect: Effect) -> Iterator[str]:
    clock = "no clock yet" if plan.clock is None else f"clock {moment(plan.clock)}"
    yield f"  open events: {effect.events:,} ({clock})"
    if effect.events:
        yield f"    {'':<70}{'old':>10}{'new':>10}"
        for name, words in _FATES.items():
            yield f"    {words:<70}{getattr(effect.old, name):>10,}{getattr(effect.new, name):>10,}"
        yield f"    sessions by when they close: {effect.earlier:,} earlier, {effect.same:,} the same, {effect.later:,} later"
