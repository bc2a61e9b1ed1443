"""The newest batch's numbers as OpenMetrics text: for a scrape of Airflow's web server, or node_exporter's textfile collector.

Gauges only and no timestamps, so the text is valid in Prometheus' older format too, which that collector reads.
"""

from __future__ import annotations

from spark_jobs.quality.catalogue import SECONDS, Meaning, meaning
from spark_jobs.quality.trend import KINDS, Trend
from spark_jobs.rules.reasons import Reason

FILE = "metrics.prom"
_PREFIX = "event_pairing_"
_REJECTED = {f"rejected_{reason}": str(reason) for reason in Reason}


def exposition(trend: Trend) -> str:
    """The text, which ends with `# EOF`; without a batch that line alone."""
    lines: list[str] = []
    if trend.columns["batch"]:
        pipeline = f'pipeline="{escaped(trend.pipeline)}"'
        batch, at, kind, state = (trend.columns[name][-1] for name in ("batch", "at", "kind", "state"))
        newest = trend.newest()
        own = {
            "batch": (Meaning("Number of the newest reported batch"), {f'{pipeline},kind="{KINDS[kind]}"': batch}),
            "batch_wall_time": (Meaning("Wall time of the newest reported batch since 1970", SECONDS), {pipeline: at}),
            "check_state": (Meaning("0: all checks passed, 1: a warning, 2: a critical check failed"), {pipeline: state}),
        }
        own |= {name: (meaning(name), {pipeline: value}) for name, value in newest.items() if name not in _REJECTED}
        if by_reason := {f'{pipeline},reason="{_REJECTED[name]}"': newest[name] for name in _REJECTED if name in newest}:
            own["rejected_by_reason"] = (Meaning("Events rejected, by reason"), by_reason)
        lines = [line for name, (known, samples) in own.items() for line in family(name, known, samples)]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def family(name: str, known: Meaning, samples: dict[str, float]) -> list[str]:
    """One gauge with its samples by labels. Its name ends with the unit, as OpenMetrics demands."""
    full = f"{_PREFIX}{name}"
    if known.unit and not full.endswith(f"_{known.unit}"):
        full += f"_{known.unit}"
    unit = [f"# UNIT {full} {known.unit}"] if known.unit else []
    values = [f"{full}{{{labels}}} {round(value * known.scale, 6):.15g}" for labels, value in samples.items()]
    return [f"# TYPE {full} gauge", *unit, f"# HELP {full} {escaped(known.sentence)}", *values]


def escaped(text: str) -> str:
    """The text between quotation marks, or in a help line."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
