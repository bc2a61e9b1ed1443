"""Builds the wheel, for pip and other front ends (pyproject.toml): what other Airflows need of the project's tree, below the one name `event_pairing`.

The tree's own names, `include` and `plugins` before all, are those of a folder in many Airflow projects. So they become `event_pairing.include`
and so on: in import statements, and in the commands that help texts show. Nothing else is changed, so lines keep their numbers.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from setuptools import build_meta

NAME = "event_pairing"
ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (
    "dags",
    "docs/runbooks",
    "include/__init__.py",
    "include/airflow",
    "include/check_pipelines.py",
    "include/config",
    "include/init_pipeline.py",
    "plugins",
    "spark_jobs",
)
# Of the local Spark server, with the sample pipeline.
_NOT_SHIPPED = {"spark_jobs/warm_up.py"}
# Becomes the package's own module.
_PROVIDER = ROOT / "include" / "package" / "provider.py"
# What only the local platform, the containers and the installation of the tree need.
_LOCAL_ONLY = {"apache-airflow-providers-postgres", "psutil", "setuptools", "uv"}
_IMPORT = re.compile(r"^( *(?:from|import) )(?=(?:dags|include|plugins|spark_jobs)\b)", re.M)
_COMMAND = re.compile(r"\bpython -m (?=(?:include|spark_jobs)\.)")


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Called by the front end (PEP 517); writes the wheel into the folder and returns its name. There are no other ways to install: an
    editable installation, or one from a source archive, would have the tree's names.
    """
    target = os.path.abspath(wheel_directory)
    # The oldest time that a zip file can hold: equal code makes equal bytes.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")
    with tempfile.TemporaryDirectory(prefix="pairing-") as folder:
        stage(Path(folder))
        with chdir(folder):
            return build_meta.build_wheel(target, config_settings)


def stage(folder: Path) -> None:
    """Writes into the folder what setuptools packs: the package, the dependencies, and pyproject.toml."""
    package = folder / NAME
    for source in sorted(file for each in SHIPPED for file in _files(ROOT / each)):
        name = source.relative_to(ROOT)
        if str(name) in _NOT_SHIPPED:
            continue
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".py":
            (package / name).write_text(renamed(source.read_text("utf-8")), "utf-8")
        else:
            shutil.copy(source, package / name)
    (package / "__init__.py").write_text(renamed(_PROVIDER.read_text("utf-8")), "utf-8")
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "dependencies.txt").write_text(
        "\n".join(dependencies((ROOT / "requirements.txt").read_text("utf-8"))), "utf-8"
    )


def renamed(text: str) -> str:
    """A module's text with the package's names.

    >>> renamed("from include.config.times import now\\n")
    'from event_pairing.include.config.times import now\\n'
    """
    return _COMMAND.sub(f"python -m {NAME}.", _IMPORT.sub(rf"\1{NAME}.", text))


def dependencies(requirements: str) -> list[str]:
    """What the package asks for: of each pinned requirement this patch release or a later one.

    >>> dependencies("# Kafka\\nconfluent-kafka[schemaregistry]==2.16.1\\nuv==0.13.9\\n")
    ['confluent-kafka[schemaregistry]~=2.16.1']
    """
    pins = [line.split("==") for line in requirements.splitlines() if line and not line.startswith("#")]
    return [f"{name}~={version}" for name, version in pins if name not in _LOCAL_ONLY]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts]
