"""The quality pages: plain HTML files that need nothing from the internet."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from include.page_theme import THEME
from include.secret_values import without_secrets
from spark_jobs.pairing.reasons import Reason
from spark_jobs.quality.details import details_script
from spark_jobs.quality.expectations_page import standing_alone
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.orphan_section import orphan_section
from spark_jobs.quality.silence_words import notices, notices_html
from spark_jobs.quality.style import STYLE
from spark_jobs.quality.suite import INFO, Judged, Verdict
from spark_jobs.replaying.window import window_of
from spark_jobs.storage.ledger import REPLAY, REWIND, TO_BATCH, LedgerRow


def write_pages(folder: Path, row: LedgerRow, metrics: Metrics, verdict: Verdict, details: str = "") -> Path:
    """Writes `batch-<id>.html`, with `details` (HTML) at its end, its Great Expectations page, and the details for the trend page; gives
    the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"batch-{row.batch_id}"
    batch = f"{row.pipeline.name}: batch {row.batch_id}"
    said = notices_html(notices(row.pipeline, metrics))
    write_text(folder / f"{name}-expectations.html", standing_alone(verdict.page, batch, f"{name}.html", said))
    # A batch that was given up may have no page.
    page = _batch_page(row, metrics, verdict, said, older=(folder / f"batch-{row.batch_id - 1}.html").exists())
    write_text(folder / f"{name}.js", details_script(row.batch_id, details))
    write_text(folder / f"{name}.html", page.replace("</body>", f"{details}</body>"))
    return folder / f"{name}.html"


def write_index(folder: Path) -> None:
    """Makes the newest batch's page the `index.html`: not that of the last report, which may have stood still while others went on."""
    write_text(folder / "index.html", max(folder.glob("batch-*.html"), key=_batch_of).read_text(encoding="utf-8"))


def prune_pages(folder: Path, keep: int) -> None:
    """Deletes the files of all batches but the newest `keep`, by batch_id, and the notes of runs that are older than these: of the newest
    no file goes, whenever it was written.
    """
    oldest = max(map(_batch_of, folder.glob("batch-*.html"))) - keep + 1
    gone = [
        file
        for file in folder.glob("batch-*")
        if (found := re.match(r"batch-(\d+)\b", file.name)) and int(found[1]) < oldest
    ]
    if gone:
        before = max(file.stat().st_mtime for file in gone)
        gone += [note for note in folder.glob("runs/*.json") if note.stat().st_mtime <= before]
    for file in gone:
        file.unlink(missing_ok=True)


def write_unjudged(folder: Path, pipeline: str, batch_id: int, error: Exception) -> None:
    """Writes `batch-<id>.html` for a batch whose report could not be made; the next report writes over it."""
    folder.mkdir(parents=True, exist_ok=True)
    title, told = f"{pipeline}: batch {batch_id}", without_secrets(" ".join(str(error).split()))[:1000]
    body = f"""<h1>{html.escape(title)} <span class="critical">not judged</span></h1>
<p>The report could not be made; the batch, and others since the last report, have still to be judged. The next report does it.</p>
<p>{html.escape(f"{type(error).__name__}: {told}")}</p>
"""
    write_text(folder / f"batch-{batch_id}.html", _document(title, body))


def _batch_of(page: Path) -> int:
    """The batch of a page, -1 for the page of its expectations."""
    found = re.fullmatch(r"batch-(\d+)", page.stem)
    return int(found[1]) if found else -1


def write_text(path: Path, text: str) -> None:
    """Writes a file that others may be reading: they see the old one or the new one, never half of one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _batch_page(row: LedgerRow, metrics: Metrics, verdict: Verdict, said: str, older: bool) -> str:
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
{orphan_section(row.pipeline, metrics)}{_healed(metrics)}<h2>Rejected</h2><table>{"".join(_rejected(metrics))}</table>
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
