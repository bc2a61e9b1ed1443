"""Where the project lies on this machine, and its version. Standard library only: the set-up imports it before anything is installed."""

from pathlib import Path

# Tables name the version that made them. A test compares it with pyproject.toml.
VERSION = "1.0.0"
ROOT = Path(__file__).resolve().parents[2]
# What stands before the names of the project's modules: nothing in its tree, `event_pairing.` where pip has installed it.
PACKAGE = __name__.removesuffix("include.config.project")
JOBS = f"{PACKAGE}spark_jobs"
# What a program needs in its environment to import the project. What pip has installed is found without.
IMPORTABLE = {} if PACKAGE else {"PYTHONPATH": str(ROOT)}
# Everything that the project writes on this machine, unless settings name another place.
LOCAL = ROOT / ".local"
# The variable with the address of the Spark server that jobs use, sc://host:port; unset: each job starts its own Spark.
REMOTE_VARIABLE = "PAIRING_SPARK_REMOTE"
