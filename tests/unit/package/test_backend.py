"""The package: the tree below one name, and nothing left of the tree's own names but in texts for people."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

from include.local.machine import ROOT
from include.package import backend

TREE = {"dags", "include", "plugins", "spark_jobs"}
# Texts that name a module or folder of the tree, and where they are right as they are.
NAMED = re.compile(r"\b(?:include|spark_jobs|plugins|dags)[./\\]")
RIGHT = {
    ("__init__.py", "include.airflow"): "after PACKAGE",
    ("__init__.py", "dags."): "after PACKAGE",
    ("include/check_pipelines.py", "include.check_pipelines"): "after PACKAGE",
    ("include/config/project.py", "include.config.project"): "what comes after PACKAGE",
    ("include/airflow/cluster_mode.py", "/spark_jobs/"): "below ROOT",
    ("include/airflow/docs.py", "](dags/"): "an address in Airflow",
    ("include/config/driver_files.py", "include/config"): "a folder below ROOT",
    ("include/config/driver_files.py", "include/pipelines"): "a folder of the archive",
    ("include/config/pipeline_file.py", "include/pipelines/calls.yaml"): "an example, in the project",
    ("spark_jobs/tables/diagnose.py", "spark_jobs\\."): "looked for anywhere in a line",
}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("staged")
    backend.stage(folder)
    return folder


@pytest.fixture(scope="module")
def nodes(staged):
    """Each module -> all parts of its code."""
    package = staged / backend.NAME
    return {str(path.relative_to(package)): [*ast.walk(ast.parse(path.read_text()))] for path in package.rglob("*.py")}


def imported(nodes: list[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").split(".")[0])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
    return found


def texts(nodes: list[ast.AST]) -> set[str]:
    """All of the code's texts but for docstrings."""
    bodies = [node.body[0] for node in nodes if isinstance(getattr(node, "body", None), list) and node.body]
    docs = {id(first.value) for first in bodies if isinstance(first, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docs]
    return {node.value for node in constants if isinstance(node.value, str)}


def test_no_module_imports_the_tree_s_names(nodes):
    assert {name: names for name, found in nodes.items() if (names := imported(found) & TREE)} == {}


def test_no_other_text_of_the_code_means_the_tree(nodes):
    found = {
        (name, text)
        for name, parts in nodes.items()
        for text in texts(parts)
        if NAMED.search(re.sub(rf"\b{backend.NAME}\.", f"{backend.NAME}_", text))
    }
    unknown = [each for each in found if not any(each[0] == name and part in each[1] for name, part in RIGHT)]
    assert unknown == []
    assert [each for each in RIGHT if not any(each[0] == name and each[1] in text for name, text in found)] == []


def test_lines_keep_their_numbers_and_data_their_bytes(staged):
    package = staged / backend.NAME
    for path in package.rglob("*.*"):
        source = ROOT / path.relative_to(package)
        if path.suffix != ".py":
            assert path.read_bytes() == source.read_bytes()
        elif source.exists():
            assert len(path.read_text().splitlines()) == len(source.read_text().splitlines()), source


def test_it_has_what_an_airflow_needs_and_nothing_of_this_machine(staged):
    package = staged / backend.NAME
    assert {path.name for path in package.iterdir()} == {*TREE, "docs", "__init__.py"}
    assert {path.name for path in (package / "include").iterdir()} == {
        "__init__.py",
        "airflow",
        "check_pipelines.py",
        "config",
        "init_pipeline.py",
    }
    entry_points = {path.name for path in (ROOT / "spark_jobs").glob("*.py")}
    assert {path.name for path in (package / "spark_jobs").glob("*.py")} == entry_points - {"warm_up.py"}
    assert (package / "docs/runbooks/README.md").is_file()
    assert (package / "spark_jobs/quality/vendored/uplot/LICENSE").is_file()
    assert not [*staged.rglob("__pycache__")]


def test_help_names_the_package_s_commands(staged):
    command = [sys.executable, "-m", "event_pairing.include.check_pipelines", "--help"]
    done = subprocess.run(command, cwd=staged, env={}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python -m event_pairing.include.check_pipelines [-h]")
    assert "python -m event_pairing.include.check_pipelines --against" in done.stdout
    assert "python -m include." not in done.stdout


def test_nothing_is_written_where_it_is_installed(staged):
    code = "from event_pairing.include.config.store import warehouse_store; warehouse_store()"
    done = subprocess.run([sys.executable, "-c", code], cwd=staged, env={}, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(
        "StoreRefused: warehouse '' is refused: name a folder or URI, without control characters"
    )


def test_what_travels_to_a_cluster_has_the_package_s_name_too(staged, tmp_path):
    pipeline = str(ROOT / "include/pipelines/calls.yaml")
    command = [sys.executable, "-m", "event_pairing.include.config.driver_files", str(tmp_path), "land_events", pipeline]
    done = subprocess.run(command, cwd=staged, env={}, input="{}", capture_output=True, text=True, check=True)
    with zipfile.ZipFile(done.stdout.strip()) as archive:
        names = set(archive.namelist())
    assert {name.split("/")[0] for name in names} == {"event_pairing", "include"}
    assert {name for name in names if name.startswith("include/")} == {"include/pipelines/calls.yaml"}
    assert {
        "event_pairing/__init__.py",
        "event_pairing/include/__init__.py",
        "event_pairing/spark_jobs/__init__.py",
    } <= names
    assert 'run_module("event_pairing.spark_jobs.land_events"' in (tmp_path / "land_events.py").read_text()


def test_it_asks_for_the_pinned_packages_or_their_patches(staged):
    wanted = (staged / "dependencies.txt").read_text().splitlines()
    pins = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if "==" in line and line[0] != "#"]
    left_out = {pin.split("==")[0] for pin in pins} - {each.split("~=")[0] for each in wanted}
    assert {each.replace("~=", "==") for each in wanted} <= set(pins)
    assert left_out == {"apache-airflow-providers-postgres", "psutil", "setuptools", "uv"}, (
        "what only the local platform needs"
    )


def test_it_is_built_by_the_pinned_setuptools():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (wanted,) = settings["build-system"]["requires"]
    assert wanted in (ROOT / "requirements.txt").read_text().splitlines()
    assert "dependencies" in settings["project"]["dynamic"]


@pytest.mark.long
def test_equal_code_makes_an_equal_wheel(tmp_path):
    code = "import sys; from include.package.backend import build_wheel; print(build_wheel(sys.argv[1]))"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", code, tmp_path / name], cwd=ROOT, capture_output=True, check=True)
    first, second = (next(each.glob("*.whl")) for each in sorted(tmp_path.iterdir()))
    assert first.name == second.name == "event_pairing-1.0.0-py3-none-any.whl" and first.read_bytes() == second.read_bytes()
