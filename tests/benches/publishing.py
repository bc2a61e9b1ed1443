"""Publishing exactly once against plain at-least-once producing of the same rows (`make bench-publishing`).

    python -m tests.benches.publishing [--events 1000000] [--rounds 5]

Both run `publish_compounds` whole: positions, reading the table, messages in their order, sending, the ledger's row. The other one sends by
a producer without idempotence, transactions and position, with all other settings the same; what a crash leaves it sends again.
Then what a transaction costs that follows another: the same few records in one, and in many.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

from include.local.broker import LocalBroker, admin_client, create_topics
from include.local.process import free_port
from spark_jobs import publish_compounds
from spark_jobs.kafka import publisher
from spark_jobs.kafka.messages import Message
from spark_jobs.kafka.positions import PublishRun
from spark_jobs.spark.local_workers import start_workers
from spark_jobs.stages import land, pair, send
from spark_jobs.tables.warehouse import Warehouse
from tests.benches.at_least_once import send_at_least_once
from tests.benches.landing import PARTITIONS, Landing, on_topics
from tests.benches.measuring import ROUNDS, scratch, show_ratio, show_times, spark_of_two_cores, take_turns

OURS, OTHER = "exactly once", "at least once"
_MANY = 10


class Publishing:
    """Publishes the compounds of one batch, each time to an empty topic."""

    def __init__(self, paired: Warehouse, folder: Path, bootstrap: str) -> None:
        self.paired, self.folder, self.bootstrap = paired, folder, bootstrap

    def prepare(self) -> tuple[Warehouse]:
        """The tables and the topic as they were before anything was published; Kafka forgets positions with their topic."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.paired.root, self.folder)
        topic, admin = self.paired.pipeline.output_topic, admin_client(self.bootstrap)
        admin.delete_topics([topic])[topic].result()
        while topic in admin.list_topics(timeout=20).topics:
            time.sleep(0.1)
        create_topics(self.bootstrap, {topic: PARTITIONS}, {"retention.ms": "-1"})
        return (replace(self.paired, root=str(self.folder)),)

    def publish(self, warehouse: Warehouse) -> None:
        publish_compounds.main(warehouse)

    def publish_at_least_once(self, warehouse: Warehouse) -> None:
        with mock.patch.object(send, "publish_partition", send_at_least_once):
            self.publish(warehouse)


def publish_few(bootstrap: str, topic: str, transactions: int) -> None:
    """A hundred records, in so many transactions."""
    create_topics(bootstrap, {topic: 1})
    run = PublishRun(topic, topic, "topic", False, "table", 1, ledger_position=0, target=transactions, largest=1_000_000)
    each = 100 // transactions
    messages = [Message(1 + n // each, b"key", b"{}", [("pair-id", f"x-0-{n}".encode())]) for n in range(100)]
    with mock.patch.object(publisher, "_RECORDS_A_TRANSACTION", 1):
        publisher.publish_partition({"bootstrap.servers": bootstrap}, run, 0, messages)


def show_cost_of_transactions(bootstrap: str, rounds: int) -> None:
    """Milliseconds a transaction, from the medians of one and of many."""
    topics = (f"few-{number}" for number in itertools.count())
    candidates = {f"{number} transactions": partial(publish_few, bootstrap, transactions=number) for number in (1, _MANY)}
    times = take_turns(candidates, rounds, lambda: (next(topics),))
    show_times("100 records to one partition", times)
    one, many = (measured.median for measured in times.values())
    print(f"  a transaction more: {1000 * (many - one) / (_MANY - 1):.0f} ms", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.publishing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--events", type=int, default=1_000_000, help="events; somewhat more than half as many compounds")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    start_workers()
    with scratch() as folder, LocalBroker(folder / "broker", free_port()) as broker, spark_of_two_cores(folder) as spark:
        landing = Landing(spark, folder / "paired", on_topics(broker, given.events), given.events)
        warehouse, ledger, planned = landing.prepare()
        paired = pair.pair_batch(warehouse, ledger, planned, land.land_batch(warehouse, ledger, planned))
        publishing = Publishing(warehouse, folder / "warehouse", broker.bootstrap)
        candidates = {OURS: publishing.publish, OTHER: publishing.publish_at_least_once}
        times = take_turns(candidates, given.rounds, publishing.prepare)
        show_cost_of_transactions(broker.bootstrap, given.rounds)
    show_times(f"{paired.paired.compounds:,} compounds, Delta to Kafka", times)
    show_ratio(times, OURS, OTHER)


if __name__ == "__main__":
    main()
