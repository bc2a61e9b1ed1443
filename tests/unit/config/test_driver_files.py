"""The archive holds all that jobs need of the project, and nothing of this machine; the script has its secrets for a moment."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile

from include.config.driver_files import driver_script, project_archive
from include.config.project import ROOT

CALLS = ROOT / "include" / "pipelines" / "calls.yaml"


def test_the_script_runs_its_job_from_the_archive_alone_and_is_gone(tmp_path):
    """A job as `__main__`, with its arguments and with the variables in the script; it says what it lacks."""
    with zipfile.ZipFile(project_archive(tmp_path, CALLS)) as archive:
        archive.extractall(tmp_path / "project")
    (tmp_path / "files").mkdir()
    script = driver_script(tmp_path / "files", "land_events", {"PAIRING_WAREHOUSE": 'ftp://it\'s a "secret"\\'})
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    # As YARN has it: by a link in the driver's folder.
    (tmp_path / "land_events.py").symlink_to(script)
    command = [sys.executable, "land_events.py", "--pipeline", "project/include/pipelines/calls.yaml"]
    around = {"PYTHONPATH": str(tmp_path / "project"), "PAIRING_OUTCOME": str(tmp_path / "outcome.json")}
    done = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("error: warehouse ftp://… is refused: use a folder"), done.stderr
    assert done.returncode == 1 and not script.exists()


def test_it_holds_what_is_no_code_either_and_only_the_pipelines_that_were_asked_for(tmp_path):
    names = zipfile.ZipFile(project_archive(tmp_path, CALLS)).namelist()
    beside = {
        path.relative_to(ROOT)
        for folder in ("spark_jobs/quality", "include/config/templates", "docs/runbooks")
        for path in (ROOT / folder).rglob("*.*")
        if path.suffix not in (".py", ".pyc")
    }
    assert len(beside) > 45 and {str(path) for path in beside} <= set(names)
    assert {name.split("/")[1] for name in names if name.startswith("include/")} == {"__init__.py", "config", "pipelines"}
    assert "include/pipelines/calls.yaml" not in zipfile.ZipFile(project_archive(tmp_path)).namelist()


def test_equal_code_makes_an_equal_archive(tmp_path):
    (tmp_path / "again").mkdir()
    first, second = project_archive(tmp_path), project_archive(tmp_path / "again")
    assert first.name == second.name and first.read_bytes() == second.read_bytes()
