"""The one line with which a job ends that cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_jobs.job.run import errors_in_one_line
from spark_jobs.tables.diagnose import translate_file_errors
from spark_jobs.tables.warehouse import Warehouse


def line_of(capfd: pytest.CaptureFixture[str], warehouse: Warehouse, job: Callable[[Warehouse], Any]) -> str:
    """Runs a job that has to fail, as `run_job` does, and gives what it says."""
    capfd.readouterr()
    place = f"{warehouse.root}/{warehouse.pipeline.name}"
    with pytest.raises(SystemExit) as ended, errors_in_one_line(), translate_file_errors(place):
        job(warehouse)
    assert ended.value.code == 1
    # What Spark says of a task that failed stands before it, in its log.
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return lines[0].removeprefix("error: ")
