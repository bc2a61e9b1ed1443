"""1.0 goes on with what this version wrote, in the middle of its work, and this version goes on after that (docs/upgrading.md, Downgrade).

1.0 runs by its own code (tests/helpers/version_1_0.py).
"""

from __future__ import annotations

from collections import Counter

import pytest

from spark_jobs import land_events, pair_events, reconcile
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import LANDED, PAIRED, PUBLISHED, REPORTED
from spark_jobs.tables.schemas import COMPOUNDS, OPEN, REJECTED
from tests.helpers.all_stages import land, run_all
from tests.helpers.comparing import records, rows
from tests.helpers.job_processes import JOBS
from tests.helpers.reading import consume, table_rows
from tests.helpers.stream_clock import consumed
from tests.helpers.two_warehouses import both_at
from tests.helpers.version_1_0 import version_1_0
from tests.integration.test_publishing import publish_only

pytestmark = [pytest.mark.integration, pytest.mark.long]


def steps(warehouse, batch_id):
    return {row.step for row in Ledger(warehouse).rows(batch_id, batch_id)}


@pytest.fixture
def both(spark, broker, tmp_path, monkeypatch):
    return both_at(str(tmp_path / "mine"), "downgrade", spark, broker, tmp_path, monkeypatch)


@pytest.fixture
def older(both, tmp_path):
    with version_1_0(tmp_path, both.file, both.stored.root, both.bootstrap) as jobs:
        yield jobs


def test_1_0_goes_on_with_tables_of_this_version_and_this_version_after_it(both, older, broker):
    """The other pipeline of the same topics is never left to 1.0: in the end both have the same rows and messages."""
    mine, undisturbed = both.stored, both.foldered

    both.portions.send()
    both.run(run_all)
    # One that is half sent, one that is landed.
    both.portions.send()
    both.run(land, pair_events.main)
    publish_only(mine, 0)
    both.portions.send()
    both.run(land)
    assert (steps(mine, 2) & {PAIRED, PUBLISHED}, steps(mine, 3) & {LANDED, PAIRED}) == ({PAIRED}, {LANDED})

    both.portions.send()
    older.work(*JOBS)
    run_all(undisturbed)
    assert_equal(both)
    assert all(steps(mine, batch) >= {PUBLISHED, REPORTED} for batch in (2, 3, 4))
    older.work("reconcile", "maintain_tables")

    # 1.0 leaves a batch half done in its turn.
    both.portions.send()
    older.work("land_events", "pair_events")
    land(undisturbed)
    both.portions.send()
    both.run(run_all)
    assert_equal(both)
    assert reconcile.main(mine).offenders == []

    # Back by 1.0 to a batch that this version wrote.
    done = older.run("rewind", "--to-batch=1", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    before = consumed(undisturbed, broker)
    older.work(*JOBS)
    assert consumed(mine, broker) == before
    assert land_events.main(mine, 1_000_000, ())["batch_id"] > 7
    assert reconcile.main(mine).offenders == []


def assert_equal(both):
    for table in (COMPOUNDS, OPEN, REJECTED):
        assert rows(both.stored.root, both.stored.pipeline, table) == rows(both.foldered.root, both.foldered.pipeline, table)
    ours, theirs = (records(both.bootstrap, each.pipeline.output_topic) for each in (both.stored, both.foldered))
    assert {number: Counter(map(str, found)) for number, found in ours.items()} == {
        number: Counter(map(str, found)) for number, found in theirs.items()
    }
    sent = Counter(
        (each["pair-id"], each["revision"]) for each in consume(both.bootstrap, both.stored.pipeline.output_topic)
    )
    made = Counter((row["pair_id"], str(row["revision"])) for row in table_rows(both.stored, COMPOUNDS))
    assert sent == made and set(made.values()) == {1}
