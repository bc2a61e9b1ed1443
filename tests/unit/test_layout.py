"""The house: imports point one way, and files stay small enough to be read."""

import ast
from pathlib import Path

import pytest

from tests.helpers.timeline import ROOT

FORBIDDEN = {
    "spark_jobs": ("airflow", "plugins", "dags"),
    "spark_jobs/rules": ("airflow", "plugins", "dags", "pyspark", "confluent_kafka", "delta"),
    "include": ("spark_jobs", "plugins", "dags", "pyspark"),
    "dags": ("pyspark", "pandas", "great_expectations", "spark_jobs"),
    "plugins": ("pyspark", "pandas", "great_expectations", "spark_jobs", "dags"),
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize(("folder", "banned"), FORBIDDEN.items(), ids=FORBIDDEN)
def test_imports_point_one_way(folder, banned):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {(path.name, name) for path in files for name in imported(path) if name.split(".")[0] in banned}
    assert not found


def test_every_plugin_file_registers_something():
    """Airflow imports every file of the folder in every process, each task's, too."""
    for path in {*(ROOT / "plugins").glob("*.py")} - {ROOT / "plugins/__init__.py"}:
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        assert [ast.unparse(base) for each in classes for base in each.bases] == ["AirflowPlugin"], path.name


def test_jobs_run_on_spark_connect_too():
    for path in (ROOT / "spark_jobs").rglob("*.py"):
        text = path.read_text()
        assert not [word for word in ("._jvm", "delta.tables", ".rdd", ".sparkContext") if word in text], path.name
