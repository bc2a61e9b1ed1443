"""Which fields are times, in which unit, and which is the time of the event."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from spark_jobs.joining.documents import read_documents
from spark_jobs.joining.fields import find_fields
from spark_jobs.joining.times import find_times, is_loaded
from tests.helpers.worlds import NOW, Sent, iso, sample


def times(*fields: Any, moved: int = 0) -> list[tuple[str, str | None, str | None]]:
    """Source, format and zone of what is found; `fields`: functions from the time of an event to the field's value."""
    rng = random.Random(1)
    moments = [NOW + rng.randrange(600_000) for _ in range(60)]
    values = [{f"f{number}": field(at) for number, field in enumerate(fields)} for at in moments]
    documents = read_documents(sample("t", [Sent(value, at + 500) for value, at in zip(values, moments, strict=True)]), None)
    return [(time.source, time.format, time.zone) for time in find_times(documents, find_fields(documents))]


def written(pattern: str) -> Callable[[int], str]:
    """Thirteen days later than the events of the tests, so that no month has the number of the day."""
    return lambda at: datetime.fromtimestamp(at / 1000 + 13 * 86_400, UTC).strftime(pattern)


@pytest.mark.parametrize(
    ("field", "form", "zone"),
    [
        (lambda at: at // 1000, "epoch_s", None),
        (lambda at: at / 1000, "epoch_s", None),
        (lambda at: at, "epoch_ms", None),
        (lambda at: str(at), "epoch_ms", None),
        (lambda at: at * 1000 + 7, "epoch_us", None),
        (lambda at: at * 1_000_000 + 7, "epoch_ns", None),
        (iso, "iso8601", None),
        (lambda at: iso(at).replace("Z", "+00:00"), "iso8601", None),
        (lambda at: iso(at).removesuffix("Z").replace("T", " "), "iso8601", "UTC"),
        (written("%d/%b/%Y:%H:%M:%S %z"), "%d/%b/%Y:%H:%M:%S %z", None),
        (written("%a, %d %b %Y %H:%M:%S GMT"), "%a, %d %b %Y %H:%M:%S GMT", "UTC"),
        (written("%d.%m.%Y %H:%M:%S"), "%d.%m.%Y %H:%M:%S", "UTC"),
        (written("%Y/%m/%d %H:%M:%S.%f"), "%Y/%m/%d %H:%M:%S.%f", "UTC"),
        (written("%Y%m%d%H%M%S"), "%Y%m%d%H%M%S", "UTC"),
        (written("%m/%d/%Y %I:%M:%S %p"), "%m/%d/%Y %I:%M:%S %p", "UTC"),
        (written("%d-%m-%Y %H:%M:%S %z"), "%d-%m-%Y %H:%M:%S %z", None),
    ],
)
def test_units_and_formats(field, form, zone):
    assert set(times(field)) == {("f0", form, zone), ("$timestamp", None, None)}


@pytest.mark.parametrize(
    "field",
    [
        lambda at: at % 100_000,
        lambda at: "2025-12-31T10:00:00Z",
        lambda at: "2025-12-31",
        lambda at: f"x{at}",
        lambda at: -at,
    ],
)
def test_what_is_no_time_of_an_event(field):
    assert times(field) == [("$timestamp", None, None)]


def test_the_time_nearest_to_the_records_is_first_and_those_of_another_day_are_behind():
    found = times(lambda at: at - 90_000, lambda at: at, lambda at: iso(at - 40 * 86_400_000))
    assert [source for source, _, _ in found] == ["f1", "f0", "$timestamp", "f2"]


def test_records_that_were_written_at_once():
    rng = random.Random(1)
    moments = [NOW - rng.randrange(1_800_000) for _ in range(60)]
    for written, loaded in (
        (lambda at: at + 900, False),
        (lambda at: NOW + at % 1000, True),
        (lambda at: at + 9_000_000, True),
    ):
        documents = read_documents(sample("t", [Sent({"at": at}, written(at)) for at in moments]), None)
        time, *_ = find_times(documents, find_fields(documents))
        assert (time.source, is_loaded(time, documents.stamps)) == ("at", loaded)


@pytest.mark.parametrize(("day", "month"), [("%d/%m", "%m/%d"), ("%m-%d", "%d-%m")])
def test_where_day_and_month_could_be_either_the_reading_nearer_to_the_records_is_taken_and_the_other_named(day, month):
    """The second of January, or the first of February."""
    form, other = (f"{each}{each[2]}%Y %H:%M:%S" for each in (day, month))
    moments = [NOW + 86_400_000 + number * 1_000 for number in range(60)]
    texts = [datetime.fromtimestamp(at / 1000, UTC).strftime(form) for at in moments]
    documents = read_documents(
        sample("t", [Sent({"at": text}, at + 500) for text, at in zip(texts, moments, strict=True)]), None
    )
    time, *_ = find_times(documents, find_fields(documents))
    assert (time.source, time.format, time.or_format) == ("at", form, other)
