"""The trend page: one HTML file with style, script and charting library in it, the same for every batch; its data lie beside it."""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path

from include.config.page_theme import THEME
from spark_jobs.quality.catalogue import MEANINGS
from spark_jobs.quality.trend import FILE as DATA_FILE
from spark_jobs.rules.reasons import Reason

FILE = "trend.html"
_HERE = Path(__file__).resolve().parent
VENDORED = _HERE / "vendored" / "uplot"
_STYLES = (VENDORED / "uPlot.min.css", _HERE / "page" / "trend.css")
_SCRIPTS = ("series.js", "data.js", "charts.js", "batch.js", "start.js")


@cache
def page(pipeline: str) -> str:
    """The page of a pipeline."""
    meanings = {name: [known.sentence, known.unit, known.scale] for name, known in MEANINGS.items()}
    constants = f"const meanings={json.dumps(meanings)},reasons={json.dumps([*Reason])};"
    own = "\n".join((_HERE / "page" / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    parts = {
        "PIPELINE": html.escape(pipeline),
        "THEME": THEME,
        "STYLE": "\n".join(path.read_text(encoding="utf-8") for path in _STYLES),
        "LIBRARY": (VENDORED / "uPlot.iife.min.js").read_text(encoding="utf-8"),
        "DATA": DATA_FILE,
        "SCRIPT": f'"use strict";{constants}\n{own}',
    }
    text = (_HERE / "page" / "trend.html").read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part)
    return text
