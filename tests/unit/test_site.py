"""The documentation site: every page is in its navigation, and every generated part says what the code says. Built and looked at: test_site_in_browser.py."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from types import ModuleType

from include.config.pipeline_file import load_pipeline
from spark_jobs.quality.catalogue import MEANINGS
from spark_jobs.tables.schemas import declared_columns, schemas
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.test_docs import DOCUMENTS, accepted_keys, names

SITE = ROOT / "docs" / "site"
MARKED = {path.stem: re.findall(r"<!-- generated: (\w+) -->", path.read_text()) for path in ROOT.glob("docs/reference/*.md")}


@cache
def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SITE / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def made(name: str) -> str:
    return "".join(module("reference").GENERATED[name]())


def test_every_page_is_in_the_navigation_once():
    navigation = module("navigation")
    listed = re.findall(r"</(.+)>$", navigation.navigation((ROOT / "docs/README.md").read_text()), re.M)
    for index in navigation.INDEXES:
        folder = index.rpartition("/")[0]
        listed += [
            f"{folder}/{page}" for page in navigation.pages_of(ROOT, index).splitlines() if re.fullmatch(r"[\w-]+", page)
        ]
    assert sorted(listed) == sorted(name.removesuffix(".md") for name in names(DOCUMENTS) if name != "docs/README.md")


def test_the_sections_are_in_a_newcomers_order():
    text = module("navigation").navigation((ROOT / "docs/README.md").read_text())
    assert re.findall(r":caption: (.+)", text) == ["Start", "Concepts", "How-to", "Reference", "Runbooks", "Decisions"]


def test_each_generated_part_is_on_one_page():
    assert sorted(name for marked in MARKED.values() for name in marked) == sorted(module("reference").GENERATED)
    assert all(len(marked) == 1 for marked in MARKED.values())


def test_the_settings_have_a_section_each_and_its_consequence():
    text = made("settings")
    headings = [name for line in re.findall(r"^## (.+)$", text, re.M) for name in re.findall(r"`(.+?)`", line)]
    assert sorted(headings) == sorted(accepted_keys())
    gap = text.partition("## `gap`\n")[2].partition("\n## ")[0]
    assert "| If it is longer | open sessions join across longer silences" in gap and "| Default | required |" in gap
    assert "](docs/" not in text


def test_the_columns_are_those_of_the_tables():
    text = made("tables")
    assert re.findall(r"^## `(.+)`$", text, re.M) == list(schemas(CALLS))
    shipped = load_pipeline(ROOT / "include/pipelines/calls.yaml")
    assert len(re.findall(r"^\| `\w+` \| `.+` \|$", text, re.M)) == sum(
        len(declared_columns(shipped, table)) for table in schemas(shipped)
    )
    assert "| `headers` | `ARRAY<STRUCT<key: STRING, value: BINARY>>` |" in text


def test_every_metric_and_every_make_target_has_a_row():
    assert re.findall(r"^\| `(\w+)` \|", made("metrics"), re.M) == list(MEANINGS)
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^\| `make ([\w-]+)` \|", made("targets"), re.M) == re.findall(r"^  make ([\w-]+)", listed, re.M)


def test_every_command_is_asked_for_its_help():
    commands = module("reference").COMMANDS
    programs = [path for path in (ROOT / "spark_jobs").glob("*.py") if "__main__" in path.read_text()]
    assert {f"spark_jobs.{path.stem}" for path in programs} - set(commands) == {"spark_jobs.warm_up"}


def test_help_is_what_the_command_prints(monkeypatch):
    monkeypatch.setenv("COLUMNS", "88")
    command = "include.sample.truth"
    printed = subprocess.run([sys.executable, "-m", command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert module("reference").help_of(command) == printed.stdout.strip()


def test_nothing_of_the_pages_is_fetched_from_elsewhere():
    for path in [*SITE.rglob("*.html"), *SITE.rglob("*.css"), *SITE.rglob("*.js")]:
        assert not re.search(r"https?://|//cdn|@import", path.read_text()), path.name
