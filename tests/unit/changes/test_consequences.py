"""Each setting has its consequence, in the code and in docs/upgrading.md."""

from __future__ import annotations

import pytest

from include.config.setting_changes import Change, setting_values
from spark_jobs.changes.consequences import CONSEQUENCES, NEVER, consequence_of
from tests.helpers.timeline import CALLS, ROOT
from tests.unit.test_docs import accepted_keys, table_rows

PAGE = ROOT / "docs" / "upgrading.md"


def test_every_setting_has_one():
    assert set(CONSEQUENCES) == accepted_keys() == set(setting_values(CALLS))


def test_those_that_may_never_change_are_the_identity():
    refused = {
        "left.payload",
        "left.compounds",
        "right.payload",
        "right.compounds",
        "output.topic",
        "output.key",
        "key",
        "key_order",
    }
    assert {key for key, known in CONSEQUENCES.items() if known.since == NEVER} == refused


def test_the_page_has_them():
    text = PAGE.read_text().partition("<!-- consequences -->")[2].partition("\n\nTopics may")[0]
    listed = {row[0]: (row[1], row[2]) for row in table_rows(text)}
    expected = {
        f"`{key}`": (known.since, f"larger: {known.larger}; smaller: {known.smaller}" if known.smaller else known.larger)
        for key, known in CONSEQUENCES.items()
    }
    assert listed == expected


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (Change("gap", "60s", "2m"), "open sessions join"),
        (Change("gap", "2m", "119s"), "open sessions are cut"),
        (Change("grace", "3m", "0s"), "open sessions close earlier"),
        (Change("matching", "collapse", "one_to_one"), "open sessions are decided"),
    ],
    ids=str,
)
def test_the_sentence_is_that_of_the_direction(change, begins):
    assert consequence_of(change).startswith(begins)
