"""The quality pages: plain HTML files that need nothing from the internet."""

from __future__ import annotations

import html
import re
from pathlib import Path

from spark_jobs.pairing.reasons import Reason
from spark_jobs.quality.details import details_script
from spark_jobs.quality.metrics import Metrics
from spark_jobs.quality.style import STYLE
from spark_jobs.quality.suite import Judged, Verdict
from spark_jobs.replaying.window import window_of
from spark_jobs.storage.ledger import REPLAY, REWIND, TO_BATCH, LedgerRow

_EXTERNAL = re.compile(
    r"<(link|img)\b[^>]*https?://[^>]*>|<script\b[^>]*src=[\"']https?://[^>]*>\s*</script>|<a\b[^>]*newsletter.*?</a>", re.S
)


def write_pages(folder: Path, row: LedgerRow, metrics: Metrics, verdict: Verdict, details: str = "") -> Path:
    """Writes `batch-<id>.html`, with `details` (HTML) at its end, its Great Expectations page, and the details for the trend page; gives
    the first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"batch-{row.batch_id}"
    write_text(folder / f"{name}-expectations.html", _without_internet(verdict.page))
    # A batch that was given up may have no page.
    page = _batch_page(row, metrics, verdict, older=(folder / f"batch-{row.batch_id - 1}.html").exists())
    write_text(folder / f"{name}.js", details_script(row.batch_id, details))
    write_text(folder / f"{name}.html", page.replace("</body>", f"{details}</body>"))
    return folder / f"{name}.html"


def write_index(folder: Path) -> None:
    """Makes the newest batch's page the `index.html`: not that of the last report, which may have stood still while others went on."""
    write_text(folder / "index.html", max(folder.glob("batch-*.html"), key=_batch_of).read_text(encoding="utf-8"))


def _batch_of(page: Path) -> int:
    """The batch of a page, -1 for the page of its expectations."""
    found = re.fullmatch(r"batch-(\d+)", page.stem)
    return int(found[1]) if found else -1


def write_text(path: Path, text: str) -> None:
    """Writes a file that others may be reading: they see the old one or the new one, never half of one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _without_internet(page: str) -> str:
    """Great Expectations' page without what it would load from other sites; what is left reads well without it."""
    return _EXTERNAL.sub("", page).replace("</head>", f"<style>{STYLE}</style></head>", 1)


def _batch_page(row: LedgerRow, metrics: Metrics, verdict: Verdict, older: bool) -> str:
    title = f"{row.pipeline.name}: batch {row.batch_id}"
    title += f", a rewind to batch {row.counts[TO_BATCH]}" if row.kind == REWIND else ""
    title += f", a replay of {window_of(row)}" if row.kind == REPLAY else ""
    state = "failed" if verdict.failed else "passed"
    previous = f'<a href="batch-{row.batch_id - 1}.html">batch {row.batch_id - 1}</a> · ' if older else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)} <span class="{"critical" if verdict.failed else "passed"}">{state}</span></h1>
<p>{previous}<a href="trend.html#batch-{row.batch_id}">all batches</a> ·
<a href="batch-{row.batch_id}-expectations.html">the expectations in full</a> · settings {row.config_hash}</p>
<h2>Checks</h2><table><tr><th>Check</th><th>Observed</th><th>Allowed</th><th>Result</th></tr>
{"".join(_check_line(judged) for judged in verdict.checks)}</table>
<h2>Where the events went</h2><table>{"".join(_line(text, value) for text, value in _story(metrics))}</table>
<h2>Rejected</h2><table>{"".join(_line(f"{reason}: {reason.sentence}", metrics[f"rejected_{reason}"]) for reason in Reason)}</table>
</body></html>
"""


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
    return f'<tr><td>{html.escape(text)}</td><td class="number">{value:,.0f}</td></tr>\n'


def _check_line(judged: Judged) -> str:
    check = judged.check
    style = "passed" if judged.passed else check.severity
    observed = "nothing" if judged.observed is None else f"{judged.observed:g}"
    allowed = f"{check.least:g}" if check.least == check.most else f"{check.least:g} to {check.most:g}"
    return (
        f'<tr><td>{html.escape(check.sentence)}</td><td class="number">{observed}</td><td class="number">{allowed}</td>'
        f'<td class="{style}">{"passed" if judged.passed else f"failed ({check.severity})"}</td></tr>\n'
    )
