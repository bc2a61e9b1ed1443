"""Where the project lies on this machine, and its version. Standard library only: the set-up imports it before anything is installed."""

from pathlib import Path

# Tables name the version that made them. A test compares it with pyproject.toml.
VERSION = "1.0.0"
ROOT = Path(__file__).resolve().parents[2]
# Everything that the project writes on this machine, unless settings name another place.
LOCAL = ROOT / ".local"
# The variable with the address of the Spark server that jobs use, sc://host:port; unset: each job starts its own Spark.
REMOTE_VARIABLE = "PAIRING_SPARK_REMOTE"
