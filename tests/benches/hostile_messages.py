"""Bodies made to be expensive, against an ordinary one of the same size (`make bench-hostile-messages`).

    python -m tests.benches.hostile_messages [--sizes 10000 100000 1000000 10000000] [--rounds 5]

Each family (tests/hostile_texts.py) at each size, by the parser of one message and by the one of columns, which is given a megabyte of
such messages, or one. All take turns; medians of the rounds, of CPU time, for the machine may have other work. The plain message is
accepted, and its payload is a list of objects: an ordinary one. Beside it, not judged, one whose payload is a single string, which
nothing has to look into. Exit 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from spark_jobs.pairing.parsing import BodyFields, message_parser
from spark_jobs.pairing.parsing_in_bulk import parse_columns
from tests.benches.measuring import ROUNDS
from tests.hostile_texts import FAMILIES, plain

SIZES = [10_000, 100_000, 1_000_000, 10_000_000]
MOST, GROWTH = 5.0, 2.0
# Less is not measured: so many bytes are parsed each time.
_AT_LEAST = 1_000_000
_FIELDS = BodyFields(("user1", "user2"), "timestamp", "metrics")
PLAIN, STRING = "plain", "one long string, valid"
_parse = message_parser(_FIELDS, 2_000)

# Seconds per MB, by family and size.
Figures = dict[tuple[str, int], float]


def _one_by_one(values: list[bytes]) -> None:
    for value in values:
        _parse(value, 9)


def _in_columns(values: list[bytes]) -> None:
    parse_columns(values, [9] * len(values), _FIELDS, 2_000)


def measure(run: Callable[[list[bytes]], None], sizes: list[int], rounds: int) -> Figures:
    """The median of the rounds of each family and of the plain message at each size."""
    figures: Figures = {}
    for size in sizes:
        families = {PLAIN: plain} | FAMILIES
        values = {name: [family(size)] * max(1, _AT_LEAST // size) for name, family in families.items()}
        seconds: dict[str, list[float]] = {name: [] for name in families}
        # The first round finds memory that was never used.
        for number in range(rounds + 1):
            for name, messages in values.items():
                begin = time.process_time()
                run(messages)
                taken = time.process_time() - begin
                if number:
                    seconds[name].append(taken / sum(map(len, messages)) * 1e6)
        figures |= {(name, size): statistics.median(each) for name, each in seconds.items()}
    return figures


def report(title: str, figures: Figures, sizes: list[int]) -> bool:
    """Prints a line a family and the verdicts; gives whether they are met."""
    names = list(dict.fromkeys(name for name, _ in figures))
    print(f"{title}: ms per MB, and how often as long as the plain message of that size")
    print(" " * 42 + "".join(f"{size:>22,}" for size in sizes))
    for name in names:
        columns = [
            f"{1e3 * figures[name, size]:>14.2f} {figures[name, size] / figures[PLAIN, size]:>6.2f}x" for size in sizes
        ]
        print(f"  {name:40}" + "".join(columns))
    met = True
    for beside, most in ((PLAIN, MOST), (STRING, None)):
        worst, at, name = max((figures[name, size] / figures[beside, size], size, name) for name in names for size in sizes)
        verdict = "not judged" if most is None else f"at most {most:.1f}: {'met' if worst <= most else 'MISSED'}"
        print(f"  worst against {beside}: {worst:.2f} ({name}, {at:,} bytes); {verdict}")
        met &= most is None or worst <= most
    few, many = (min(sizes, key=lambda size: abs(size - wanted)) for wanted in (100_000, 10_000_000))
    # Of what takes less than half of a plain message, most is the memory that the system hands out: it is held against that half.
    least = figures[PLAIN, few] / 2
    growth, name = max((figures[name, many] / max(figures[name, few], least), name) for name in names)
    flat = "met" if growth <= GROWTH else "MISSED"
    print(
        f"  a MB in one of {many:,} bytes against {few:,}: {growth:.2f} times ({name}); at most {GROWTH:.1f}: {flat}\n",
        flush=True,
    )
    return met and growth <= GROWTH


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.benches.hostile_messages", description=__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    given = arguments.parse_args()
    ways = {"one by one (message_parser)": _one_by_one, "in columns (parse_columns)": _in_columns}
    return int(not all([report(title, measure(run, given.sizes, given.rounds), given.sizes) for title, run in ways.items()]))


if __name__ == "__main__":
    sys.exit(main())
