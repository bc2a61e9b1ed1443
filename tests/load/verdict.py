"""The laws of a load: what is judged, over which seconds, with which tolerance; and the picture of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from include.local.airflow import PARTS
from tests.load.laws import Law, Series, as_predicted, bounded, equal, flat
from tests.load.phases import LEAST_SENT, RECOVER_S, RUN_LAG, SEARCH_BEST
from tests.load.picture import Mark, Panel, picture
from tests.load.samples import ROLES, WORKERS, Sample, disk, handles, lag, memory, rate_of, sent
from tests.load.seen import Run, Seen

# Growth that is allowed over the judged time: a share of the mean, or so much where that is more.
LAG_GROWTH, LAG_LEAST = 0.25, 0.25  # minutes
TIME_GROWTH, TIME_LEAST = 0.20, 5.0  # seconds
MEMORY_GROWTH, MEMORY_LEAST = 0.10, 32.0  # MB
HANDLE_GROWTH, HANDLE_LEAST = 0.10, 8.0
# The disk at the end by its growth in the first part, and how far off that may be.
PREDICTED_BY, DISK_WITHIN = 0.4, 0.10
# Of the run, at most ten minutes: what the search has not warmed.
WARM_UP, WARM_UP_S = 0.2, 600.0
MARKS = {"maintenance": "unread", "replay": "clock", "backfill": "wall"}


class Judged(NamedTuple):
    """The run without its first part; `rate`: records a second that were to be sent. `runs`, `live`: those of the whole run that have ended."""

    samples: list[Sample]
    runs: list[Run]
    live: list[Run]
    begin: float
    end: float
    rate: float


def judged(seen: Seen, begin: float, end: float) -> Judged:
    """What is judged of a run from `begin` to `end`, seconds of the watch."""
    warm = begin + min(WARM_UP * (end - begin), WARM_UP_S)
    runs, live = (ended(each, begin, end) for each in (seen.runs.values(), seen.live_runs()))
    return Judged(seen.since(warm, end), runs, live, warm, end, seen.rate)


def ended(runs: Iterable[Run], begin: float, end: float = float("inf")) -> list[Run]:
    """Those that began and ended in these seconds."""
    return [run for run in runs if run.ended is not None and (run.began or 0.0) >= begin and run.ended <= end]


def laws(run: Judged, seen: Seen) -> list[Law]:
    """The laws that need no counting."""
    return [_rate(run), *_lag(run), *_runs(run), *_sizes(run), *_disk(run), *_recovery(seen)]


def _rate(run: Judged) -> Law:
    wanted = f"at least {LEAST_SENT:.0%} of {run.rate:,.0f} records/s".replace("%", " %")
    rate = rate_of(sent(run.samples))
    return Law("sent", wanted, f"{rate:,.0f} records/s", rate >= LEAST_SENT * run.rate)


def _lag(run: Judged) -> list[Law]:
    unread = lag(run.samples, run.rate)
    name = "lag, in minutes of traffic"
    return [bounded(name, unread, "min", RUN_LAG), flat(f"{name}, by a line", unread, "min", LAG_GROWTH, LAG_LEAST)]


def _runs(run: Judged) -> list[Law]:
    failed = [each for each in run.runs if each.state != "success"]
    kinds = Counter(each.dag_id for each in run.runs)
    counted = ", ".join(f"{count} of {dag_id}" for dag_id, count in sorted(kinds.items()))
    warm = run_times(each for each in run.live if (each.began or 0.0) >= run.begin)
    return [
        Law(
            "runs",
            "none fails",
            f"{len(failed)} of {len(run.runs)} failed ({counted or 'none has ended'})",
            not failed if run.runs else None,
        ),
        flat("time of a live run", warm, "s", TIME_GROWTH, TIME_LEAST),
    ]


def run_times(runs: Iterable[Run]) -> Series:
    """(second of its end, seconds it took) of each."""
    return [(each.ended or 0.0, each.seconds or 0.0) for each in runs]


def _sizes(run: Judged) -> list[Law]:
    of_workers = [(each.at, float(each.sizes[WORKERS].processes)) for each in run.samples]
    return [
        *(flat(f"memory: {role}", memory(run.samples, role), "MB", MEMORY_GROWTH, MEMORY_LEAST) for role in ROLES),
        *(flat(f"file handles: {role}", handles(run.samples, role), "", HANDLE_GROWTH, HANDLE_LEAST) for role in ROLES),
        flat(f"processes: {WORKERS}", of_workers, "", 0.0, 1.0),
    ]


def _disk(run: Judged) -> list[Law]:
    return [as_predicted(f"disk: {name}", series, PREDICTED_BY, DISK_WITHIN) for name, series in disk(run.samples).items()]


def _recovery(seen: Seen) -> list[Law]:
    if not seen.kills:
        return []
    lost = [kill.what for kill in seen.kills if kill.recovered is None]
    slowest = max(kill.recovered or 0.0 for kill in seen.kills)
    measured = f"{len(seen.kills)} kills, the slowest {slowest:.0f} s" + (f"; not after: {', '.join(lost)}" if lost else "")
    return [
        Law("after each kill -9", f"a later run succeeds within {RECOVER_S:.0f} s", measured, not lost),
        Law(
            "lag after the last kill",
            f"at most {SEARCH_BEST:g} min within {RECOVER_S:.0f} s",
            "yes" if seen.came_back else "no",
            seen.came_back,
        ),
    ]


def counted(sent: int, landed: int, wanted: int, published: int, differences: int) -> list[Law]:
    """The laws of the counts."""
    return [
        equal("landed = sent", sent, landed),
        equal("compounds on the topic = truth", wanted, published),
        equal("differences to the truth, message by message", 0, differences),
    ]


def drawn(seen: Seen, run: Judged, begin: float) -> str:
    """The picture of the run and of the kills after it."""
    samples = seen.since(begin)
    airflow: Series = [(each.at, sum(each.sizes[part].memory for part in PARTS) / 1e6) for each in samples]
    of_roles = {role: memory(samples, role) for role in ("Spark server", WORKERS, "broker")}
    places: dict[str, Series] = {
        "tables": [(each.at, each.warehouse / 1e9) for each in samples],
        "broker": [(each.at, each.broker / 1e9) for each in samples],
    }
    panels = [
        Panel("Lag", "minutes of traffic unread", {"lag": lag(samples, run.rate)}, RUN_LAG),
        Panel("Time of a live run", "s", {"time": run_times(ended(seen.live_runs(), begin))}),
        Panel("Memory", "MB", {**of_roles, "Airflow": airflow}),
        Panel("Disk", "GB", places),
    ]
    marks = [Mark(at, what, MARKS[what]) for at, what in seen.beside]
    marks += [Mark(each.at, "kill -9", "cross", True) for each in seen.kills]
    title = f"{run.rate:,.0f} records a second for {(run.end - begin) / 60:.0f} minutes"
    worst = max((minutes for _, minutes in lag(run.samples, run.rate)), default=0.0)
    description = f"Lag (at most {worst:.1f} minutes of traffic before the kills), time of each live run, memory and disk, by the minute."
    return picture(title, description, panels, marks, begin, samples[-1].at)
