"""Which time a page says an event has."""

from __future__ import annotations

from types import SimpleNamespace

from spark_jobs.quality.offenders import Offender, with_times
from tests.helpers.timeline import CALLS


def test_the_time_of_an_event_is_its_own_whatever_is_looked_up_beside_it():
    late, lacks_a_key, alone = (
        Offender(2, "late", CALLS.left.topic, 0, 17, None, 5),
        Offender(2, "missing_key", CALLS.left.topic, 1, 17, None, 5),
        Offender(2, "left_only", CALLS.left.topic, 2, 17, 7),
    )

    def landed(table, columns, where):
        # All with such an offset in such a batch are found.
        return [
            {"batch_id": 2, "ts": 3, "topic": CALLS.left.topic, "partition": number, "offset": 17} for number in range(3)
        ]

    warehouse = SimpleNamespace(pipeline=CALLS, select_rows=landed)
    assert [each.ts for each in with_times(warehouse, [late, lacks_a_key, alone])] == [3, None, 7]
    assert with_times(warehouse, [lacks_a_key, alone]) == [lacks_a_key, alone]
