"""`make stop`: ends every server of every demo on this machine and keeps their data."""

from __future__ import annotations

import sys
from itertools import product

from include.local.airflow import stop_airflow
from include.local.machine import DEMOS, EXAMPLES, LOCAL
from include.local.process import stop_programs

# Each one needs those behind it.
_SERVERS = {
    "watch": "the watch",
    "airflow": "Airflow",
    "spark-server": "Spark",
    "cluster": "the Spark cluster",
    "broker": "the broker",
    "registry": "the schema registry",
    "store": "the store",
}


def main() -> int:
    """The command; returns its exit status, always 0."""
    for kind, example in product(DEMOS, EXAMPLES):
        of = f" ({' '.join(filter(None, (kind, example)))})" if kind or example else ""
        for folder, name in _SERVERS.items():
            place = LOCAL / kind / example / folder
            if place.is_dir():
                stopped = stop_airflow(place) if folder == "airflow" else stop_programs(place)
                print(f"{name}{of} {'stopped' if stopped else 'did not run'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
