"""What a batch's page, and the trend page when the batch is picked, tell of it beside its counts: its ledger rows and its offending events."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from datetime import UTC, datetime

from include.config.time_text import utc
from spark_jobs.kafka.ranges import ranges_given_up
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.offenders import SHOWN, Offender
from spark_jobs.quality.trend import took
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import LANDED, PAIRED, PLANNED, STEPS, LedgerRow
from spark_jobs.tables.records import plan_struct


def batch_details(steps: dict[str, LedgerRow], metrics: Metrics, offenders: Iterable[Offender]) -> str:
    """Both as HTML, headings from h2 on."""
    of_batch = [each for each in offenders if each.batch_id == steps[PAIRED].batch_id]
    labels = sorted({each.label for each in of_batch})
    events = "".join(_events(label, [each for each in of_batch if each.label == label], metrics) for label in labels)
    return (
        f"<h2>Ledger</h2>{_ledger(steps)}{_offsets(steps.get(LANDED, steps[PAIRED]))}"
        f"<h2>Events to look up</h2>{events or '<p>None: no event was rejected, and none stayed alone.</p>'}\n"
    )


def details_script(batch_id: int, details: str) -> str:
    """The same for the trend page, which loads it as a script: opened as a file it may load nothing else."""
    return f"batchDetails({batch_id},{json.dumps(details)});\n"


def _ledger(steps: dict[str, LedgerRow]) -> str:
    rows = "".join(_step(steps[step]) for step in STEPS if step in steps)
    return f"<table><tr><th>Step</th><th>Began (UTC)</th><th>Took</th><th>Counts</th></tr>\n{rows}</table>"


def _step(row: LedgerRow) -> str:
    seconds = took(row)
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in _numbers(row).items() if count)
    return (
        f"<tr><td>{html.escape(row.step)}</td><td>{_time(row.started_at)}</td>"
        f'<td class="number">{"" if seconds is None else f"{seconds:.1f} s"}</td><td>{html.escape(counts) or "nothing"}</td></tr>\n'
    )


def _numbers(row: LedgerRow) -> dict[str, int]:
    """What there is to count in the row: of a plan its numbers, of the output topic also what is by partition."""
    found = dict(row.counts.flat())
    if row.step == PLANNED:
        found |= {name: number for name, number in plan_struct(row.plan).items() if isinstance(number, int)}
    if row.output is not None:
        found |= {"position": row.output.position or 0, "slots": row.output.slots}
        found |= {f"end_{number}": end for number, end in sorted(row.output.ends.items())}
        found |= {f"partition_{number}": sent for number, sent in sorted(row.output.sent.items())}
    return found


def _time(at: datetime) -> str:
    # Spark gives the times of its rows in the zone of the process.
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _offsets(row: LedgerRow) -> str:
    if not row.offsets:
        return ""
    lines = "".join(
        f'<tr><td>{html.escape(at.topic)}-{at.partition}</td><td class="number">{at.from_offset}</td><td class="number">{at.until_offset}</td>'
        f'<td class="number">{at.end_offset - at.until_offset:,}</td><td class="number">{" ".join(ranges_given_up(at))}</td></tr>\n'
        for at in row.offsets
    )
    began = [f"{at.topic}-{at.partition} began at {at.began:,}" for at in row.offsets if at.began]
    not_promised = (
        f"<p>When the pipeline began, older records were gone: {html.escape(', '.join(began))}.</p>\n" if began else ""
    )
    clock = "none yet" if row.clock is None else utc(row.clock)
    return (
        f"<p>Wall time {utc(row.wall_time)}, clock {clock}.</p>"
        f"<table><tr><th>Partition</th><th>From</th><th>Until</th><th>Left</th><th>Given up</th></tr>\n{lines}</table>{not_promised}"
    )


def _events(label: str, found: list[Offender], metrics: Metrics) -> str:
    sentence = Reason(label).sentence if label in {*Reason} else "the other side never came"
    lines = "".join(
        f"<tr><td><code>{html.escape(each.source)}</code></td><td>{utc(each.ts)}</td></tr>\n" for each in found[:SHOWN]
    )
    total = metrics.get(f"rejected_{label}", metrics.get(label, 0))
    more = ""
    if len(found) > SHOWN:
        # Corrections are not counted by kind.
        more = f"<p>And {total - SHOWN:,.0f} more.</p>" if total > SHOWN else "<p>And more.</p>"
    return (
        f"<details><summary>{html.escape(label)}: {html.escape(sentence)} ({min(len(found), SHOWN)}{' and more' if more else ''})</summary>"
        f"<table><tr><th>Source (topic-partition-offset)</th><th>Time</th></tr>\n{lines}</table>{more}</details>\n"
    )
