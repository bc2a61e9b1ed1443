"""What an Airflow of another project takes from the installed package: its description, and the DAGs. In the wheel this file is the package's
own `__init__.py`, which every process of a job imports too: so what it needs is imported on demand.
"""

from __future__ import annotations

import runpy
from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Airflow calls this in each of its processes, by the entry point `apache_airflow_provider`; its schema is Airflow's of providers."""
    from include.config.project import PACKAGE

    name, parts = "Event pairing", f"{PACKAGE}include.airflow"
    return {
        "package-name": "event-pairing",
        "name": name,
        "description": "Pairs the two sides of each call from two Kafka topics, and proves that none was lost.",
        "integrations": [{"integration-name": name, "tags": ["service"]}],
        "operators": [{"integration-name": name, "python-modules": [f"{parts}.operators"]}],
        "triggers": [{"integration-name": name, "python-modules": [f"{parts}.triggers"]}],
    }


def make_dags() -> None:
    """Makes the DAGs of every file in the folder PAIRING_PIPELINES. Called at the top level of a file in the DAGs folder, to which they then belong.

    Raises PipelineError if there is no such folder, or if every file in it is refused.
    """
    from include.config.pipeline import PIPELINES, PipelineError
    from include.config.project import PACKAGE

    if not PIPELINES.is_dir():
        raise PipelineError(
            f"{PIPELINES}: no such folder; set PAIRING_PIPELINES to the absolute path of your pipeline files, for every part of Airflow"
        )
    # Run anew at each call: Airflow may parse the calling file many times in one process.
    for name in ("pairing", "maintenance"):
        runpy.run_module(f"{PACKAGE}dags.{name}")
