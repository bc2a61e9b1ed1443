"""The quality pages: plain HTML files that need nothing from the internet."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

from spark_jobs.pairing.reasons import Reason
from spark_jobs.quality.numbers import Metrics
from spark_jobs.quality.orphan_section import orphan_section
from spark_jobs.quality.suite import Judged, Verdict
from spark_jobs.replaying.window import window_of
from spark_jobs.storage.ledger import REPLAY, REWIND, TO_BATCH, LedgerRow

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid #8886; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
th[scope=row] { font-weight: normal; }
svg { width: 100%; height: auto; overflow: visible; } svg text { font-size: 11px; fill: currentColor; } svg .floor { stroke: #8888; }
svg .a { fill: #0969da; } svg .b { fill: #bf5f00; } svg .c { fill: #8886; }
svg .line { fill: none; stroke: #0969da; stroke-width: 2; } svg .mark { stroke: currentColor; stroke-dasharray: 4 3; }
.passed { color: #1a7f37; } .warning { color: #9a6700; } .critical { color: #cf222e; }
@media (prefers-color-scheme: dark) { .passed { color: #3fb950; } .warning { color: #d29922; } .critical { color: #ff7b72; }
  svg .a { fill: #58a6ff; } svg .b { fill: #f0883e; } svg .line { stroke: #58a6ff; } }
"""
_EXTERNAL = re.compile(
    r"<(link|img)\b[^>]*https?://[^>]*>|<script\b[^>]*src=[\"']https?://[^>]*>\s*</script>|<a\b[^>]*newsletter.*?</a>"
    r"|url\([\"']?https?://[^)]*\)",
    re.S,
)


def write_pages(folder: Path, row: LedgerRow, metrics: Metrics, verdict: Verdict) -> Path:
    """Writes `batch-<id>.html` and its Great Expectations page; gives the former."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"batch-{row.batch_id}"
    _write(folder / f"{name}-expectations.html", _without_internet(verdict.page))
    # A batch that was given up may have no page.
    page = _batch_page(row, metrics, verdict, older=(folder / f"batch-{row.batch_id - 1}.html").exists())
    _write(folder / f"{name}.html", page)
    return folder / f"{name}.html"


def write_index(folder: Path) -> None:
    """Makes the newest batch's page the `index.html`: not that of the last report, which may have stood still while others went on."""
    _write(folder / "index.html", max(folder.glob("batch-*.html"), key=_batch_of).read_text(encoding="utf-8"))


def prune_pages(folder: Path, keep: int) -> None:
    """Deletes the pages of all batches but the newest `keep`, by batch_id: of those no page goes, whenever it was written."""
    oldest = max(map(_batch_of, folder.glob("batch-*.html"))) - keep + 1
    for page in folder.glob("batch-*.html"):
        found = re.fullmatch(r"batch-(\d+)(-expectations)?", page.stem)
        if found and int(found[1]) < oldest:
            page.unlink(missing_ok=True)


def write_unjudged(folder: Path, pipeline: str, batch_id: int, error: Exception) -> None:
    """Writes `batch-<id>.html` for a batch whose report could not be made; the next report writes over it."""
    folder.mkdir(parents=True, exist_ok=True)
    title, told = f"{pipeline}: batch {batch_id}", " ".join(str(error).split())[:1000]
    body = f"""<h1>{html.escape(title)} <span class="critical">not judged</span></h1>
<p>The report could not be made; the batch, and others since the last report, have still to be judged. The next report does it.</p>
<p>{html.escape(f"{type(error).__name__}: {told}")}</p>
"""
    _write(folder / f"batch-{batch_id}.html", _document(title, body))


def _batch_of(page: Path) -> int:
    """The batch of a page, -1 for the page of its expectations."""
    found = re.fullmatch(r"batch-(\d+)", page.stem)
    return int(found[1]) if found else -1


def _write(path: Path, text: str) -> None:
    # Renamed into place: a reader sees the old page or the new one, never half of one.
    draft = path.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _without_internet(page: str) -> str:
    """Great Expectations' page without what it would load from other sites; what is left reads well without it."""
    return _EXTERNAL.sub("", page).replace("</head>", f"<style>{_STYLE}</style></head>", 1)


def _batch_page(row: LedgerRow, metrics: Metrics, verdict: Verdict, older: bool) -> str:
    title = f"{row.pipeline.name}: batch {row.batch_id}"
    title += f", a rewind to batch {row.counts[TO_BATCH]}" if row.kind == REWIND else ""
    title += f", a replay of {window_of(row)}" if row.kind == REPLAY else ""
    previous = f'<a href="batch-{row.batch_id - 1}.html">batch {row.batch_id - 1}</a> · ' if older else ""
    worst = {judged.check.severity for judged in verdict.checks if not judged.passed}
    state = "failed" if verdict.failed else "passed, with warnings" if worst else "passed"
    style = "critical" if verdict.failed else "warning" if worst else "passed"
    body = f"""<h1>{html.escape(title)} <span class="{style}">{state}</span></h1>
<p>{previous}<a href="batch-{row.batch_id}-expectations.html">the expectations in full</a> · settings {row.config_hash}</p>
<h2>Checks</h2><table><tr><th scope="col">Check</th><th scope="col">Observed</th><th scope="col">Allowed</th><th scope="col">Result</th></tr>
{"".join(_check_line(judged) for judged in verdict.checks)}</table>
<h2>Where the events went</h2><table>{"".join(_line(text, value) for text, value in _story(metrics))}</table>
{orphan_section(row.pipeline, metrics)}{_healed(metrics)}<h2>Rejected</h2><table>{"".join(_rejected(metrics))}</table>
"""
    return _document(title, body)


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
{body}</body></html>
"""


def _healed(metrics: Metrics) -> str:
    healed = metrics.get("healed_left", 0.0) + metrics.get("healed_right", 0.0)
    return f"<p>{healed:,.0f} orphans have found their partner by it.</p>\n" if healed else ""


def _rejected(metrics: Metrics) -> Iterator[str]:
    return (_line(f"{reason}: {reason.sentence}", metrics[f"rejected_{reason}"]) for reason in Reason)


def _story(metrics: Metrics) -> list[tuple[str, float]]:
    sentences = {
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
    return [(text, metrics[name]) for name, text in sentences.items()]


def _line(text: str, value: float) -> str:
    return f'<tr><th scope="row">{html.escape(text)}</th><td class="number">{value:,.0f}</td></tr>\n'


def _check_line(judged: Judged) -> str:
    check = judged.check
    style = "passed" if judged.passed else check.severity
    observed = "nothing" if judged.observed is None else f"{judged.observed:g}"
    allowed = f"{check.least:g}" if check.least == check.most else f"{check.least:g} to {check.most:g}"
    return (
        f'<tr><th scope="row">{html.escape(check.sentence)}</th><td class="number">{observed}</td><td class="number">{allowed}</td>'
        f'<td class="{style}">{"passed" if judged.passed else f"failed ({check.severity})"}</td></tr>\n'
    )
