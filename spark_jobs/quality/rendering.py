"""Pages as HTML, from the Jinja2 templates in `templates/` and those that Airflow's pages share."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from include.config.page_templates import TEMPLATES, page_environment

_HERE = Path(__file__).resolve().parent


def render(template: str, **values: Any) -> Markup:
    """The template filled in. Raises `jinja2.UndefinedError` for a value that the template needs and is not given."""
    return Markup(_environment().get_template(template).render(values))


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """The page with this between `begin` and `end`, which stay; unchanged if it is of another form.

    >>> with_part("a <!-- b -->old<!-- c --> d", "<!-- b -->", "<!-- c -->", "new")
    'a <!-- b -->new<!-- c --> d'
    """
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    # Not by +, which would escape the page beside Markup.
    return f"{before}{begin}{part}{end}{after}" if found and closed else page


def source(*files: str) -> Markup:
    """Styles and scripts of the project, unchanged: files of this room, or shared ones."""
    places = [next(place for place in (_HERE / file, TEMPLATES.parent / file) if place.is_file()) for file in files]
    return Markup("\n").join(Markup(place.read_text(encoding="utf-8")) for place in places)


@cache
def _environment() -> Environment:
    environment = page_environment(_HERE / "templates")
    environment.globals.update(source=source)
    environment.filters.update(hash_source=_hash_source)
    return environment


def _hash_source(text: str) -> str:
    """How a policy allows exactly this style or script within a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
