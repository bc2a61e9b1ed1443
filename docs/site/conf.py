"""The documentation site: `make docs` builds it with Sphinx from the Markdown that GitHub shows, without the internet.

The source folder is the project's root, so that links between README.md and docs/ lead to the same places on GitHub and here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

# mypy knows the file by its path from the root.
from navigation import FRONT, INDEXES, navigation, pages_of  # type: ignore[import-not-found] # noqa: E402

project = "Event pairing"
root_doc = FRONT
include_patterns = ["*.md", "docs/**.md"]
exclude_patterns = [".*", "dags", "include", "plugins", "spark_jobs", "tests"]

extensions = ["myst_parser"]
# The anchors that GitHub gives headings.
myst_heading_anchors = 4

html_theme = "furo"
html_title = project
html_copy_source = html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["colours.css", "site.css"]
html_js_files = ["search.js"]
templates_path = ["templates"]
html_additional_pages = {"index": "front.html"}
smartquotes = False
html_permalinks_icon = "#"
pygments_style, pygments_dark_style = "default", "github-dark"


def setup(app: Sphinx) -> None:
    """Called by Sphinx. What is generated comes from another process, which takes some seconds, while Sphinx begins."""
    generating = subprocess.Popen([sys.executable, HERE / "reference.py"], stdout=subprocess.PIPE, cwd=ROOT)
    made: dict[str, str] = {}

    def generated(name: str) -> str:
        if not made:
            text, _ = generating.communicate()
            if generating.returncode:
                raise RuntimeError("docs/site/reference.py failed")
            made.update(json.loads(text))
        return made[name]

    def complete(app: Sphinx, page: str, source: list[str]) -> None:
        """Adds to the text of a page what GitHub does not need: the navigation, and what is generated."""
        text = re.sub(r"<!-- generated: (\w+) -->", lambda found: generated(found[1]), source[0])
        source[0] = text + (navigation(text) if page == FRONT else pages_of(ROOT, page) if page in INDEXES else "")

    def outdated(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
        return [page for page in env.found_docs if page in {FRONT, *INDEXES} or page.startswith("docs/reference/")]

    app.connect("source-read", complete)
    app.connect("env-get-outdated", outdated)
