"""The documents say what the code does: settings, words, links, messages."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from include.config.pipeline import Alerts, Maintenance, Pipeline, PipelineError, Quality, Side
from include.config.pipeline_file import load_pipeline
from include.config.setting_types import file_key
from spark_jobs.rules.outcomes import Outcome
from spark_jobs.rules.reasons import AT_LANDING, Reason
from spark_jobs.tables.ledger_rows import PUBLISHED_ORPHANS, PUBLISHED_REJECTED, PUBLISHING, STEPS
from spark_jobs.tables.schemas import schemas
from tests.helpers.timeline import CALLS, ROOT

README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROBLEMS = set(
    """JobProblem NeedsOperator BrokerProblem BrokenInvariant LockedOut TableProblem MissingTable BrokenBatch PipelineError Notice
    StoreRefused NoToken ProviderRefused NoSparkServer RegistryProblem""".split()
)


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def section(document: Path, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    level = heading.split()[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", document.read_text(), re.M | re.S)
    assert found, f"{document.name} has no section {heading!r}"
    return found[1]


def table_rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table's rows, without its heading."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


# Settings


def accepted_keys() -> set[str]:
    """What a pipeline file may hold, from the classes that hold it."""
    nested: dict[str, list[str]] = {side: [f"{side}.{f.name}" for f in fields(Side)] for side in ("left", "right")}
    nested |= {
        "quality": [f"quality.{f.name.removesuffix('_ms')}" for f in fields(Quality)],
        **{f.name: [file_key(f.name)] for f in fields(Pipeline) if f.name.startswith("output_")},
        "name": [],
    }
    nested |= {"alerts": [f"alerts.{f.name}" for f in fields(Alerts)]}
    nested |= {"maintenance": [f"maintenance.{f.name.removesuffix('_ms')}" for f in fields(Maintenance)]}
    return {key for f in fields(Pipeline) for key in nested.get(f.name, [f.name.removesuffix("_ms")])}


@cache
def settings() -> dict[str, str]:
    """Key -> default, as the README has them."""
    rows = table_rows(section(README, "## Settings of a pipeline"))
    return {key.strip("`"): default.strip("`") for keys, _, default, _ in rows for key in keys.split(", ")}


def load(tmp_path: Path, document: dict[str, Any]) -> Pipeline:
    path = tmp_path / "calls.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_pipeline(path)


def required_only() -> dict[str, Any]:
    """The shipped file without every key that the README gives a default for."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "include/pipelines/calls.yaml").read_text())
    required = {key.partition(".")[0] for key, default in settings().items() if default == "required"}
    return {key: value for key, value in document.items() if key in required}


def changed(document: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """A copy with `key` (dots lead into mappings) set, or removed where the value is None."""
    outer, _, inner = key.partition(".")
    if inner:
        value = {name: each for name, each in {**document.get(outer, {}), inner: value}.items() if each is not None}
    return {**{name: each for name, each in document.items() if name != outer}, **({} if value is None else {outer: value})}


def test_the_settings_table_has_exactly_the_keys():
    assert set(settings()) == accepted_keys()


@pytest.mark.parametrize("key", sorted(accepted_keys()))
def test_defaults_are_those_of_the_code(key, tmp_path):
    least = required_only()
    expected = load(tmp_path, least)
    default = settings()[key]
    if default == "required":
        with pytest.raises(PipelineError, match=re.escape(key.partition(".")[0])):
            load(tmp_path, changed(least, key, None))
    else:
        # In YAML a leading star means something else, so such a default is text.
        value = default if default.startswith("*") else yaml.safe_load(default)
        assert load(tmp_path, changed(least, key, value)) == expected


# Words


def paragraph(word: str) -> str:
    found = re.search(rf"^\*\*{word}\*\*.*?(?=^$)", (ROOT / "docs/glossary.md").read_text(), re.M | re.S)
    assert found, f"the glossary has no {word}"
    return found[0]


def test_the_glossary_has_the_reasons_in_their_order():
    rows = table_rows((ROOT / "docs/glossary.md").read_text())
    assert [row[0].strip("`") for row in rows] == [*Reason]
    assert [row[0].strip("`") for row in rows if row[1] == "at landing"] == [*AT_LANDING]


@pytest.mark.parametrize(
    ("word", "values"), [("Outcome", [*Outcome]), ("Ledger", [*STEPS, PUBLISHING, PUBLISHED_ORPHANS, PUBLISHED_REJECTED])]
)
def test_the_glossary_lists_all_values(word, values):
    listed = re.findall(r"`([a-z_]+)`", paragraph(word))
    assert set(values) == set(listed) - {"batch_ledger", "live", "replay", "rewind", "erasure"}


def test_the_readme_has_every_table():
    rows = table_rows(section(README, "## Where the tables are"))
    assert {row[0].strip("`") for row in rows} == set(schemas(CALLS))


def test_every_environment_variable_is_explained():
    sources = [path for folder in ("dags", "include", "plugins", "spark_jobs") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"\bPAIRING_[A-Z_]+\b", path.read_text())}
    rows = table_rows(section(ROOT / "docs/operating.md", "## Environment"))
    assert used == {name for row in rows for name in re.findall(r"PAIRING_[A-Z_]+", row[0])}


# Links and commands


def slug(heading: str) -> str:
    """The anchor that a Markdown renderer gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_relative_links_resolve(document):
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", target)]
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), f"{target} leads nowhere"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.M)
            assert anchor in map(slug, headings), f"{target}: {file.name} has no such heading"


@pytest.mark.parametrize("folder", ["decisions", "runbooks"])
def test_every_page_is_in_its_index(folder):
    index = (ROOT / "docs" / folder / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs" / folder).glob("*.md")} - {"README.md"}
    assert pages and pages == set(re.findall(r"\]\(([^)/]+\.md)\)", index))


@pytest.mark.parametrize("document", DOCUMENTS, ids=names(DOCUMENTS))
def test_make_targets_and_modules_exist(document):
    text = document.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets
    for module in re.findall(r"python -m ((?:include|spark_jobs|tests)[.\w]*)", text):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


# Messages


def message(node: ast.expr) -> str | None:
    """A text of the source with `…` where a value goes in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


@cache
def messages() -> tuple[str, ...]:
    """Every line that a job can end with, or tell people, as the source has it."""
    sources = [
        *(ROOT / "spark_jobs").rglob("*.py"),
        ROOT / "include/airflow/overdue.py",
        ROOT / "include/config/pipeline_file.py",
        ROOT / "include/config/store.py",
        ROOT / "include/config/tokens.py",
    ]
    calls = [node for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [(call.func.id, call) for call in calls if isinstance(call.func, ast.Name)]
    told = [call.args[0] for name, call in named if name in PROBLEMS and call.args]
    told += [each.value for name, call in named if name == "Problem" for each in call.keywords if each.arg == "text"]
    return tuple(text for each in told if (text := message(each)) is not None)


def message_starts() -> list[str]:
    rows = table_rows((ROOT / "docs/runbooks/README.md").read_text())
    return [found[1] for row in rows if (found := re.match(r"`(.+?)`", row[0]))]


@pytest.mark.parametrize("start", message_starts())
def test_every_message_of_the_runbooks_is_in_the_source(start):
    assert any(text.startswith(start) for text in messages())


@pytest.mark.parametrize("text", messages(), ids=lambda text: text[:40])
def test_every_message_of_the_source_has_a_runbook(text):
    # The three gaps of a refused setting would match any line, so they count only where the line is nothing else.
    assert any(text.startswith(start) for start in message_starts() if start != "…: …: …" or text == start)
