"""Great Expectations' own page of a batch, made to stand alone: it is made for a site with libraries from the internet, and without them
its marks of passed and failed are empty, its filter does nothing and its script fails.
"""

from __future__ import annotations

import html
import re

from include.config.page_theme import THEME
from spark_jobs.quality.style import STYLE

_EXTERNAL = re.compile(
    r"<link\b[^>]*>|<img\b[^>]*https?://[^>]*>|<a\b[^>]*newsletter.*?</a>|url\([\"']?https?://[^)]*\)",
    re.S,
)
_SCRIPT = re.compile(r"<script\b.*?</script>|\bonclick=\"[^\"]*\"", re.S)
_TITLE = re.compile(r"<title>.*?</title>", re.S)
# To other pages of the site, which is not there.
_AWAY = re.compile(r"<a\b[^>]*href=\"\.\./[^>]*>(.*?)</a>", re.S)
_MARKS = """
nav.navbar-expand-md, .card.mb-3, footer { display: none; }
i.text-success::before { content: "✓"; color: light-dark(#1a7f37, #3fb950); }
i.text-danger::before { content: "✗"; color: light-dark(#cf222e, #ff7b72); }
td i.text-success::after { content: " passed"; } td i.text-danger::after { content: " failed"; }
i { font-style: normal; white-space: nowrap; }
"""


def standing_alone(page: str, batch: str = "", back: str = "", above: str = "") -> str:
    """The page (HTML) under the name of its `batch`, with a link `back` and `above` (HTML) before it, without scripts and without what it would
    load from other sites.
    """
    page = _AWAY.sub(r"\1", _SCRIPT.sub("", _EXTERNAL.sub("", _TITLE.sub("", page))))
    head = f"<title>{html.escape(batch)}, expectations</title>{THEME}<style>{STYLE}{_MARKS}</style></head>"
    start = f'<p><a href="{html.escape(back)}">{html.escape(batch)}</a></p>{above}'
    return re.sub(r"<body[^>]*>", lambda body: body[0] + start, page, count=1).replace("</head>", head, 1)
