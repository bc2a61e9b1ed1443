"""The quality pages: plain HTML files that need nothing from the internet."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

import obstore

from include.config.page_theme import THEME
from include.config.secret_values import without_secrets
from include.config.store import Store, read_text, write_text
from spark_jobs.corrections.replay_window import window_of
from spark_jobs.quality.details import details_script
from spark_jobs.quality.expectations_page import standing_alone
from spark_jobs.quality.numbers import Breakdown, Metrics
from spark_jobs.quality.orphan_section import orphan_section
from spark_jobs.quality.silence_words import notices, notices_html
from spark_jobs.quality.style import STYLE
from spark_jobs.quality.suite import INFO, Judged, Verdict
from spark_jobs.rules.reasons import Reason
from spark_jobs.tables.ledger import REPLAY, REWIND, TO_BATCH, LedgerRow

_OF_BATCH = re.compile(r"batch-(\d+)\.html")
# Holds the number of the batch whose page is the index: a list of all pages would take as many requests as there are thousands.
_NEWEST = "newest.txt"


def write_pages(
    pages: Store, row: LedgerRow, metrics: Metrics, verdict: Verdict, details: str = "", breakdowns: Sequence[Breakdown] = ()
) -> str:
    """Writes `batch-<id>.html`, with `details` (HTML) at its end, its Great Expectations page, and the details for the trend page; returns
    where the first is.
    """
    name = f"batch-{row.batch_id}"
    batch = f"{row.pipeline.name}: batch {row.batch_id}"
    said = notices_html(notices(row.pipeline, metrics))
    write_text(pages, f"{name}-expectations.html", standing_alone(verdict.page, batch, f"{name}.html", said))
    # A batch that was given up may have no page.
    older = read_text(pages, f"batch-{row.batch_id - 1}.html") is not None
    page = _batch_page(row, metrics, verdict, said, older, breakdowns)
    write_text(pages, f"{name}.js", details_script(row.batch_id, details))
    write_text(pages, f"{name}.html", page.replace("</body>", f"{details}</body>"))
    return pages.at(f"{name}.html").uri


def write_index(pages: Store, batch_id: int) -> None:
    """Makes the page of this batch the `index.html` if it is the newest: not that of the last report, which may have stood still while
    others went on.
    """
    known = read_text(pages, _NEWEST)
    newest = max(batch_id, int(known) if known and known.isdigit() else 0)
    if (text := read_text(pages, f"batch-{newest}.html")) is not None:
        write_text(pages, "index.html", text)
        write_text(pages, _NEWEST, str(newest))


def prune_pages(pages: Store, keep: int) -> None:
    """Deletes the files of all batches but the newest `keep`, by batch_id, and the notes of runs that are older than these: of the newest
    no file goes, whenever it was written.
    """
    files = obstore.list(pages.client).collect()
    batches = [int(found[1]) for file in files if (found := _OF_BATCH.fullmatch(file["path"]))]
    oldest = max(batches, default=0) - keep + 1
    gone = [file for file in files if (found := re.match(r"batch-(\d+)\b", file["path"])) and int(found[1]) < oldest]
    if gone:
        before = max(file["last_modified"] for file in gone)
        gone += [file for file in files if file["path"].startswith("runs/") and file["last_modified"] <= before]
        obstore.delete(pages.client, [file["path"] for file in gone])


def write_unjudged(pages: Store, pipeline: str, batch_id: int, error: Exception) -> None:
    """Writes `batch-<id>.html` for a batch whose report could not be made; the next report writes over it."""
    title, told = f"{pipeline}: batch {batch_id}", without_secrets(" ".join(str(error).split()))[:1000]
    body = f"""<h1>{html.escape(title)} <span class="critical">not judged</span></h1>
<p>The report could not be made; the batch, and others since the last report, have still to be judged. The next report does it.</p>
<p>{html.escape(f"{type(error).__name__}: {told}")}</p>
"""
    write_text(pages, f"batch-{batch_id}.html", _document(title, body))


def _batch_page(
    row: LedgerRow, metrics: Metrics, verdict: Verdict, said: str, older: bool, breakdowns: Sequence[Breakdown]
) -> str:
    title = f"{row.pipeline.name}: batch {row.batch_id}"
    title += f", a rewind to batch {row.counts[TO_BATCH]}" if row.kind == REWIND else ""
    title += f", a replay of {window_of(row)}" if row.kind == REPLAY else ""
    previous = f'<a href="batch-{row.batch_id - 1}.html">batch {row.batch_id - 1}</a> · ' if older else ""
    worst = {judged.check.severity for judged in verdict.checks if not judged.passed}
    state = "failed" if verdict.failed else "passed, with warnings" if worst - {INFO} else "passed"
    state += ", not all of it judged" if INFO in worst else ""
    style = "critical" if verdict.failed else "warning" if worst else "passed"
    body = f"""<h1>{html.escape(title)} <span class="{style}">{state}</span></h1>
{said}<p>{previous}<a href="trend.html#batch-{row.batch_id}">all batches</a> ·
<a href="batch-{row.batch_id}-expectations.html">the expectations in full</a> · settings {row.config_hash}</p>
<h2>Checks</h2><table><tr><th scope="col">Check</th><th scope="col">Observed</th><th scope="col">Allowed</th><th scope="col">Result</th></tr>
{"".join(_check_line(judged) for judged in verdict.checks)}</table>
<h2>Where the events went</h2><table>{"".join(_line(text, value) for text, value in _story(metrics))}</table>
{orphan_section(row.pipeline, metrics, breakdowns)}{_healed(metrics)}<h2>Rejected</h2><table>{"".join(_rejected(metrics))}</table>
"""
    return _document(title, body)


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>{THEME}<style>{STYLE}</style></head><body>
{body}</body></html>
"""


def _healed(metrics: Metrics) -> str:
    healed = metrics.get("healed_left", 0.0) + metrics.get("healed_right", 0.0)
    return f"<p>{healed:,.0f} orphans have found their partner by it.</p>\n" if healed else ""


def _rejected(metrics: Metrics) -> Iterator[str]:
    return (_line(f"{reason}: {reason.sentence}", metrics[f"rejected_{reason}"]) for reason in Reason)


def _story(metrics: Metrics) -> list[tuple[str, float]]:
    sentences = {
        "gone_at_start": "offsets that were gone from the topics when the pipeline began",
        "planned": "offsets planned",
        "offset_gaps": "of them without a record (compaction, transaction markers)",
        "landed": "records landed",
        "accepted": "of them accepted as events",
        "open_before": "events open before",
        "pair": "pairs",
        "left_only": "compounds with a left side only",
        "right_only": "compounds with a right side only",
        "corrections": "compounds corrected, by a rewind or replay",
        "collapsed": "events collapsed",
        "rejected": "events rejected",
        "open_after": "events still open",
        "backlog": "records left on the topics for the next batch",
    }
    # Of every batch but the first nothing was.
    told = {name: text for name, text in sentences.items() if name != "gone_at_start" or metrics.get(name)}
    return [(text, metrics[name]) for name, text in told.items()]


def _line(text: str, value: float) -> str:
    return f'<tr><th scope="row">{html.escape(text)}</th><td class="number">{value:,.0f}</td></tr>\n'


def _check_line(judged: Judged) -> str:
    check = judged.check
    style = "passed" if judged.passed else "warning" if check.severity == INFO else check.severity
    result = "passed" if judged.passed else "not judgeable" if check.severity == INFO else f"failed ({check.severity})"
    observed = "nothing" if judged.observed is None else f"{judged.observed:g}"
    allowed = f"{check.least:g}" if check.least == check.most else f"{check.least:g} to {check.most:g}"
    return (
        f'<tr><th scope="row">{html.escape(check.sentence)}</th><td class="number">{observed}</td><td class="number">{allowed}</td>'
        f'<td class="{style}">{result}</td></tr>\n'
    )
