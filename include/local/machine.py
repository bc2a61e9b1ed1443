"""This machine: the project's folders, what must be installed, and the environment of the project's programs.

Standard library only: the set-up imports it before anything is installed.
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
# Variables of another Spark or Airflow in the user's shell, which would change ours: its metadata database, for one.
FOREIGN = re.compile(
    r"AIRFLOW_.*|SPARK_.*|PYSPARK_.*|PYTHONHOME|PYTHONPATH|PYTHONDONTWRITEBYTECODE|CLASSPATH|PAIRING_KAFKA|PAIRING_PIPELINES|PAIRING_SCHEMA_REGISTRY|PAIRING_SPARK_REMOTE"
)
# The stores of the demo's warehouse: a folder, or a server of one of these kinds.
STORES = ("", "s3", "azure")
# A folder for each demo: one for each store, and one for the cluster, whose executors share no disk, so its tables are on S3. Each has its own
# broker, Airflow and truth.
CLUSTER = "cluster"
DEMOS = (*STORES, CLUSTER)
# The demo's traffic and pipelines: those that are shipped, or an example of the gallery. Each has a folder of its own in each of DEMOS.
EXAMPLES = ("", "orders", "clicks", "legs")

STARTED = time.monotonic()


class SetupError(Exception):
    """Something is missing or wrong on this machine; the text is one line that names the remedy."""


def demo_store() -> str:
    """The one of STORES that the variable STORE names; raises SetupError for another name."""
    kind = os.environ.get("STORE", "")
    if is_on_cluster():
        if kind not in ("", "s3"):
            raise SetupError(f"SPARK={CLUSTER} has its tables on S3: leave STORE={kind} out")
        return "s3"
    if kind not in STORES:
        raise SetupError(
            f"STORE={kind} is not known: leave it out for a folder, or use one of {', '.join(filter(None, STORES))}"
        )
    return kind


def is_on_cluster() -> bool:
    """Whether the variable SPARK asks for a cluster; raises SetupError if it asks for something else."""
    kind = os.environ.get("SPARK", "")
    if kind not in ("", CLUSTER):
        raise SetupError(f"SPARK={kind} is not known: leave it out for a Spark on this machine, or use {CLUSTER}")
    return kind == CLUSTER


def demo_example() -> str:
    """The one of EXAMPLES that the variable EXAMPLE names; raises SetupError for another name."""
    name = os.environ.get("EXAMPLE", "")
    if name not in EXAMPLES:
        raise SetupError(
            f"EXAMPLE={name} is not known: leave it out for calls, or use one of {', '.join(filter(None, EXAMPLES))}"
        )
    return name


def demo_folder(name: str) -> Path:
    """The folder of a server of the demo, or of its truth, apart for each of DEMOS and EXAMPLES."""
    return LOCAL / (CLUSTER if is_on_cluster() else demo_store()) / demo_example() / name


def say(text: str) -> None:
    """One line of progress, with the seconds since this program started."""
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


def console_logging(level: str, pattern: str = "%d{HH:mm:ss} %p %c{1}: %m%n%ex") -> str:
    """Properties of log4j: everything from this level on goes to standard error."""
    return f"""\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = {pattern}
"""


def project_environment() -> dict[str, str]:
    """The environment of the programs that the project starts: the caller's, without settings of other Sparks and Airflows."""
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return kept | {"PATH": path} | project_variables()


def project_variables() -> dict[str, str]:
    """What the project itself sets in that environment, but for the PATH."""
    return {
        "PYTHONPATH": str(ROOT),
        "SPARK_CONF_DIR": str(SPARK_CONF),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PAIRING_WAREHOUSE": os.environ.get("PAIRING_WAREHOUSE", str(LOCAL / "warehouse")),
    }


def java() -> str:
    """The Java that spark-submit would use; raises SetupError unless it is a Java 17."""
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
    """Raises SetupError if the project's disk has less than `need_gb` (10^9 bytes) free."""
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if free_gb < need_gb:
        raise SetupError(
            f"{free_gb:.1f} GB of disk left in {ROOT}, {need_gb:g} GB needed: free some, or clone to another disk"
        )


def check_python() -> None:
    """Raises SetupError unless this is Python 3.11."""
    if sys.version_info[:2] != (3, 11):
        raise SetupError(f"Python 3.11 is needed, this is {sys.version.split()[0]}: make setup PYTHON=/path/to/python3.11")
