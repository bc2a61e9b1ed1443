"""A job ends as its work did, whatever libraries do at a process's end."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.timeline import ROOT

JOB = """
import atexit, os, types
from spark_jobs.job import run as job
# As threads of a C++ library do that are still running.
atexit.register(os.abort)
job.spark_session = lambda *_: types.SimpleNamespace(conf={{}})
job.end_session = lambda _: None
given = job.job_parser("some_job", "").parse_args(["--pipeline", "include/pipelines/calls.yaml", "--warehouse", {folder!r}])
def work(_):
    {work}
job.run_job("some_job", given, work)
"""


def ended(folder, work):
    script = JOB.format(folder=str(folder), work=work)
    return subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_job_that_is_done_ends_with_its_counts(tmp_path):
    done = ended(tmp_path, 'return {"rows": 5}')
    assert (done.returncode, done.stdout) == (0, "some_job: rows 5\n"), done.stderr


def test_a_job_that_failed_ends_with_its_line(tmp_path):
    done = ended(tmp_path, 'raise OSError("no space left")')
    assert (done.returncode, done.stderr) == (1, "error: no space left\n")
