"""What the pages of the jobs and those of Airflow are made with: Jinja2 templates. Whatever a template is given is escaped, unless another
template made it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from include.config.page_head import POLICY, THEME_FILE
from include.config.time_text import rough, utc

# The templates and styles that all pages share.
TEMPLATES = Path(__file__).resolve().parent / "templates"


def page_environment(*folders: Path) -> Environment:
    """Renders the templates of these folders, and the shared ones. A value that a template needs and is not given is an error."""
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(policy=POLICY, theme_file=THEME_FILE)
    environment.filters.update(utc=utc, whole=_whole, minute=_minute, rough=rough)
    return environment


def _whole(number: float) -> str:
    # An int keeps every digit; a float would not beyond 2^53.
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}"


def _minute(seconds: float) -> str:
    """Epoch seconds to the minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
