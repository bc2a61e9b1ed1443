"""Where the project lies on this machine. Standard library only: the set-up imports it before anything is installed."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What the project writes on this machine, unless settings say otherwise.
LOCAL = ROOT / ".local"
# Names the Spark server on which jobs work, sc://host:port; unset: each job starts a Spark of its own.
REMOTE_VARIABLE = "PAIRING_SPARK_REMOTE"
