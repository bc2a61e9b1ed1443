"""The command that is asked before a pipeline file is deployed."""

from __future__ import annotations

import subprocess
import sys

from include.config.check_pipelines import main
from include.config.pipeline import PIPELINES
from tests.helpers.timeline import ROOT


def test_each_file_has_a_line_and_one_refusal_is_a_failure(tmp_path, capsys):
    shipped = PIPELINES / "calls.yaml"
    broken = tmp_path / "orders.yaml"
    broken.write_text(shipped.read_text().replace("grace: 3m", "grace: 3 minutes"))
    assert main([broken, shipped]) == 1
    refused, accepted = capsys.readouterr().out.splitlines()
    assert refused.startswith(f"refused: {broken}: grace: '3 minutes' is not a duration")
    assert accepted == f"accepted: {shipped}: analyticsTopic + metricsTopic -> outputTopic"


def test_without_a_file_it_is_all_that_are_deployed():
    command = [sys.executable, "-m", "include.check_pipelines"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    files = sorted(path.name for path in PIPELINES.glob("*.yaml"))
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(files)), done.stderr
    assert "calls.yaml" in files
