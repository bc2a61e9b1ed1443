"""Deque's axe-core in a page: what a keyboard, a screen reader or weak eyes would trip over. npm has it, fetched once into the user's cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from include.local.tools import CACHE, cache_lock
from tests.helpers.browser import Page
from tests.helpers.stores import skip_or_fail

_VERSION = "4.14.1"
_SCRIPT = CACHE / f"axe-core-{_VERSION}" / "node_modules" / "axe-core" / "axe.min.js"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def axe_script() -> str:
    """The library's text. Skips the test where it cannot be had, or fails it in continuous integration."""
    with cache_lock("axe"):
        if not _SCRIPT.is_file() and (problem := _install(_SCRIPT.parents[2])):
            skip_or_fail(problem)
    return _SCRIPT.read_text(encoding="utf-8")


def _install(folder: Path) -> str | None:
    """What stands in the way; None if it is there now."""
    if shutil.which("npm") is None:
        return "npm is needed once, to fetch axe-core: install it"
    folder.mkdir(exist_ok=True)
    options = ["--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
    done = subprocess.run(["npm", "install", *options, f"axe-core@{_VERSION}"], stdin=subprocess.DEVNULL, check=False)
    return f"npm install axe-core failed with status {done.returncode}: check the network" if done.returncode else None


def violations(page: Page, script: str, *rules: str) -> list[str]:
    """A line for each element that breaks a rule (one of `rules`, if there are any), with its rule; whatever is folded is opened first."""
    page.ask("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    page.ask(f"{script};undefined")
    # It would ask for the styles again, which the page's policy forbids.
    options = json.dumps({"runOnly": list(rules or _RULES), "resultTypes": ["violations"], "preload": False})
    found = page.ask(f"axe.run({options}).then((found) => found.violations)")
    return [f"{rule['id']}: {' '.join(node['target'])}" for rule in found for node in rule["nodes"]]
