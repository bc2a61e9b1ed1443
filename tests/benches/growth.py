"""How time and memory grow with the batch (`make bench-growth`): one batch of each size, landed and paired by a warm application.

    python -m tests.benches.growth [--events 500000 … 20000000]

Time is compared per event with the smallest batch; memory is that of the largest Python worker, of which two run at a time.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import time
from pathlib import Path
from typing import Any

from include.local.broker import LocalBroker
from include.local.process import free_port
from spark_jobs.spark.local_workers import start_workers
from spark_jobs.stages import land, pair
from tests.benches.landing import Landing, delete_topics, on_topics
from tests.benches.measuring import PeakMemory, scratch, spark_of_two_cores

SIZES = (500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000)
AT_MOST = 1.2


def run(spark: Any, folder: Path, broker: LocalBroker, events: int) -> tuple[float, float, PeakMemory]:
    """Seconds of landing and of pairing one batch, and the memory they took."""
    pipeline = on_topics(broker, events)
    landing = Landing(spark, folder / "warehouse", pipeline, events)
    warehouse, ledger, planned = landing.prepare()
    gc.collect()
    with PeakMemory() as peak:
        begin = time.perf_counter()
        landed = land.land_batch(warehouse, ledger, planned)
        between = time.perf_counter()
        pair.pair_batch(warehouse, ledger, planned, landed)
        end = time.perf_counter()
    delete_topics(broker, pipeline)
    shutil.rmtree(folder / "warehouse")
    return between - begin, end - between, peak


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.growth", description=__doc__)
    arguments.add_argument("--events", type=int, nargs="+", default=list(SIZES))
    given = arguments.parse_args()
    start_workers()
    with scratch() as folder, LocalBroker(folder / "broker", free_port()) as broker, spark_of_two_cores(folder) as spark:
        run(spark, folder, broker, given.events[0])
        first: tuple[float, float] | None = None
        print("     events   landing   pairing   µs/event: landing, pairing   growth   largest worker, JVM")
        for events in given.events:
            land_s, pair_s, peak = run(spark, folder, broker, events)
            each = (land_s / events * 1e6, pair_s / events * 1e6)
            first = first or each
            growth = max(now / then for now, then in zip(each, first, strict=True))
            verdict = "" if growth <= AT_MOST else f"  MISSED: at most {AT_MOST}"
            print(
                f"{events:11,} {land_s:7.1f} s {pair_s:7.1f} s {each[0]:18.2f}, {each[1]:7.2f} {growth:8.2f} "
                f"{peak.worker_mb:11.0f} MB, {peak.jvm_mb:.0f} MB{verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
