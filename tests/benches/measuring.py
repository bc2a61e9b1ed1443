"""How the benches measure: in one process, warm, taking turns, medians of five."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from include.local.machine import project_environment
from include.local.setup import SMALL_BUFFERS

ROUNDS = 5
HEAP = "3g"
JAVA = f"-XX:+UseParallelGC {SMALL_BUFFERS}"
_EVERY_S = 0.05


class Times(NamedTuple):
    """Seconds of the rounds of one candidate, in the order in which they were run."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        return f"{self.median:7.2f} s ({min(self.seconds):.2f} to {max(self.seconds):.2f})"


def take_turns(
    candidates: Mapping[str, Callable[..., Any]],
    rounds: int,
    prepare: Callable[[], tuple[Any, ...]],
    own: Mapping[str, Callable[[], tuple[Any, ...]]] | None = None,
) -> dict[str, Times]:
    """Runs every candidate once unmeasured, then all of them in turn, `rounds` times, each with what `prepare`, or its `own` one, made for it."""
    ways = dict.fromkeys(candidates, prepare) | dict(own or {})
    for name, run in candidates.items():
        run(*ways[name]())
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, run in candidates.items():
            prepared = ways[name]()
            begin = time.perf_counter()
            run(*prepared)
            seconds[name].append(time.perf_counter() - begin)
    return {name: Times(measured) for name, measured in seconds.items()}


def show_ratio(times: Mapping[str, Times], ours: str, other: str, at_most: float | None = None) -> None:
    """One line: the ratio of the medians, the smallest and largest ratio within a round, and the target, if there is one."""
    within = [mine / theirs for mine, theirs in zip(times[ours].seconds, times[other].seconds, strict=True)]
    ratio = times[ours].median / times[other].median
    target = "" if at_most is None else f"; at most {at_most:.2f}: {'met' if ratio <= at_most else 'MISSED'}"
    print(f"  {ours} / {other}: {ratio:.2f} ({min(within):.2f} to {max(within):.2f} within a round){target}", flush=True)


def show_times(title: str, times: Mapping[str, Times]) -> None:
    """What was measured, a line each."""
    print(title, flush=True)
    for name, measured in times.items():
        print(f"  {name:24}{measured}", flush=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; TMPDIR says on which disk."""
    folder = Path(tempfile.mkdtemp(prefix="pairing-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def spark_of_two_cores(folder: Path, as_shipped: bool = False) -> Iterator[Any]:
    """The project's session on local[2], with the JVM's own choice of compilers, as on a cluster; or with the settings of `make setup`."""
    environment = project_environment()
    os.environ.update({name: environment[name] for name in ("PATH", "SPARK_CONF_DIR", "PYTHONPATH", "SPARK_LOCAL_IP")})
    settings = {"spark.local.dir": str(folder / "spark")}
    if not as_shipped:
        settings |= {"spark.driver.memory": HEAP, "spark.driver.extraJavaOptions": JAVA}
    options = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[2] {options} pyspark-shell"
    from spark_jobs.spark.session import spark_session

    session = spark_session("bench", "bench")
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


class PeakMemory:
    """Largest resident memory of any one Python worker of Spark, and of the JVM, in MB, while it is entered; and the CPU time of all."""

    def __init__(self) -> None:
        self.worker_mb = self.jvm_mb = 0.0
        # By process: seconds at the first and at the last look.
        self._cpu: dict[int, tuple[float, float]] = {}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    @property
    def cpu_s(self) -> float:
        """Of the JVM and the workers; unlike the time it takes, what else runs on the machine changes it little."""
        return sum(last - first for first, last in self._cpu.values())

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            for process in psutil.Process().children(recursive=True):
                try:
                    size, name = process.memory_info().rss / 1e6, process.name()
                    used = sum(process.cpu_times()[:2])
                except psutil.Error:
                    continue
                self._cpu[process.pid] = (self._cpu.get(process.pid, (used, used))[0], used)
                if name.startswith("java"):
                    self.jvm_mb = max(self.jvm_mb, size)
                elif name.startswith("python"):
                    self.worker_mb = max(self.worker_mb, size)
