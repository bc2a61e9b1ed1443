"""This machine: where the project keeps things on it, what it must have, and the environment the project's programs get.

Standard library only, for the set-up runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from include.config.project import LOCAL, ROOT

VENV = ROOT / ".venv"
JARS = LOCAL / "jars"
SPARK_CONF = LOCAL / "spark-conf"
# Settings of another Spark or Airflow in the user's shell would reach ours: a foreign metadata database, for one.
FOREIGN = re.compile(
    r"AIRFLOW_.*|SPARK_.*|PYSPARK_.*|PYTHONHOME|PYTHONPATH|PYTHONDONTWRITEBYTECODE|CLASSPATH|PAIRING_KAFKA|PAIRING_SPARK_REMOTE"
)
# Where the demo's warehouse can be: in a folder, or on a server of the kind. Each has its broker, Airflow and truth to itself.
STORES = ("", "s3", "azure")

STARTED = time.monotonic()


class SetupError(Exception):
    """Something this machine lacks; the text is one line that names the remedy."""


def demo_store() -> str:
    """Which of STORES the environment names in STORE; raises SetupError if it is none."""
    kind = os.environ.get("STORE", "")
    if kind not in STORES:
        raise SetupError(
            f"STORE={kind} is not known: leave it out for a folder, or use one of {', '.join(filter(None, STORES))}"
        )
    return kind


def demo_folder(name: str) -> Path:
    """Where a server of the demo, or its truth, has its files: apart for each store."""
    return LOCAL / demo_store() / name


def say(text: str) -> None:
    """One line of progress, with the seconds since this program started."""
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def project_environment() -> dict[str, str]:
    """The environment in which the project starts its programs: the caller's, without other Sparks and Airflows."""
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    warehouse = os.environ.get("PAIRING_WAREHOUSE", str(LOCAL / "warehouse"))
    return kept | {
        "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(SPARK_CONF),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PAIRING_WAREHOUSE": warehouse,
    }


def java() -> str:
    """The Java that spark-submit would take, too; raises SetupError unless it is a Java 17."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    where = f"JAVA_HOME ({home})" if home else "PATH"
    remedy = "install a Java 17 (for example the package openjdk-17-jre-headless) and set JAVA_HOME to it"
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        raise SetupError(f"no working Java found by {where}: {remedy}") from None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    version = found[1] if found else "unknown"
    if not re.match(r"17\b", version):
        raise SetupError(f"Java 17 is needed, but {where} gives Java {version}: {remedy}")
    return program


def check_disk(need_gb: float) -> None:
    """Raises SetupError when the project's disk has less than `need_gb` free."""
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < need_gb:
        raise SetupError(
            f"{free_gb:.1f} GB of disk left in {ROOT}, {need_gb:g} GB needed: free some, or clone to another disk"
        )


def check_python() -> None:
    if sys.version_info[:2] != (3, 11):
        raise SetupError(f"Python 3.11 is needed, this is {sys.version.split()[0]}: make setup PYTHON=/path/to/python3.11")
