"""The files beside the pages that these load: styles, scripts, and the library that draws. No page has any of it inline (`POLICY`)."""

from __future__ import annotations

import json

from include.config.page_head import THEME, THEME_FILE
from include.config.store import Store, read_text, write_text
from spark_jobs.quality.catalogue import MEANINGS
from spark_jobs.quality.rendering import source
from spark_jobs.rules.reasons import Reason

_LIBRARY_STYLE = "vendored/uplot/uPlot.min.css"
_TREND_SCRIPTS = ("series", "data", "charts", "batch", "start")


def assets() -> dict[str, str]:
    """Name -> text of each file."""
    return {
        THEME_FILE: THEME,
        "charts.js": source("vendored/uplot/uPlot.iife.min.js", "scripts/plots.js", "scripts/bars.js"),
        "page.css": source("templates/colors.css", "templates/look.css", "templates/page.css", _LIBRARY_STYLE),
        "trend.css": source("templates/colors.css", _LIBRARY_STYLE, "templates/trend.css"),
        # Not by +, which would escape the first.
        "trend.js": f"{_known()}{source(*(f'scripts/{name}.js' for name in _TREND_SCRIPTS))}",
    }


def write_assets(pages: Store, also: dict[str, str] | None = None) -> None:
    """Writes those files, and what is `also` to be there, that are missing or differ."""
    for name, text in (assets() | (also or {})).items():
        if read_text(pages, name) != text:
            write_text(pages, name, text)


def _known() -> str:
    meanings = {name: [each.sentence, each.unit, each.scale] for name, each in MEANINGS.items()}
    return f'"use strict";\nconst meanings = {json.dumps(meanings)}, reasons = {json.dumps([*Reason])};\n'
