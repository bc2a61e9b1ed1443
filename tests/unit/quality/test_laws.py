"""Totals over batches: what is carried, and what breaks the law over them."""

from __future__ import annotations

from spark_jobs.quality.laws import totals


def batch(before, accepted, out, after):
    """The same on both sides."""
    numbers = {"open_before": before, "accepted": accepted, "out": out, "open_after": after}
    return {f"{name}_{side}": float(number) for name, number in numbers.items() for side in ("left", "right")}


def broken(metrics):
    return [metrics[f"cumulative_difference_{side}"] for side in ("left", "right")]


def test_totals_begin_with_what_was_open():
    first = totals(batch(3, 10, 9, 4), {}, 7)
    assert (first["total_since"], first["total_in_left"], first["total_out_right"], broken(first)) == (7, 13, 9, [0, 0])
    second = totals(batch(4, 5, 9, 0), first, 8)
    assert (second["total_since"], second["total_in_left"], second["total_out_right"], broken(second)) == (7, 18, 18, [0, 0])


def test_open_events_that_went_between_two_batches_break_it_once():
    first = totals(batch(0, 10, 6, 4), {}, 1)
    # Two of the four are gone, so the batch's own law holds.
    second = totals(batch(2, 5, 7, 0), first, 2)
    assert broken(second) == [2, 2]
    third = totals(batch(0, 5, 5, 0), second, 3)
    assert (third["total_since"], broken(third)) == (3, [0, 0])


def test_a_row_of_an_earlier_version_begins_nothing():
    assert totals(batch(2, 1, 3, 0), {"pairing_difference": 0.0}, 9)["total_since"] == 9
