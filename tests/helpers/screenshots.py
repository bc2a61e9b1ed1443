"""The screenshot of the trend page, taken of a made-up history: `make screenshots`. With a folder as argument also what else is to be looked at.

Ends with one line and status 1 if there is no Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from include.config.health import METRICS_FILE, read_state, write_state
from include.local.machine import ROOT
from spark_jobs.quality.batch import Batch
from spark_jobs.quality.current_pages import write_index
from spark_jobs.quality.metrics_text import exposition
from spark_jobs.quality.pages import batch_details, write_pages
from spark_jobs.quality.suite import JudgedCheck, Verdict, checks
from spark_jobs.quality.trend_files import write_trend
from spark_jobs.tables.ledger_rows import PAIRED
from tests.helpers.batch_history import history, offenders
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.pages import pages_in
from tests.helpers.states import made_up_state

IMAGES = ROOT / "docs" / "images"
LARGEST = 200_000
READY = "window.readyAfterMs > 0 || document.getElementById('empty')?.hidden === false"


def write_batches(folder: Path, batches: list[Batch]) -> None:
    """The pages of the batches, judged as the report does, but for Great Expectations' own page."""
    pages = pages_in(folder)
    for batch in batches:
        row = batch.steps[PAIRED]
        found = [(check, batch.metrics.get(check.metric)) for check in checks(row.pipeline.quality, batch.metrics)]
        judged = [
            JudgedCheck(check, value is not None and check.least <= value <= check.most, value) for check, value in found
        ]
        verdict = Verdict(judged, "<html><head></head><body>Great Expectations' page</body></html>")
        write_pages(pages, replace(batch, verdict=verdict), batch_details(batch, offenders(batch)), read_state(pages))
    write_index(pages, batches[-1].steps[PAIRED].batch_id)


def write_history(folder: Path, batches: int, with_pages: int = 200) -> str:
    """Trend and newest pages of a history of so many batches; gives the trend page's address."""
    made = history(batches)
    trend = write_trend(pages_in(folder), "calls", made, list)
    (folder / METRICS_FILE).write_text(exposition(trend, made_up_state(batches)))
    if made:
        write_state(pages_in(folder), made_up_state(batches))
        write_batches(folder, made[-with_pages:])
    return (folder / "trend.html").as_uri()


def main(also: Path | None) -> int:
    """Gives the exit status."""
    if chromium() is None:
        print(f"error: {NEEDED}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        full, many = write_history(folder / "300", 300), write_history(folder / "5000", 5_000, 10)
        one, empty = write_history(folder / "1", 1), write_history(folder / "0", 0)
        shots = {
            "trend": (full, {"width": 1180, "height": 760}),
        }
        for shot, (address, options) in shots.items():
            _shoot(folder / shot, address, IMAGES / f"{shot}.png", **options)
        wide = {"width": 1280, "height": 2600}
        others = {
            "full-light": (full, wide), "full-dark": (full, wide | {"dark": True}), "many": (f"{many}#batch-4850", wide), "one": (one, wide),
            "empty": (empty, wide | {"height": 300}), "phone": (f"{full}#batch-150", {"width": 390, "height": 844, "phone": True}),
            "phone-dark": (full, {"width": 390, "height": 3000, "phone": True, "dark": True}),
        }  # fmt: skip
        for shot, (address, options) in others.items() if also else ():
            _shoot(folder / shot, address, also / f"{shot}.png", **options)
        _tell_time(folder / "time", many)
    return too_large()


def too_large() -> int:
    """Exit status 1 and a line if a picture is larger than people should have to load."""
    found = [path.name for path in sorted(IMAGES.glob("*.png")) if path.stat().st_size > LARGEST]
    if found:
        print(f"error: larger than {LARGEST} bytes: {', '.join(found)}", file=sys.stderr)
    return 1 if found else 0


def _tell_time(profile: Path, address: str) -> None:
    with Page(profile) as page:
        page.open(address, READY)
        took, size = page.ask("readyAfterMs"), page.ask("count")
    print(f"{size:,} batches are drawn {took:.0f} ms after the page was asked for")


def _shoot(profile: Path, address: str, file: Path, **options: int | bool) -> None:
    with Page(profile, **options) as page:
        page.open(address, READY if "trend.html" in address else "document.readyState == 'complete'")
        page.ask("new Promise((done) => setTimeout(done, 400))")
        page.screenshot(file)
        assert not page.errors, page.errors
    print(file)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
