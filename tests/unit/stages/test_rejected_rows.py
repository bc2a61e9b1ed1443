"""Which raw rows are rejected and why: those of the batch with a problem, and those that pairing refused, whichever batch landed them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.config.store import Store
from spark_jobs.rules.reasons import AT_PAIRING
from spark_jobs.rules.rules import LEFT, RIGHT
from spark_jobs.rules.side_topics import MOST_PARTITIONS, SideTopics
from spark_jobs.stages import outcome_rows as rejected
from spark_jobs.stages.outcome_rows import (
    _PLACES,
    REASONS,
    REFUSED,
    _by_partition,
    _places_by_share,
    _reasons,
    _writing_stage,
)
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.parquet_files import FilePlace
from spark_jobs.tables.read_files import Share
from tests.helpers.table_in_a_folder import written

PLACE = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("record_timestamp", pa.int64())]
BYTES = [("key", pa.binary()), ("value", pa.binary())]
RAW = pa.schema([*PLACE, *BYTES, ("payload", pa.string()), ("problem", pa.string()), ("batch_id", pa.int64())])
DECLARED = pa.schema([("reason", pa.string()), *PLACE, *BYTES, ("batch_id", pa.int64())])
BATCH = 7
LATE, DUPLICATE = REASONS.index("late"), REASONS.index("duplicate")


def raw(partition, offset, batch_id=BATCH, problem=None):
    place = {"topic": "t", "partition": partition, "offset": offset, "record_timestamp": offset * 10}
    value = f"{partition}-{offset}".encode()
    return place | {"key": None, "value": value, "payload": "p", "problem": problem, "batch_id": batch_id}


def refused_rows(*rows):
    """`side`, `partition`, `offset`, `reason`, `landed_in` each."""
    return pa.Table.from_pylist([dict(zip(REFUSED.names, row, strict=True)) for row in rows], schema=REFUSED)


def known(*rows):
    return _by_partition(np.sort(np.array(list(rows), _PLACES), order=("partition", "offset")))


def rejected_of(folder, groups, refused):
    """What the stage writes of one file with these row groups, as partition, offset, reason and value, sorted."""
    store, place = Store(f"{folder}/raw").made(), FilePlace(Store(f"{folder}/rejected").made(), DECLARED)
    new = written(store, *(pa.RecordBatch.from_pylist(rows, schema=RAW) for rows in groups))
    if new is None:
        return []
    numbers = [row["offset"] for rows in groups for row in rows]
    work = [(LEFT, Share((DataFile(new.name, new.size, len(numbers), min(numbers), max(numbers)),)))]
    given_rows = pa.record_batch([pa.array([0]), pa.array(_places_by_share(work, refused), pa.binary())], ["id", "places"])
    answers = [
        row
        for each in _writing_stage({LEFT: store}, work, SideTopics(("t",), ("u",)), place, BATCH)([given_rows])
        for row in each.to_pylist()
    ]
    found = [row for each in answers for row in pq.read_table(f"{place.store.uri}/{each['name']}").to_pylist()]
    assert all(row["batch_id"] == BATCH and row["topic"] == "t" for row in found)
    assert all(row["value"] == f"{row['partition']}-{row['offset']}".encode() for row in found)
    assert all(row["record_timestamp"] == row["offset"] * 10 for row in found)
    return sorted((row["partition"], row["offset"], row["reason"]) for row in found)


# The look-up


@pytest.mark.parametrize(
    ("places", "rows", "reasons"),
    [
        ([], [(0, 1)], [None]),
        ([(0, 5, 0)], [], []),
        ([(0, 5, 0)], [(0, 4), (0, 5), (0, 6), (1, 5)], [None, 0, None, None]),
        ([(0, 5, 0), (0, 9, 1)], [(0, 9), (0, 5), (0, 7), (0, 10), (0, 0)], [1, 0, None, None, None]),
        # The same offsets in two partitions, for two reasons; rows in no order.
        ([(0, 5, 0), (1, 5, 1), (1, 6, 0)], [(1, 6), (0, 5), (2, 5), (1, 5), (0, 6)], [0, 0, None, 1, None]),
        ([(0, 0, 1), (0, 2**59, 0)], [(0, 2**59), (0, 0), (0, 2**59 + 1)], [0, 1, None]),
        ([(2**31 - 1, 3, 1)], [(2**31 - 1, 3), (0, 3)], [1, None]),
    ],
)
def test_a_row_has_the_reason_of_its_very_place(places, rows, reasons):
    batch = pa.RecordBatch.from_pylist([raw(*row) for row in rows], schema=RAW)
    assert _reasons(batch, ("t",), known(*places)).to_pylist() == [
        None if each is None else REASONS[each] for each in reasons
    ]


def test_the_same_place_of_another_topic_is_another_row():
    batch = pa.RecordBatch.from_pylist([raw(0, 5) | {"topic": topic} for topic in "cab"], schema=RAW)
    refused = known((MOST_PARTITIONS, 5, 1))
    assert _reasons(batch, ("a", "b", "c"), refused).to_pylist() == [None, None, REASONS[1]]


numbers = st.integers(0, 12)
places = st.dictionaries(st.tuples(st.integers(0, 3), numbers), st.integers(0, len(REASONS) - 1), max_size=20)


@settings(max_examples=300, deadline=None)
@given(places, st.lists(st.tuples(st.integers(0, 3), numbers), max_size=30))
def test_reasons_are_those_of_a_dictionary(drawn, rows):
    batch = pa.RecordBatch.from_pylist([raw(*row) for row in rows], schema=RAW)
    wanted = [REASONS[drawn[row]] if row in drawn else None for row in rows]
    assert _reasons(batch, ("t",), known(*((*place, reason) for place, reason in drawn.items()))).to_pylist() == wanted


def test_a_reason_is_known_by_its_number():
    assert tuple(map(str, AT_PAIRING)) == REASONS and len(set(REASONS)) == len(REASONS) < 128
    assert np.iinfo(_PLACES["reason"]).max == 127


# Which events a task looks for


def sent(work, refused):
    return [[tuple(map(int, place)) for place in np.frombuffer(each, _PLACES)] for each in _places_by_share(work, refused)]


def file_of(first, last):
    return DataFile(f"{first}-{last}", 1, 1, first, last)


def test_a_task_gets_the_refused_events_that_its_files_can_have_in_order():
    refused = refused_rows(
        (LEFT, 1, 9, 0, 7),
        (LEFT, 0, 9, 1, 7),
        (RIGHT, 0, 9, 0, 7),
        (LEFT, 1, 2, 0, 3),
        (LEFT, 0, 20, 0, 7),
        (LEFT, 0, 1, 0, 7),
    )
    shares = [
        (LEFT, (file_of(2, 9),)),
        (RIGHT, (file_of(2, 9),)),
        (RIGHT, (file_of(10, 20),)),
        (LEFT, (file_of(2, 3), file_of(19, 20))),
        (LEFT, (file_of(9, 9), file_of(None, None))),
    ]
    found = sent([(side, Share(files)) for side, files in shares], refused)
    assert found == [
        [(0, 9, 1), (1, 2, 0), (1, 9, 0)],
        [(0, 9, 0)],
        [],
        [(0, 9, 1), (0, 20, 0), (1, 2, 0), (1, 9, 0)],
        [(0, 1, 0), (0, 9, 1), (0, 20, 0), (1, 2, 0), (1, 9, 0)],
    ]
    assert sent([(LEFT, Share((file_of(0, 9),)))], refused_rows()) == [[]]


# What is written


def test_problems_of_the_batch_and_refused_events_are_written_with_their_bytes(tmp_path):
    groups = [
        # Landed earlier: its own problem was rejected by its own batch.
        [raw(0, 1, 5, "no_key"), raw(0, 2, 5), raw(1, 2, 5), raw(0, 3, 5)],
        [raw(0, 4, BATCH, "no_key"), raw(0, 5), raw(1, 4), raw(1, 5, BATCH, "bad_json"), raw(0, 6)],
    ]
    refused = refused_rows((LEFT, 0, 2, LATE, 5), (LEFT, 1, 4, DUPLICATE, BATCH), (RIGHT, 0, 6, LATE, BATCH))
    assert rejected_of(tmp_path, groups, refused) == [
        (0, 2, REASONS[LATE]), (0, 4, "no_key"), (1, 4, REASONS[DUPLICATE]), (1, 5, "bad_json"),
    ]  # fmt: skip


def test_where_pairing_refused_nothing_the_problems_are_written_all_the_same(tmp_path):
    groups = [[raw(0, 1, 5, "no_key"), raw(0, 2, 5)], [raw(0, 4, BATCH, "no_key"), raw(0, 5)]]
    assert rejected_of(tmp_path, groups, refused_rows()) == [(0, 4, "no_key")]


def test_where_nothing_is_rejected_there_is_no_file(tmp_path):
    assert rejected_of(tmp_path, [[raw(0, 1), raw(0, 2, 5, "no_key")]], refused_rows((RIGHT, 0, 1, 0, BATCH))) == []
    assert list(Path(tmp_path, "rejected").iterdir()) == []


drawn_rows = st.dictionaries(
    st.tuples(st.integers(0, 2), numbers),
    st.tuples(st.sampled_from([5, 6, BATCH]), st.sampled_from([None, None, "no_key", "filtered"])),
)


@settings(max_examples=60, deadline=None)
@given(
    drawn_rows, st.dictionaries(st.tuples(st.integers(0, 2), numbers), st.integers(0, len(REASONS) - 1)), st.integers(1, 9)
)
def test_what_is_written_is_what_the_rules_say(drawn, reasons, rows_a_group):
    rows = [raw(*place, *about) for place, about in drawn.items()]
    # Pairing refuses accepted events alone.
    mine = {place: reason for place, reason in reasons.items() if place in drawn and drawn[place][1] is None}
    refused = refused_rows(*((LEFT, *place, reason, drawn[place][0]) for place, reason in mine.items()))
    wanted = [(*place, REASONS[reason]) for place, reason in mine.items()]
    wanted += [
        (*place, problem) for place, (batch_id, problem) in drawn.items() if problem == "no_key" and batch_id == BATCH
    ]
    groups = [rows[at : at + rows_a_group] for at in range(0, len(rows), rows_a_group)]
    with tempfile.TemporaryDirectory() as folder:
        assert rejected_of(folder, groups, refused) == sorted(wanted)


def test_large_pieces_are_not_read_where_only_problems_count():
    where = rejected._where(BATCH, {})
    assert str(where) == '(((batch_id == 7) and is_valid(problem)) and (problem != "filtered"))'
    assert rejected._where(BATCH, known((0, 5, 0))) is None
