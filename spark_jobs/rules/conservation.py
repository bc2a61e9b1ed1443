"""The conservation law of a batch: every event that went in is counted once on the way out, tolerance 0."""

from __future__ import annotations

from collections.abc import Mapping

from spark_jobs.rules.outcomes import Outcome


class BrokenInvariant(RuntimeError):
    """Events would be lost or doubled; nothing may be committed, and a retry does not help."""


def check_conservation(open_before: int, accepted: int, outcomes: Mapping[str, int]) -> None:
    """Raises BrokenInvariant if the events that went in are not those that came out; `outcomes` counts rows by `Outcome` (absent: 0).

    open before + accepted = matched x 2 + left_only + right_only + collapsed + superseded + duplicate + late + open after

    >>> check_conservation(1, 4, {"pair": 2, "open": 1})
    >>> check_conservation(1, 4, {"pair": 2})
    Traceback (most recent call last):
    spark_jobs.rules.conservation.BrokenInvariant: conservation broken: 1 open before + 4 accepted = 5 events in, but \
4 out (pair 2 x 2, left_only 0, right_only 0, open 0, duplicate 0, late 0, collapsed 0, superseded 0)
    """
    counted = {outcome: outcomes.get(outcome, 0) for outcome in Outcome}
    events_out = sum(counted.values()) + counted[Outcome.PAIR]
    if open_before + accepted != events_out:
        listed = ", ".join(f"{each} {rows}{' x 2' if each is Outcome.PAIR else ''}" for each, rows in counted.items())
        raise BrokenInvariant(
            f"conservation broken: {open_before} open before + {accepted} accepted = {open_before + accepted} events in, "
            f"but {events_out} out ({listed})"
        )
