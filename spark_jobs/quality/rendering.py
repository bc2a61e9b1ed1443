"""Pages as HTML, from the Jinja2 templates in `templates/`. Whatever a template is given is escaped, unless another template made it."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from include.config.page_head import POLICY, THEME_FILE
from include.config.time_text import utc

_HERE = Path(__file__).resolve().parent


def render(template: str, **values: Any) -> Markup:
    """The template filled in. Raises `jinja2.UndefinedError` for a value that the template needs and is not given."""
    return Markup(_environment().get_template(template).render(values))


def source(*files: str) -> Markup:
    """Styles and scripts of the project, unchanged."""
    return Markup("\n").join(Markup((_HERE / file).read_text(encoding="utf-8")) for file in files)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(policy=POLICY, theme_file=THEME_FILE, source=source)
    environment.filters.update(utc=utc, whole=_whole, hash_source=_hash_source)
    return environment


def _whole(number: float) -> str:
    # An int keeps every digit; a float would not beyond 2^53.
    return f"{number:,}" if isinstance(number, int) else f"{number:,.0f}"


def _hash_source(text: str) -> str:
    """How a policy allows exactly this style or script within a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
