"""Bodies made to be expensive, against an ordinary one of the same size (`make bench-hostile-messages`).

    python -m tests.benches.hostile_messages [--sizes 10000 100000 1000000 10000000] [--rounds 5]

Each family (tests/helpers/hostile_texts.py) at each size, by the parser of one message and by the one of columns, which is given a megabyte of
such messages, or one; and hostile keys, by what spells the output key and finds its partition. All take turns; medians of the rounds, of
CPU time, for the machine may have other work. The plain message is accepted, and its payload is a list of objects: an ordinary one.

Judged is, at every size, how often as long as the plain message of that size a family takes; and, of every two sizes, how much more a
MB costs in the larger one, and how much more often as long as the plain message it takes there. What is cheaper than the plain message
counts as much as that: up to 500 brackets nothing is looked into, so small messages cost less. Keys are told per MB as they are written. Beside it, not
judged, a payload that is a single string, which nothing has to look into. Exit 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from include.config.pipeline import PIPELINES, Pipeline
from include.config.pipeline_file import load_pipeline
from spark_jobs.kafka.messages import output_keys, output_partition
from spark_jobs.rules.parsed_columns import parse_columns
from tests.benches.measuring import ROUNDS
from tests.helpers.hostile_texts import FAMILIES, KEY_PIECES, plain
from tests.helpers.one_message import any_message_parser, body_layout, columns_of

SIZES = [10_000, 100_000, 1_000_000, 10_000_000]
MOST = 5.0
# A MB in a large message against one in a small message, and how often as long as the plain message.
GROWTH, GROWTH_AGAINST_PLAIN = 2.5, 2.0
# Less is not measured: so many bytes are parsed each time.
_AT_LEAST = 1_000_000
_FIELDS = body_layout(("user1", "user2"), "timestamp", "metrics")
PLAIN, STRING = "plain", "one long string, valid"
_parse = any_message_parser(_FIELDS, 2_000)
_ESCAPED = load_pipeline(PIPELINES / "calls.yaml")
_AS_JSON = replace(_ESCAPED, output_key="json")

# Seconds per MB, by family and size.
Figures = dict[tuple[str, int], float]
# Of a family, from the size to that many bytes of it, ready for the clock.
Work = Callable[[int], tuple[Callable[[], object], int]]


def _one_by_one(values: list[bytes]) -> None:
    for value in values:
        _parse(value, 9)


def _in_columns(values: list[bytes]) -> None:
    parse_columns(columns_of(values, [9] * len(values)), _FIELDS, 2_000)


def _parsed(run: Callable[[list[bytes]], None], family: Callable[[int], bytes]) -> Work:
    def ready(size: int) -> tuple[Callable[[], object], int]:
        values = [family(size)] * max(1, _AT_LEAST // size)
        return lambda: run(values), sum(map(len, values))

    return ready


def _as_keys(pipeline: Pipeline, piece: str) -> Work:
    """Spells the output keys of such key fields and finds their partitions, as publishing does."""

    def ready(size: int) -> tuple[Callable[[], object], int]:
        field, count = piece * (size // len(piece.encode())), max(1, _AT_LEAST // size)
        fields = [pa.array([field] * count), pa.array(["b"] * count)]

        def run() -> list[bytes]:
            keys: list[bytes] = output_keys(pipeline, fields).cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
            for key in keys:
                output_partition(key, 12)
            return keys

        # Of the key as it is written: in JSON a NUL is six signs.
        return run, sum(map(len, run()))

    return ready


def candidates() -> dict[str, dict[str, Work]]:
    """What is compared, by way and family; with each way the plain message."""
    ways = {"one by one (message_parser)": _one_by_one, "in columns (parse_columns)": _in_columns}
    families = {PLAIN: plain} | FAMILIES
    works = {title: {name: _parsed(run, family) for name, family in families.items()} for title, run in ways.items()}
    keys = {f"{name}, {spelling}": _as_keys(pipeline, piece) for name, piece in KEY_PIECES.items()
            for spelling, pipeline in (("escaped", _ESCAPED), ("json", _AS_JSON))}  # fmt: skip
    return works | {"output keys and their partitions": {PLAIN: _parsed(_in_columns, plain)} | keys}


def measure(works: dict[str, Work], sizes: list[int], rounds: int) -> Figures:
    """The median of the rounds of each family and of the plain message at each size."""
    figures: Figures = {}
    for size in sizes:
        ready = {name: work(size) for name, work in works.items()}
        seconds: dict[str, list[float]] = {name: [] for name in works}
        # The first round finds memory that was never used.
        for number in range(rounds + 1):
            for name, (run, length) in ready.items():
                begin = time.process_time()
                run()
                taken = time.process_time() - begin
                if number:
                    seconds[name].append(taken / length * 1e6)
        figures |= {(name, size): statistics.median(each) for name, each in seconds.items()}
    return figures


def report(title: str, figures: Figures, sizes: list[int]) -> bool:
    """Prints a line a family and the verdicts; gives whether they are met."""
    names = list(dict.fromkeys(name for name, _ in figures))
    times = {(name, size): figures[name, size] / figures[PLAIN, size] for name, size in figures}
    print(f"{title}: ms per MB, and how often as long as the plain message of that size")
    print(" " * 42 + "".join(f"{size:>22,}" for size in sizes))
    for name in names:
        print(f"  {name:40}" + "".join(f"{1e3 * figures[name, size]:>14.2f} {times[name, size]:>6.2f}x" for size in sizes))
    worst, at, name = max((times[name, size], size, name) for name in names for size in sizes)
    print(f"  worst against {PLAIN}: {worst:.2f} ({name}, {at:,} bytes); {_verdict(worst, MOST)}")
    met = worst <= MOST
    if any(name == STRING for name in names):
        worst, at, name = max((figures[name, size] / figures[STRING, size], size, name) for name in names for size in sizes)
        print(f"  worst against {STRING}: {worst:.2f} ({name}, {at:,} bytes); not judged")
    pairs = [(few, many) for few in sizes for many in sizes if few < many]
    for what, cost, most in (("a MB", figures, GROWTH), ("a MB against plain", times, GROWTH_AGAINST_PLAIN)):
        growth, few, many, name = max(
            (cost[name, many] / max(cost[name, few], cost[PLAIN, few]), few, many, name)
            for name in names
            for few, many in pairs
        )
        print(f"  {what} in one of {many:,} bytes and of {few:,}: {growth:.2f} times ({name}); {_verdict(growth, most)}")
        met &= growth <= most
    print(flush=True)
    return met


def _verdict(found: float, most: float) -> str:
    return f"at most {most:.1f}: {'met' if found <= most else 'MISSED'}"


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.hostile_messages", description=__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    found = [report(title, measure(works, given.sizes, given.rounds), given.sizes) for title, works in candidates().items()]
    return int(not all(found))


if __name__ == "__main__":
    sys.exit(main())
