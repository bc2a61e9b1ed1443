"""An Airflow on a copy of the project, whose pipeline files a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

from include.local.airflow import LocalAirflow
from include.local.machine import ROOT


class AirflowOf(LocalAirflow):
    """Airflow on a copy of the project, told where to send alerts."""

    def __init__(self, project: Path, alerts: str, *arguments, **settings) -> None:
        super().__init__(*arguments, dags=project / "dags", **settings)
        self.more = {
            "PYTHONPATH": str(project),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(project / "plugins"),
            "PAIRING_ALERT_URL": alerts,
        }

    def settings(self):
        return super().settings() | self.more


def copied(folder: Path) -> Path:
    """The copy, made in the folder."""
    for name in ("dags", "docs", "include", "plugins", "spark_jobs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
