"""The newest batch's numbers as OpenMetrics text: for whatever scrapes Airflow's web server, or reads files (node_exporter's textfile collector).

Gauges only and no time stamps: so the text is one in Prometheus' older format, too, which that collector reads.
"""

from __future__ import annotations

from spark_jobs.quality.catalogue import Meaning, meaning
from spark_jobs.quality.trend import Trend
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.records import LIVE, REPLAY, REWIND

FILE = "metrics.prom"
_PREFIX = "event_pairing_"
_REJECTED = {f"rejected_{reason}": str(reason) for reason in Reason}


def exposition(trend: Trend) -> str:
    """The text, which ends with `# EOF`; of a trend without a batch that line alone."""
    lines: list[str] = []
    if trend.columns["batch"]:
        pipeline = f'pipeline="{escaped(trend.pipeline)}"'
        kind, state = (trend.columns[name][-1] for name in ("kind", "state"))
        kind_label = f'{pipeline},kind="{(LIVE, REPLAY, REWIND)[kind]}"'
        lines += family("batch", Meaning("Number of the newest reported batch"), {kind_label: trend.columns["batch"][-1]})
        lines += family(
            "batch_wall_time",
            Meaning("Wall time of the newest reported batch since 1970", "seconds"),
            {pipeline: trend.columns["at"][-1]},
        )
        lines += family(
            "check_state", Meaning("0: all checks passed, 1: a warning, 2: a critical check failed"), {pipeline: state}
        )
        newest = trend.newest()
        for name, value in newest.items():
            if name not in _REJECTED:
                lines += family(name, meaning(name), {pipeline: value})
        by_reason = {f'{pipeline},reason="{_REJECTED[name]}"': newest[name] for name in _REJECTED if name in newest}
        if by_reason:
            lines += family("rejected_by_reason", Meaning("Events rejected, by reason"), by_reason)
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def family(name: str, known: Meaning, samples: dict[str, float]) -> list[str]:
    """One gauge with its samples by labels. The name ends with the unit, as OpenMetrics wants it."""
    full = f"{_PREFIX}{name}"
    if known.unit and not full.endswith(f"_{known.unit}"):
        full += f"_{known.unit}"
    unit = [f"# UNIT {full} {known.unit}"] if known.unit else []
    values = [f"{full}{{{labels}}} {round(value * known.scale, 6):.15g}" for labels, value in samples.items()]
    return [f"# TYPE {full} gauge", *unit, f"# HELP {full} {escaped(known.sentence)}", *values]


def escaped(text: str) -> str:
    """As it has to stand between quotation marks, and in a help line."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
