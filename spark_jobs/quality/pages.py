"""The files of a batch among the quality pages: its page, Great Expectations' page, and its details for the trend page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC

import obstore
from markupsafe import Markup

from include.config.health import State
from include.config.pipeline import Pipeline
from include.config.secret_values import without_secrets
from include.config.setting_changes import in_words as changes_in_words
from include.config.store import Store, exists, write_text
from include.config.time_text import utc
from spark_jobs.kafka.ranges import ranges_given_up
from spark_jobs.quality.assets import write_assets
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.batch_health import health
from spark_jobs.quality.late_intervals import Look
from spark_jobs.quality.late_section import healed_lines, late_section, rewrite_section
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.offenders import SHOWN, Offender
from spark_jobs.quality.orphan_section import orphan_section
from spark_jobs.quality.rendering import render
from spark_jobs.quality.settings_section import BATCHES, settings_section
from spark_jobs.quality.silence import Notice, notices
from spark_jobs.quality.suite import INFO, LAWS, Verdict, in_words
from spark_jobs.quality.trend import took
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger_rows import PLANNED, PUBLISHED_ORPHANS, PUBLISHED_REJECTED, STEPS, LedgerRow
from spark_jobs.tables.records import ERASURE, REPLAY, REWIND, plan_struct

_PAGE = re.compile(r"batch-(\d+)\.html")
# Among the counts of the ledger: epoch ms.
_TIMES = ("held_since", "removed_until")
# Great Expectations makes its page for a site, with libraries from the internet: what is around the content, what loads, and styles.
_AROUND = re.compile(
    r"</?(?:html|body)\b[^>]*>|<img\b[^>]*https?://[^>]*>|<a\b[^>]*newsletter.*?</a>|<script\b.*?</script>|\s(?:onclick|style)=\"[^\"]*\"",
    re.S | re.I,
)
# Links to other pages of that site, which do not exist here.
_AWAY = re.compile(r"<a\b[^>]*href=\"\.\./[^>]*>(.*?)</a>", re.S)


def write_pages(
    pages: Store, batch: Batch, details: Markup, state: State | None = None, before: Sequence[Batch] = ()
) -> str:
    """Writes a judged batch's page, which ends with the `details`, Great Expectations' and the script for the trend page; returns where the first is.

    `state`: of the pipeline, whose problems outlive the batches that showed them. `before`: batches whose breakdowns are shown together with its own,
    by batch_id.
    """
    assert batch.verdict is not None
    name, pipeline = f"batch-{batch.batch_id}", batch.paired.pipeline
    said, title = notices(pipeline, batch.metrics), f"{pipeline.name}: batch {batch.batch_id}"
    write_text(pages, f"{name}-expectations.html", expectations_page(batch.verdict.page, title, f"{name}.html", said))
    write_text(pages, f"{name}.js", details_script(batch.batch_id, details))
    # A batch that was given up may have no page.
    older = exists(pages, f"batch-{batch.batch_id - 1}.html")
    panel, settings = health(batch, state), _settings(batch, before)
    write_text(pages, f"{name}.html", _batch_page(batch, batch.verdict, said, older, [panel, settings, details]))
    return pages.at(f"{name}.html").uri


def rewrite_late(pages: Store, pipeline: Pipeline, batch: Batch, clock: int | None, looks: Sequence[Look]) -> None:
    """Writes what became of the late events of an earlier batch into its page; the arguments are those of `late_section`."""
    section = late_section(pipeline, batch, clock, looks)
    rewrite_section(pages, f"batch-{batch.batch_id}.html", section)


def prune_pages(pages: Store, keep: int) -> None:
    """Deletes the files of all batches but the newest `keep` by batch_id, and the notes of runs that are not newer than the newest deleted file."""
    files = obstore.list(pages.client).collect()
    batches = [int(found[1]) for file in files if (found := _PAGE.fullmatch(file["path"]))]
    oldest = max(batches, default=0) - keep + 1
    gone = [file for file in files if (found := re.match(r"batch-(\d+)\b", file["path"])) and int(found[1]) < oldest]
    if gone:
        before = max(file["last_modified"] for file in gone)
        gone += [file for file in files if file["path"].startswith("runs/") and file["last_modified"] <= before]
        obstore.delete(pages.client, [file["path"] for file in gone])


def write_unjudged(pages: Store, pipeline: str, batch_id: int, error: Exception) -> None:
    """Writes `batch-<id>.html` for a batch whose report failed. The next report overwrites it."""
    text = without_secrets(" ".join(str(error).split()))[:1000]
    page = render("unjudged.html", title=f"{pipeline}: batch {batch_id}", error=f"{type(error).__name__}: {text}")
    write_text(pages, f"batch-{batch_id}.html", page)
    write_assets(pages)


def expectations_page(page: str, batch: str, back: str, said: Sequence[Notice] = ()) -> str:
    """Great Expectations' `page` (HTML) under the name of its `batch`, with a link `back` and the notices, without scripts and what is elsewhere."""
    body = Markup(_AWAY.sub(r"\1", _AROUND.sub("", page.partition("</head>")[2])))
    return render("expectations.html", batch=batch, back=back, notices=said, body=body)


def batch_details(batch: Batch, offenders: Iterable[Offender]) -> Markup:
    """A batch's ledger rows and its events to look up: headings from h2 on."""
    of_batch = [each for each in offenders if each.batch_id == batch.batch_id]
    labels = sorted({each.label for each in of_batch})
    return render(
        "details.html",
        steps=[_step(batch.steps[step]) for step in (*STEPS, PUBLISHED_ORPHANS, PUBLISHED_REJECTED) if step in batch.steps],
        landed=batch.landed,
        given_up=ranges_given_up,
        new_topics=batch.new_topics,
        began=[f"{at.topic}-{at.partition} began at {at.began:,}" for at in batch.landed.offsets if at.began],
        groups=[_group(label, [each for each in of_batch if each.label == label], batch.metrics) for label in labels],
    )


def details_script(batch_id: int, details: str) -> str:
    """The details for the trend page, which loads them as a script: a page that is opened as a file can load nothing else."""
    return f"batchDetails({batch_id},{json.dumps(details)});\n"


def _settings(batch: Batch, before: Sequence[Batch]) -> Markup:
    newest = [each.breakdowns for each in before if each.breakdowns][1 - BATCHES :]
    breakdowns = [batch.breakdowns, *newest]
    return settings_section(batch.paired.pipeline, batch.metrics, breakdowns)


def _batch_page(batch: Batch, verdict: Verdict, said: Sequence[Notice], older: bool, parts: Sequence[Markup]) -> str:
    """`parts`: the panel of its health, the section of its settings and its details."""
    row, metrics = batch.paired, batch.metrics
    is_whole = all(judged.passed or judged.check.severity != INFO for judged in verdict.checks)
    style = ("passed" if is_whole else "warning", "warning", "critical")[verdict.state]
    panel, settings, details = parts
    return render(
        "batch.html",
        title=_title(row),
        row=row,
        state=in_words(verdict),
        style=style,
        panel=panel,
        settings=settings,
        proofs=_proofs(verdict),
        notices=_not_in_panel(said, verdict),
        changes=changes_in_words(batch.changes),
        older=older,
        checks=verdict.checks,
        metrics=metrics,
        orphans=orphan_section(row.pipeline, metrics, batch.breakdowns),
        late=late_section(row.pipeline, batch, row.clock),
        healed=metrics.get("healed_left", 0.0) + metrics.get("healed_right", 0.0),
        healed_late=healed_lines(batch.breakdowns),
        reasons=[*Reason],
        details=details,
    )


def _title(row: LedgerRow) -> str:
    title = f"{row.pipeline.name}: batch {row.batch_id}"
    title += f", a rewind to batch {row.rewind.to_batch}" if row.kind == REWIND else ""
    title += ", an erasure" if row.kind == ERASURE else ""
    return title + (f", a replay of {row.replay.window}" if row.kind == REPLAY else "")


def _not_in_panel(said: Sequence[Notice], verdict: Verdict) -> list[Notice]:
    """The notices without those that the panel has as a failed check."""
    broken = {judged.check.metric for judged in verdict.checks if not judged.passed}
    return [notice for notice in said if not broken.issuperset(notice.metrics or ("",))]


def _proofs(verdict: Verdict) -> str:
    """How many of the laws hold, and how many of the other checks passed."""
    laws = [judged.passed for judged in verdict.checks if judged.check.metric in LAWS]
    others = [judged.passed for judged in verdict.checks if judged.check.metric not in LAWS]
    return f"{sum(laws)} of {len(laws)} laws hold, {sum(others)} of {len(others)} other checks passed"


def _step(row: LedgerRow) -> tuple[str, str, float | None, list[tuple[str, str]]]:
    """Name, begin, duration and numbers as text: the counts of the row, those of the plan in a `planned` row, and those of the output topic."""
    found = row.counts.flat()
    if row.step == PLANNED:
        found |= {name: number for name, number in plan_struct(row.plan).items() if isinstance(number, int)}
    if row.output is not None:
        found |= {"position": row.output.position or 0, "partitions": row.output.partitions}
        found |= {f"end_{number}": end for number, end in sorted(row.output.ends.items())}
        found |= {f"partition_{number}": sent for number, sent in sorted(row.output.sent.items())}
    counts = [
        (name.replace("_", " "), utc(number) if name in _TIMES else f"{number:,}")
        for name, number in found.items()
        if number
    ]
    # Spark returns times in the zone of the process.
    return row.step, f"{row.started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}", took(row), counts


def _group(label: str, events: list[Offender], metrics: Metrics) -> tuple[str, str, list[Offender], str]:
    sentence = Reason(label).sentence if label in {*Reason} else "the other side never came"
    total = metrics.get(f"rejected_{label}", metrics.get(label, 0))
    # Corrections are not counted by kind.
    more = f"And {total - SHOWN:,.0f} more." if total > SHOWN else "And more."
    return label, sentence, events[:SHOWN], more if len(events) > SHOWN else ""
