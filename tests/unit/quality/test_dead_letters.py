"""What reconcile says of dead letters, by what is due and what is there."""

from __future__ import annotations

import pytest

from spark_jobs.quality.checks import Finding
from spark_jobs.quality.dead_letters import _offences


@pytest.mark.parametrize(
    ("due", "found", "offences"),
    [
        ({5: 2}, {5: (2, 2)}, []),
        ({5: 2}, {}, [(Finding.LETTERS_OTHERWISE, "batch 5: 2 dead letters were due, 0 are there")]),
        ({5: 2}, {5: (3, 2)}, [(Finding.LETTERS_TWICE, "batch 5: 3 dead letters of 2 records")]),
        # A batch that publishing refuses to call published, or a void one, may have any number, but each once.
        ({5: 2}, {5: (2, 2), 6: (1, 1)}, []),
        ({5: 2}, {5: (2, 2), 6: (4, 2)}, [(Finding.LETTERS_TWICE, "batch 6: 4 dead letters of 2 records")]),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_of_published_batches_and_what_is_there_twice_of_all(due, found, offences):
    assert list(_offences(due, found)) == offences
