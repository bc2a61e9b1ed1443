"""What is measured every ten seconds: unread records, processes with their memory and file handles, bytes on the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

from include.local.airflow import PARTS
from include.local.demo import PARTITIONS
from include.local.process import running_program
from tests.load.laws import Series
from tests.load.servers import Servers

# Of processes that come and go all are counted together.
WORKERS = "Python of Spark"
# Their direct children live as long; what the scheduler's workers start are tasks.
WITH_CHILDREN = ("scheduler", "triggerer")
ROLES = ("broker", "Spark server", WORKERS, *PARTS)


class Size(NamedTuple):
    """Of the processes of one role."""

    processes: int = 0
    memory: int = 0  # resident, bytes
    handles: int = 0


class Sample(NamedTuple):
    """One moment, in seconds since the measuring began. `sent`, `unread`: records of both input topics; None while the broker does not answer."""

    at: float
    sent: int | None
    unread: int | None
    sizes: dict[str, Size]
    warehouse: int
    broker: int


class Meter:
    """Takes samples of running servers."""

    def __init__(self, running: Servers) -> None:
        self.running = running
        self.began = time.monotonic()
        # It only asks, and never joins the group. The admin client crashes the process if it asks for a group while the broker starts.
        group = {"group.id": str(running.pipeline.consumer_group), "enable.auto.commit": False, "log_level": 0}
        self.reader = Consumer({"bootstrap.servers": running.broker.bootstrap, **group})
        self.inputs = [TopicPartition(side.topic, number) for side in running.pipeline.sides for number in range(PARTITIONS)]

    def take(self) -> Sample:
        """The sample of this moment."""
        sent, unread = self._records()
        warehouse, data = Path(self.running.warehouse), self.running.broker.folder / "data"
        sizes = {role: _size(processes) for role, processes in self._processes().items()}
        return Sample(time.monotonic() - self.began, sent, unread, sizes, bytes_in(warehouse), bytes_in(data))

    def _records(self) -> tuple[int | None, int | None]:
        try:
            ends = [self.reader.get_watermark_offsets(place, timeout=5)[1] for place in self.inputs]
            landed = [max(0, place.offset) for place in self.reader.committed(self.inputs, timeout=5)]
            return sum(ends), sum(ends) - sum(landed)
        except KafkaException:
            return None, None

    def _processes(self) -> dict[str, list[psutil.Process]]:
        broker, spark, airflow = (server.folder for server in self.running.all)
        server, kafka = running_program(spark, "server"), running_program(broker, "kafka")
        found = {
            "broker": [kafka] if kafka else [],
            "Spark server": [server] if server else [],
            WORKERS: _children(server, True),
        }
        for part in PARTS:
            main = running_program(airflow, part)
            found[part] = [main, *(_children(main, False) if part in WITH_CHILDREN else ())] if main else []
        return found


def _children(process: psutil.Process | None, recursive: bool) -> list[psutil.Process]:
    try:
        return process.children(recursive) if process else []
    except psutil.NoSuchProcess:
        return []


def _size(processes: Iterable[psutil.Process]) -> Size:
    sizes = []
    for process in processes:
        try:
            sizes.append((process.memory_info().rss, process.num_fds()))
        except psutil.Error:
            # It ended just now.
            continue
    return Size(len(sizes), sum(memory for memory, _ in sizes), sum(handles for _, handles in sizes))


def bytes_in(folder: Path) -> int:
    """Bytes that the files below a folder take on the disk; files that vanish meanwhile count nothing."""
    total, folders = 0, [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        # The broker makes its indexes larger than they are.
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def lag(samples: Iterable[Sample], rate: float) -> Series:
    """(second, unread records in minutes of the traffic of `rate` records a second)."""
    return [(each.at, each.unread / rate / 60) for each in samples if each.unread is not None]


def sent(samples: Iterable[Sample]) -> Series:
    """(second, records sent so far)."""
    return [(each.at, float(each.sent)) for each in samples if each.sent is not None]


def rate_of(series: Series) -> float:
    """How much the second number rises for each 1 of the first one, between the first point and the last; 0 if there are not two."""
    seconds = series[-1][0] - series[0][0] if len(series) > 1 else 0.0
    return (series[-1][1] - series[0][1]) / seconds if seconds else 0.0


def disk(samples: Iterable[Sample]) -> dict[str, Series]:
    """(records sent so far, bytes) of the tables and of the broker."""
    known = [(float(each.sent), float(each.warehouse), float(each.broker)) for each in samples if each.sent is not None]
    return {
        "tables": [(records, tables) for records, tables, _ in known],
        "broker": [(records, topics) for records, _, topics in known],
    }


def memory(samples: Iterable[Sample], role: str) -> Series:
    """(second, MB)."""
    return [(each.at, each.sizes[role].memory / 1e6) for each in samples]


def handles(samples: Iterable[Sample], role: str) -> Series:
    """(second, number of open file handles)."""
    return [(each.at, float(each.sizes[role].handles)) for each in samples]
