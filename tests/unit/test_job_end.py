"""A job whose work is done ends well, whatever libraries do at a process's end."""

from __future__ import annotations

import subprocess
import sys

from tests.timeline import ROOT

JOB = """
import atexit, os, types
from spark_jobs import job
# As threads of a C++ library do that are still running.
atexit.register(os.abort)
job.spark_session = lambda *_: types.SimpleNamespace(conf={{}})
job.end_session = lambda _: None
given = job.job_parser("some_job", "").parse_args(["--pipeline", "include/pipelines/calls.yaml", "--warehouse", {folder!r}])
job.run_job("some_job", given, lambda _: {{"rows": 5}})
"""


def test_a_job_that_is_done_ends_with_its_counts(tmp_path):
    script = JOB.format(folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "some_job: rows 5\n"), done.stderr
