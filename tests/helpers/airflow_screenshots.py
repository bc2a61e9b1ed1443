"""The pictures of Airflow in the documentation: `make screenshots`, after those of tests/helpers/screenshots.py. Starts an Airflow of its own with a
made-up history, and stops it.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from include.local.airflow import LocalAirflow
from tests.helpers.airflow_pages import FAILED, airflow_with_history, dialog, framed, go, log_in, open_dialog, to_quality
from tests.helpers.browser import NEEDED, Page, chromium
from tests.helpers.screenshots import IMAGES, too_large
from tests.helpers.timeline import CALLS

SIZE = {"width": 1300, "height": 880}


def dag(page: Page, airflow: LocalAirflow, runs: dict[int, str]) -> None:
    """The live DAG's page with its text."""
    open_dialog(page, airflow, f"/dags/{CALLS.name}", "Dag Docs", "report_quality")


def trigger(page: Page, airflow: LocalAirflow, runs: dict[int, str]) -> None:
    """Its trigger form."""
    open_dialog(page, airflow, f"/dags/{CALLS.name}", "Trigger", "Report only")
    page.ask(f"{dialog('.querySelector')}('[name=element_accept_lost_range]').scrollIntoView({{block: 'center'}})")


def quality(page: Page, airflow: LocalAirflow, runs: dict[int, str]) -> None:
    """The report of the batch that failed, on its run."""
    go(page, airflow, f"/dags/{CALLS.name}/runs/{runs[FAILED]}", "Quality")
    to_quality(page)
    framed(page, f"{CALLS.name}: batch {FAILED} failed")


def pipelines(page: Page, airflow: LocalAirflow, runs: dict[int, str]) -> None:
    """The page over all pipelines."""
    go(page, airflow, "/plugin/quality-all", "Assets")
    framed(page, "All pipelines: ")


SHOTS: dict[str, Callable[[Page, LocalAirflow, dict[int, str]], None]] = {
    "airflow-dag": dag,
    "airflow-trigger": trigger,
    "airflow-quality": quality,
    "airflow-pipelines": pipelines,
}


def main() -> int:
    """Gives the exit status."""
    if chromium() is None:
        print(f"error: {NEEDED}", file=sys.stderr)
        return 1
    # The page over all pipelines asks only whether somebody listens at Kafka's address.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, socket.create_server(("127.0.0.1", 0)) as kafka:
        folder, bootstrap = Path(name), "127.0.0.1:{1}".format(*kafka.getsockname())
        print("starting an Airflow with a made-up history ...", flush=True)
        with airflow_with_history(folder, range(FAILED - 9, FAILED + 1), bootstrap=bootstrap) as (airflow, runs):
            print(f"Airflow is up {airflow.where()}", flush=True)
            with Page(folder / "chromium", **SIZE) as page:
                log_in(page, airflow)
                for shot, show in SHOTS.items():
                    show(page, airflow, runs)
                    # What still loads is drawn as a grey bar; what has just come in fades in.
                    page.wait_for("!document.querySelector('.chakra-skeleton')", 60)
                    page.ask("new Promise((done) => setTimeout(done, 1500))")
                    page.screenshot(IMAGES / f"{shot}.png")
                    print(IMAGES / f"{shot}.png", flush=True)
                assert not page.errors, page.errors
        print("Airflow is stopped")
    return too_large()


if __name__ == "__main__":
    sys.exit(main())
