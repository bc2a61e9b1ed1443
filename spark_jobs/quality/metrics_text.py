"""`metrics.prom`: the newest batch's numbers, the pipeline's state and its counts as OpenMetrics text.

It is for a scrape of Airflow's web server, or node_exporter's textfile collector. No sample has a timestamp, and no family has the name of
another one's sample, so the text is valid in Prometheus' older format too, which that collector reads.
"""

from __future__ import annotations

from include.config.health import FAILED, HEALTHY, WARNING, Lag, Problem, State
from spark_jobs.quality.catalogue import MEANINGS, SECONDS, Meaning
from spark_jobs.quality.trend import KINDS, METRIC_OF, Trend
from spark_jobs.rules.reasons import Reason

GAUGE, COUNTER = "gauge", "counter"
_PREFIX = "event_pairing_"
_REJECTED = {f"rejected_{reason}": str(reason) for reason in Reason}
_VERDICTS = (HEALTHY, WARNING, FAILED)
_LAG = {
    "unread": Meaning("Offsets on the input topics behind the newest batch"),
    "oldest_unread": Meaning("Time before which no unread record came, since 1970; absent where there is none", SECONDS),
    "oldest_open": Meaning("Time of the oldest open event since 1970; absent where there is none", SECONDS),
}


def exposition(trend: Trend, state: State | None = None) -> str:
    """The text, which ends with `# EOF`; without a batch that line alone."""
    lines: list[str] = []
    if trend.columns["batch"]:
        lines = [*_of_newest(trend), *_totals(trend), *(_of_state(state) if state else ())]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def family(name: str, known: Meaning, samples: dict[str, float], kind: str = GAUGE) -> list[str]:
    """One gauge or counter with its samples by labels. Its name ends with the unit, as OpenMetrics demands; a counter's samples with `_total`."""
    full = f"{_PREFIX}{name}"
    if known.unit and not full.endswith(f"_{known.unit}"):
        full += f"_{known.unit}"
    unit = [f"# UNIT {full} {known.unit}"] if known.unit else []
    end = "_total" if kind == COUNTER else ""
    values = [f"{full}{end}{{{labels}}} {round(value * known.scale, 6):.15g}" for labels, value in samples.items()]
    return [f"# TYPE {full} {kind}", *unit, f"# HELP {full} {escaped(known.sentence)}", *values]


def escaped(text: str) -> str:
    """The text between quotation marks, or in a help line."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labels(pipeline: str, **others: str) -> str:
    return ",".join(f'{name}="{escaped(value)}"' for name, value in {"pipeline": pipeline, **others}.items())


def _of_newest(trend: Trend) -> list[str]:
    pipeline = _labels(trend.pipeline)
    batch, at, kind, state = (trend.columns[name][-1] for name in ("batch", "at", "kind", "state"))
    newest = trend.newest()
    own = {
        "batch": (Meaning("Number of the newest reported batch"), {_labels(trend.pipeline, kind=KINDS[kind]): batch}),
        "batch_wall_time": (Meaning("Wall time of the newest reported batch since 1970", SECONDS), {pipeline: at}),
        "check_state": (Meaning("The newest batch 0: passed, 1: warning, 2: failed"), {pipeline: state}),
    }
    own |= {name: (_meaning(name), {pipeline: value}) for name, value in newest.items() if name not in _REJECTED}
    rejected = {name: newest[name] for name in _REJECTED if name in newest}
    if by_reason := {_labels(trend.pipeline, reason=_REJECTED[name]): value for name, value in rejected.items()}:
        own["rejected_by_reason"] = (Meaning("Events rejected, by reason"), by_reason)
    return [line for name, (known, samples) in own.items() for line in family(name, known, samples)]


def _totals(trend: Trend) -> list[str]:
    sums = trend.totals()
    samples = {_labels(trend.pipeline, of=name): sums[metric] for name, metric in METRIC_OF.items()}
    return family("all_batches", Meaning("Counts of all batches together"), samples, COUNTER)


def _of_state(state: State) -> list[str]:
    pipeline = _labels(state.pipeline)
    lines = family(
        "state",
        Meaning("The pipeline 0: healthy, 1: warning, 2: failed; until it is healed or acknowledged"),
        {pipeline: _VERDICTS.index(state.verdict)},
    )
    if state.problems:
        samples = {_problem_labels(state.pipeline, each): each.since for each in state.problems}
        lines += family("problem_since", Meaning("When a problem of the pipeline began, since 1970", SECONDS), samples)
    windows = {
        _labels(state.pipeline, window=window, of=name): getattr(counts, name)
        for window, counts in state.windows.items()
        for name in METRIC_OF
    }
    lines += family("in_window", Meaning("Counts of the batches of a window up to the newest batch"), windows)
    for name in Lag.model_fields:
        if (value := getattr(state.lag, name)) is not None:
            lines += family(name, _LAG[name], {pipeline: value})
    return lines


def _problem_labels(pipeline: str, problem: Problem) -> str:
    is_acknowledged = str(problem.acknowledged is not None).lower()
    return _labels(pipeline, problem=problem.name, severity=problem.severity, acknowledged=is_acknowledged)


def _meaning(name: str) -> Meaning:
    """Of a metric that is not in the catalogue its name, as a count."""
    return MEANINGS.get(name, Meaning(name.replace("_", " ").capitalize()))
