"""The house: what `make lint` does not see of it (it holds the layers of the imports, pyproject.toml)."""

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.timeline import ROOT

HOUSE = ("dags", "include", "plugins", "spark_jobs")
ENTRY_POINTS = sorted(path.name for path in (ROOT / "spark_jobs").glob("*.py") if path.name != "__init__.py")
# warm_up.py is a command of the Spark server, not of people: it goes through what all jobs do.
OPERATORS = [name for name in ENTRY_POINTS if name != "warm_up.py"]


@pytest.mark.parametrize("name", OPERATORS)
def test_an_entry_point_only_reads_calls_and_ends(name):
    assert len((ROOT / "spark_jobs" / name).read_text().splitlines()) <= 60


def test_every_plugin_file_registers_something():
    """Airflow imports every file of the folder in every process, each task's, too."""
    for path in {*(ROOT / "plugins").glob("*.py")} - {ROOT / "plugins/__init__.py"}:
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        assert [ast.unparse(base) for each in classes for base in each.bases] == ["AirflowPlugin"], path.name


def test_jobs_run_on_spark_connect_too():
    for path in (ROOT / "spark_jobs").rglob("*.py"):
        text = path.read_text()
        assert not [word for word in ("._jvm", "delta.tables", ".rdd", ".sparkContext") if word in text], path.name


def own_test(module: Path) -> Path:
    """Where the tests of a module are, if it has a file of its own: the tree of tests/unit is that of the code."""
    parts = module.relative_to(ROOT).parts
    below = parts[1:] if parts[0] in ("spark_jobs", "include") else parts
    return ROOT / "tests" / "unit" / Path(*below[:-1]) / f"test_{below[-1]}"


def test_every_module_has_its_tests_by_its_name_or_by_the_table():
    rows = re.findall(r"^\| (\S+\.py) \| (\S+\.py) \|$", (ROOT / "tests" / "covered_by.md").read_text(), re.M)
    modules = [path for folder in HOUSE for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
    without = {str(path.relative_to(ROOT)) for path in modules if not own_test(path).exists()}
    assert {module for module, _ in rows} == without
    assert [test for _, test in rows if not (ROOT / test).is_file()] == []
