"""The files that say how the pipeline is now, whoever has changed that last: `index.html` and `metrics.prom`.

They are made of what others have written: the page of the newest batch, the trend, the state and what people and commands said of its problems.
Who changes one of these calls `write_current` afterwards. Two may do so at the same moment, without a lock: each looks again after it has written,
and writes again if anything it was made of has changed. So the last one to write has seen everything.
"""

from __future__ import annotations

from include.config.health import FILE, METRICS_FILE, State, read_state
from include.config.health_panel import panel
from include.config.problem_marks import FOLDER
from include.config.store import Store, etag, etags, read_text, write_text
from spark_jobs.quality.metrics_text import exposition
from spark_jobs.quality.rendering import with_part
from spark_jobs.quality.trend import FILE as TREND_FILE
from spark_jobs.quality.trend import Trend

# Names the batch whose page is the index. A list of all pages would take a request for every thousand.
NEWEST = "newest.txt"
# Around the panel in a batch's page.
_PANEL = ("<!-- health -->", "<!-- /health -->")
# Who is overtaken so often is followed by somebody who writes the same.
_TRIES = 20


def write_index(pages: Store, batch_id: int, trend: Trend | None = None) -> None:
    """Makes this batch's page the index, unless a newer batch's page is: reports of older batches may end later. `trend`: as it is, if known."""
    newest = max(batch_id, _newest(pages))
    if read_text(pages, _page(newest)) is not None:
        write_text(pages, NEWEST, str(newest))
    write_current(pages, trend)


def write_current(pages: Store, trend: Trend | None = None) -> None:
    """Writes both files anew. `trend`: given by the report, which alone changes it."""
    for _ in range(_TRIES):
        seen = _sources(pages)
        state, newest = read_state(pages), _newest(pages)
        if (page := read_text(pages, _page(newest))) is not None:
            write_text(pages, "index.html", _index(page, newest, state))
        if state and (known := trend or Trend.load(pages, state.pipeline)):
            write_text(pages, METRICS_FILE, exposition(known, state))
        if _sources(pages) == seen:
            return


def _index(page: str, newest: int, state: State | None) -> str:
    """The page with the state of now, if that is of its batch."""
    return with_part(page, *_PANEL, panel(state)) if state and state.batch == newest else page


def _newest(pages: Store) -> int:
    known = read_text(pages, NEWEST)
    return int(known) if known and known.isdigit() else 0


def _page(batch_id: int) -> str:
    return f"batch-{batch_id}.html"


def _sources(pages: Store) -> list[object]:
    """What changes when one of the sources does."""
    names = (NEWEST, FILE, TREND_FILE, _page(_newest(pages)))
    return [*(etag(pages, name) for name in names), etags(pages.at(FOLDER))]
