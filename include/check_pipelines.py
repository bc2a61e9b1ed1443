"""Checks pipeline files before they are deployed, alone or against the tables of a warehouse.

    python -m include.check_pipelines [FILE ...]
    python -m include.check_pipelines --against WAREHOUSE [--pipeline NAME] [--json] [FILE ...]

Without files it takes all of include/pipelines/. The first form needs neither Airflow nor Kafka nor Spark; it prints a line for each file and
ends with status 1 if one is refused. The second says what each file would change against the last batch of its pipeline. It ends with status 0
if nothing would change, 3 if something would, 4 if something is forbidden, and 1 if a file is refused or tables or topics cannot be read. It
reads the tables as jobs do (PAIRING_STORE for an object store), and asks the topics if PAIRING_KAFKA is set.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from include.config.check_pipelines import main
from include.config.pipeline import PIPELINES
from include.config.project import JOBS, PACKAGE

# Nothing of include/ imports the jobs: what reads tables is a program of theirs.
_AGAINST = f"{JOBS}.check_pipelines"

if __name__ == "__main__":
    if any(word.split("=")[0] == "--against" for word in sys.argv[1:]):
        os.execv(sys.executable, [sys.executable, "-m", _AGAINST, *sys.argv[1:]])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.prog = f"python -m {PACKAGE}include.check_pipelines"
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    sys.exit(main(parser.parse_args().files or sorted(PIPELINES.glob("*.yaml"))))
