"""The number of the format: what it covers, and what a table of a newer one says.

tests/integration/test_tables_of_1_0.py holds the columns against those of 1.0: a table with others is not read.
"""

from __future__ import annotations

import tomllib
from dataclasses import fields

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructType

from include.config.project import VERSION
from include.config.store import Store
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.kafka.positions import Position
from spark_jobs.tables import delta_log
from spark_jobs.tables.ledger_rows import _COUNTS, _IN_ORDER, OffsetRange
from spark_jobs.tables.schemas import LEDGER
from spark_jobs.tables.table_format import FORMAT, MARK
from tests.helpers.timeline import ROOT

# What readers of format 1 understand. Whoever adds to format 2 writes format 3.
COUNTS_OF_FORMAT_1 = {
    "landed": "planned landed offset_gaps lost backlog accepted landed_left accepted_left landed_right accepted_right filtered "
    "unknown_schema undecodable malformed_json missing_key bad_timestamp future bad_header gone_at_start held held_since",
    "paired": "open_before accepted compounds rejected pair left_only right_only duplicate late collapsed open_after new changed "
    "retracted unchanged",
    "published": "compounds refused withdrawn",
    "reported": "failed_checks first_of_report",
    "removed_raw": "removed removed_ever first_batch removed_until late_given_up",
    "removed_ledger": "removed removed_ever first_batch removed_until late_given_up batches corrections compounds published landed accepted "
    "offset_gaps lost rejected pair left_only right_only duplicate late collapsed",
}
STEPS_OF_FORMAT_1 = "planned landed paired publishing published_orphans published reported removed_raw removed_rejected removed_compounds removed_ledger"


# Written by erasures, and where there is a rejected topic: both mark the ledger first.
SINCE_FORMAT_2 = {"paired": " erased erased_landed"}
STEPS_OF_FORMAT_2 = {"published_rejected": "dead_letters refused", "erased": None}
# Written by pipelines with `compounds` alone: versions that do not know the setting refuse the file, and the columns of its tables.
OF_CHAINS = {"landed": " retraction not_compound revised", "paired": " superseded", "removed_ledger": " superseded"}


def test_counts_steps_ranges_and_positions_are_those_of_1_0_but_for_erasures_and_dead_letters():
    assert FORMAT == 2
    counts = {
        step: names + SINCE_FORMAT_2.get(step, "") + OF_CHAINS.get(step, "") for step, names in COUNTS_OF_FORMAT_1.items()
    }
    assert {step: " ".join(each.name for each in fields(_COUNTS[step])) for step in counts} == counts
    assert [step for step in _IN_ORDER if step not in STEPS_OF_FORMAT_2] == STEPS_OF_FORMAT_1.split()
    assert set(_IN_ORDER) == {*STEPS_OF_FORMAT_1.split(), *STEPS_OF_FORMAT_2}
    assert " ".join(each.name for each in fields(_COUNTS["published_rejected"])) == STEPS_OF_FORMAT_2["published_rejected"]
    assert (
        " ".join(OffsetRange._fields)
        == "topic partition from_offset until_offset end_offset max_ts lost began cut_from cut epoch"
    )
    assert Position(7, "a1", 4, "Xy", {6: 20, 7: 5}, {7: 1000}).metadata() == "a1 4 Xy 6:20 7:5<1000"


def test_the_version_is_that_of_the_project():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


@pytest.fixture
def ledger(tmp_path) -> Store:
    place = Store(str(tmp_path / "calls" / LEDGER))
    delta_log.create(place, StructType().add("batch_id", LongType()), {})
    return place


def test_a_created_table_has_the_mark(ledger):
    assert MARK.items() <= DeltaTable(ledger.uri).metadata().configuration.items()
    assert delta_log.newest_table(ledger).version() == 0


@pytest.mark.parametrize("found", [str(FORMAT + 1), "1.5"])
def test_a_newer_format_is_refused_with_versions_and_remedy(ledger, found):
    newer = {"eventPairing.format": found, "eventPairing.version": "9.1.0"}
    DeltaTable(ledger.uri).alter.set_table_properties(newer, raise_if_not_exists=False)
    line = (
        f"{ledger.uri} has format {found}, written by version 9.1.0; this is version {VERSION}, which reads formats up to {FORMAT}: run version "
        "9.1.0 or a later one, or put all tables of the pipeline back from a backup made before the upgrade"
    )
    # Also where the process has the table open at the version before.
    for _ in range(2):
        with pytest.raises(NeedsOperator) as refused:
            delta_log.newest_table(ledger)
        assert str(refused.value) == line
