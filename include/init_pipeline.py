"""Proposes a pipeline file for two topics; `python -m include.init_pipeline --help` says how.

Nothing of include/ imports the jobs: what reads topics and plays the rules is a program of theirs.
"""

from __future__ import annotations

import os
import sys

from include.config.project import JOBS

_PROGRAM = f"{JOBS}.init_pipeline"

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", _PROGRAM, *sys.argv[1:]])
