"""One task of a DAG in a process of its own, as Airflow runs it, but without Airflow's database and API.

    python -m tests.helpers.one_task JOB PIPELINE-FILE

Its last line of output is what became of it, as JSON: `counts`, or the `error` with the `kind` of the exception. At a SIGTERM, which Airflow sends
to the process group of a task that is to end, it does what Airflow's own process does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from include.local.machine import ROOT, VENV, project_environment


class Task:
    """The process. `environment`: variables besides the project's, with Airflow's connections among them."""

    def __init__(self, job: str, file: Path, environment: Mapping[str, str]) -> None:
        self.log = file.parent / f"{job}-{time.monotonic_ns()}.log"
        command = [str(VENV / "bin" / "python"), "-m", "tests.helpers.one_task", job, str(file)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=project_environment() | environment, stdout=log, stderr=log, start_new_session=True
            )

    def end(self, within_s: float = 900) -> dict[str, Any]:
        """What became of it."""
        self.process.wait(within_s)
        return dict(json.loads(self.log.read_text().splitlines()[-1]))

    def signal(self, number: int) -> None:
        """To the process and all that it has started."""
        os.killpg(self.process.pid, number)


def main(job: str, file: str) -> None:
    from include.airflow.operators import PairingJobOperator

    task = PairingJobOperator(job=job, pipeline_file=Path(file))
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    who = SimpleNamespace(dag_id=Path(file).stem, run_id="by_hand", task_id=job)
    try:
        answer: dict[str, Any] = {"counts": task.execute({"ti": who, "outlet_events": {}, "params": {}})}
    except Exception as error:
        answer = {"error": str(error), "kind": type(error).__name__}
    print(json.dumps(answer | {"application": task.spark_application}))


if __name__ == "__main__":
    main(*sys.argv[1:])
