"""What a problem of the pipeline's state says, in one sentence, and which runbook helps."""

from __future__ import annotations

from include.config.health import State
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.numbers import ORPHANS, of_sides
from spark_jobs.quality.silence import WARNING, Notice
from spark_jobs.quality.suite import LAWS, JudgedCheck

SILENCES = frozenset(of_sides({"silent_{side}": "", "unpaired_{side}": ""}))
_RUNBOOKS = {
    **dict.fromkeys(LAWS, "counts-do-not-add-up"),
    **dict.fromkeys(SILENCES, "topic-silent"),
    **dict.fromkeys(("orphan_ratio", "orphan_ratio_deviation", "skew_drift"), "orphans"),
    "foreign_changes": "does-not-add-up",
    "lost": "lost-range",
    "late_healable": "late-events",
}


def runbook_of(metric: str) -> str:
    """The runbook's path in the project; empty if there is none."""
    return f"docs/runbooks/{_RUNBOOKS[metric]}.md" if metric in _RUNBOOKS else ""


def problem_text(batch: Batch, judged: JudgedCheck) -> str:
    """The sentence about a check that a batch has broken, without a full stop. The checks of silence have theirs already."""
    check, number, metrics, at = judged.check, judged.observed, batch.metrics, batch.batch_id
    if number is None:
        return broken_text(at, judged)
    match check.metric:
        case "orphan_ratio":
            orphans, all_of_it = sum(metrics[kind] for kind in ORPHANS), metrics["compounds"]
            allowed = f"{number:.1%} where quality.max_orphan_ratio allows {check.most:.1%}"
            return Notice(
                f"{orphans:,.0f} of {all_of_it:,.0f} compounds of batch {at} are one-sided: {allowed}", WARNING
            ).text
        case "orphan_ratio_deviation":
            before = metrics.get("orphan_ratio_median", 0.0)
            usual = f"{metrics['orphan_ratio']:.1%}, usually {before:.1%}"
            return Notice(
                f"the orphan ratio of batch {at} is not like before: {usual}, {number:+.1f} spreads off", WARNING
            ).text
        case "skew_drift":
            return Notice(
                f"the clocks of the sides have moved {number:+,.0f} ms against each other by batch {at}", WARNING
            ).text
        case "lost":
            return Notice(f"batch {at} gave up {number:,.0f} records that the broker had lost", WARNING).text
    return broken_text(at, judged) if check.metric in LAWS else check.sentence


def late_text(number: int) -> str:
    """The sentence about late events that wait for a replay."""
    return Notice(f"late events of the last 7 days that a replay would pair: {number:,}", WARNING).text


def broken_text(batch_id: int, judged: JudgedCheck) -> str:
    """A broken check with both numbers."""
    check = judged.check
    allowed = f"{check.metric} is {judged.observed}, allowed {check.least:g} to {check.most:g}"
    return f"batch {batch_id}: {check.sentence}: {allowed}"


def state_sentences(state: State | None) -> list[str]:
    """The problems that nobody has acknowledged, for log and run note. A silence is told as its notice has it."""
    problems = state.open_problems if state is not None else []
    return [
        each.text if each.name in SILENCES else f"{each.severity} since batch {each.batch}: {each.text}" for each in problems
    ]
