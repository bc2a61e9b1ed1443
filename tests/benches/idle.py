"""What the platform takes while nothing runs (`make bench-idle`).

    python -m tests.benches.idle [--minutes 5]

Broker, Spark server and Airflow as `make demo` starts them, of their own, with every DAG paused. Processor time is what all their processes took;
memory is the proportional share of each (PSS), so that pages shared by forked processes count once.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable

import psutil

from include.local.machine import say
from include.local.process import LocalServer, processes_of
from tests.benches.measuring import scratch
from tests.load.servers import PIPELINE, servers

MOST_CORE, MOST_GB = 0.08, 3.0
# The servers have come to rest by then.
_SETTLED_S = 60


def parts(server: LocalServer) -> Iterable[tuple[str, psutil.Process]]:
    """Every process of a server, and the program to which it belongs."""
    for process in processes_of(server.folder):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        line = " ".join(words)
        found = next((part for part in ("api-server", "scheduler", "dag-processor", "triggerer") if part in line), "")
        yield found or ("airflow workers" if "airflow worker" in line else server.folder.name), process


def look(all_servers: Iterable[LocalServer]) -> dict[tuple[str, int], tuple[float, int]]:
    """(part, pid) -> seconds of processor time so far, bytes."""
    found = {}
    for server in all_servers:
        for part, process in parts(server):
            try:
                times = process.cpu_times()
                found[part, process.pid] = (times.user + times.system, process.memory_full_info().pss)
            except psutil.Error:
                continue
    return found


def measure(minutes: float) -> None:
    """Prints the share of a core and the memory of each part."""
    with scratch() as folder, servers(folder) as running:
        client = running.client
        client.pause(PIPELINE, True)
        say(f"all is up; {_SETTLED_S} s to settle, then {minutes:g} minutes")
        time.sleep(_SETTLED_S)
        begin, before = time.monotonic(), look(running.all)
        time.sleep(minutes * 60)
        seconds, after = time.monotonic() - begin, look(running.all)
        cpu, memory = Counter[str](), Counter[str]()
        for (part, pid), (used, size) in after.items():
            cpu[part] += used - before.get((part, pid), (0.0, 0))[0]  # type: ignore[assignment]
            memory[part] += size
        print(f"\n{'':20}{'of a core':>12}{'GB':>8}")
        for part, size in memory.most_common():
            print(f"{part:20}{cpu[part] / seconds:12.1%}{size / 1e9:8.2f}")
        core, size = cpu.total() / seconds, memory.total() / 1e9
        verdict = "met" if core <= MOST_CORE and size <= MOST_GB else "MISSED"
        print(f"{'all':20}{core:12.1%}{size:8.2f}  at most {MOST_CORE:.0%} and {MOST_GB:g} GB: {verdict}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.benches.idle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--minutes", type=float, default=5)
    measure(arguments.parse_args().minutes)


if __name__ == "__main__":
    main()
