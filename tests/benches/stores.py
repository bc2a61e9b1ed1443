"""A warehouse on an S3 server of this machine against one in a folder: seconds, and requests by job and kind (`make bench-stores`).

    python -m tests.benches.stores [--events 2000000 10000000] [--rounds 3] [--batches 1 5000] [--small-rounds 7] [--delay-ms 30]

Large: everything on the topics is landed, paired and published, each time into tables of its own. Small: batches of 100 calls (200 events) by all four
jobs, after so many batches of history. All in one process on a warm session; folder and store take turns, so that load from elsewhere meets both.
Requests are those that the server's own log has. With `--delay-ms` each of them waits as long before the server gets it, as on the way to a cloud's store.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from include.config.store import OPTIONS_VARIABLE
from include.local.broker import LocalBroker
from include.local.process import free_port
from include.local.store import BUCKET, LocalS3
from spark_jobs import land_events, pair_events, publish_compounds
from spark_jobs.spark.local_workers import start_workers
from spark_jobs.tables import delta_log
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.history import batch, with_history
from tests.benches.landing import delete_topics, on_topics
from tests.benches.measuring import Times, scratch, show_ratio, spark_of_two_cores
from tests.helpers.job_processes import JOBS
from tests.helpers.store_proxy import StoreProxy
from tests.helpers.stores import requests_of

FOLDER, STORE = "a folder", "S3"
AT_MOST_LARGE, AT_MOST_SMALL = 1.25, 1.5
CALLS = 100
# What a request is for, by the key; the first that fits.
_KINDS = {
    "checkpoints": r"/_delta_log/(_last_checkpoint|.*\.checkpoint\.parquet)$",
    "commits": r"/_delta_log/\d{20}\.json$",
    "logs": r"(/_delta_log/?|/_delta_log/.*)$|^-$",
    "data files": r"/part-[^/]*\.parquet$",
    "pages": r"/quality/",
    "probe": r"/store-probe",
}


def large(spark: Any, roots: Mapping[str, str], broker: LocalBroker, events: int, rounds: int) -> None:
    """Prints what landing, pairing and publishing of so many events takes in each place."""
    pipeline = on_topics(broker, events)
    steps = ("land", "pair", "publish")
    seconds: dict[str, list[dict[str, float]]] = {place: [] for place in roots}
    # The first is not measured.
    for number in range(rounds + 1):
        for place, root in roots.items():
            mine = replace(pipeline, name=f"{pipeline.name}r{number}{place[-1].lower()}", max_records_per_batch=events)
            warehouse = Warehouse(f"{root}/large", mine, spark)
            took = {}
            for step, work in zip(
                steps, (lambda w: land_events.main(w, events), pair_events.main, publish_compounds.main), strict=True
            ):
                begin = time.perf_counter()
                work(warehouse)
                took[step] = time.perf_counter() - begin
            seconds[place] += [took] if number else []
    delete_topics(broker, pipeline)
    print(f"\n{events:,} events, medians of {rounds} rounds, s{'':12}" + "".join(f"{step:>10}" for step in (*steps, "all")))
    for place, measured in seconds.items():
        medians = [median(each[step] for each in measured) for step in steps]
        print(f"  {place:44}" + "".join(f"{each:10.2f}" for each in (*medians, median(sum(m.values()) for m in measured))))
    times = {place: Times([sum(each.values()) for each in measured]) for place, measured in seconds.items()}
    show_ratio(times, STORE, FOLDER, AT_MOST_LARGE)


def small(
    spark: Any, roots: Mapping[str, str], broker: LocalBroker, folder: Path, store: LocalS3, lengths: list[int], rounds: int
) -> None:
    """Prints what a small batch takes in each place, and its requests, after histories of these lengths."""
    warehouses: dict[tuple[str, int], Warehouse] = {}
    for length in lengths:
        for place in roots:
            made = with_history(spark, folder / f"{place[-1]}-{length}", length, CALLS, broker.bootstrap, place[-1].lower())
            warehouses[place, length] = made if place == FOLDER else _moved(made, store)
    seconds: dict[tuple[str, int], list[dict[str, float]]] = {key: [] for key in warehouses}
    requests: dict[int, dict[str, Counter[tuple[str, str]]]] = {
        length: {job: Counter() for job in JOBS} for length in lengths
    }
    for number in range(rounds + 1):
        for (place, length), warehouse in warehouses.items():
            with _counted(store, requests[length] if number and place == STORE else {}) as job_ends:
                took = batch(warehouse, CALLS, number + 1, broker.bootstrap, job_ends)
            seconds[place, length] += [took] if number else []
    for length in lengths:
        print(
            f"\n{2 * CALLS} events after {length:,} batches, medians of {rounds} rounds, s"
            + "".join(f"{job:>20}" for job in (*JOBS, "all four"))
        )
        for place in roots:
            measured = seconds[place, length]
            medians = [median(each[job] for each in measured) for job in JOBS]
            print(
                f"  {place:48}" + "".join(f"{each:20.2f}" for each in (*medians, median(sum(m.values()) for m in measured)))
            )
        times = {place: Times([sum(each.values()) for each in seconds[place, length]]) for place in roots}
        show_ratio(times, STORE, FOLDER, AT_MOST_SMALL)
    _show_requests(requests, rounds)


@contextmanager
def _counted(store: LocalS3, requests: Mapping[str, Counter[tuple[str, str]]]) -> Iterator[Any]:
    """Gives a function that is called when a job has ended: the requests since the last call are its."""
    begin = store.access_log.stat().st_size

    def job_ends(job: str) -> None:
        nonlocal begin
        # As in a process of its own, which knows no table yet.
        delta_log._cache.clear()
        # The log is written a moment after the answer.
        time.sleep(0.2)
        if requests:
            requests[job].update((operation, _kind(key)) for operation, key in requests_of(store, begin))
        begin = store.access_log.stat().st_size

    yield job_ends


def _kind(key: str) -> str:
    return next((kind for kind, form in _KINDS.items() if re.search(form, key)), "others")


def _moved(warehouse: Warehouse, store: LocalS3) -> Warehouse:
    """The same tables on the store, which keeps its objects as files."""
    root = Path(warehouse.root)
    shutil.copytree(root, store.folder / "data" / BUCKET / root.parent.name)
    shutil.rmtree(root)
    return replace(warehouse, root=f"s3://{BUCKET}/{root.parent.name}")


def _show_requests(requests: Mapping[int, Mapping[str, Counter[tuple[str, str]]]], rounds: int) -> None:
    lengths = list(requests)
    print("\nrequests a batch, by job, operation and what for" + "".join(f"{length:>12,}" for length in lengths))
    for job in JOBS:
        for what in sorted({what for length in lengths for what in requests[length][job]}):
            print(
                f"  {job:20}{what[0]:18}{what[1]:14}"
                + "".join(f"{requests[length][job][what] / rounds:12.1f}" for length in lengths)
            )
        totals = (sum(requests[length][job].values()) / rounds for length in lengths)
        print(f"  {job:52}" + "".join(f"{total:12.1f}" for total in totals))
    for operation in ("PutObject", "ListObjectsV2", "HeadObject", "GetObject", ""):
        totals = [
            sum(
                number
                for job in JOBS
                for what, number in requests[length][job].items()
                if not operation or what[0] == operation
            )
            / rounds
            for length in lengths
        ]
        print(f"  {'all four, ' + (operation or 'all'):52}" + "".join(f"{total:12.1f}" for total in totals), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.stores", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--events", type=int, nargs="*", default=[2_000_000, 10_000_000], help="large batches")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--batches", type=int, nargs="*", default=[1, 5_000], help="lengths of the histories")
    arguments.add_argument("--small-rounds", type=int, default=7)
    arguments.add_argument("--delay-ms", type=float, default=0)
    given = arguments.parse_args()
    start_workers()
    with (
        scratch() as folder,
        LocalBroker(folder / "broker", free_port()) as broker,
        LocalS3(folder / "s3", free_port()) as store,
        StoreProxy(store.port) as proxy,
    ):
        os.environ["PAIRING_KAFKA"] = json.dumps({"bootstrap.servers": broker.bootstrap})
        proxy.delay_s = given.delay_ms / 1000
        through = {"aws_endpoint_url": proxy.address} if proxy.delay_s else {}
        os.environ[OPTIONS_VARIABLE] = json.dumps(store.options | through)
        roots = {FOLDER: str(folder / "warehouse"), STORE: f"s3://{BUCKET}/bench"}
        with spark_of_two_cores(folder, as_shipped=not given.events) as spark:
            for events in given.events:
                large(spark, roots, broker, events, given.rounds)
            if given.batches:
                small(spark, roots, broker, folder, store, given.batches, given.small_rounds)


if __name__ == "__main__":
    main()
