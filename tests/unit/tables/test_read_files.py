"""Every row of a table's files is read by exactly one task, as it was written; what is wrong with a file is said by its name."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from include.config.store import Store
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables import read_files as reading
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.read_files import Share, longest_texts, read_share, shares
from tests.helpers.table_in_a_folder import written

SCHEMA = pa.schema([("batch_id", pa.int64()), ("offset", pa.int64()), ("value", pa.binary()), ("payload", pa.string())])
ROWS, BYTES = reading._ROWS_A_TASK, reading._BYTES_A_TASK


def batch(*offsets, batch_id=1):
    rows = [
        {"batch_id": batch_id, "offset": n, "value": bytes([n % 256]), "payload": None if n % 3 else f"p{n}"}
        for n in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.fixture
def store(tmp_path):
    return Store(f"{tmp_path}/a table").made()


def file_of(store, *batches):
    new = written(store, *batches)
    return DataFile(new.name, new.size, sum(each.num_rows for each in batches))


def read(store, given, columns=SCHEMA.names, where=None):
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    found = [piece for share in given for piece in read_share(store, share, schema, where)]
    assert all(piece.schema == schema for piece in found)
    return [row for piece in found for row in piece.to_pylist()]


def test_a_small_file_is_fetched_once_by_a_job(store, monkeypatch):
    small, large = file_of(store, batch(1, 2)), file_of(store, batch(*range(30_000)))
    monkeypatch.setattr(reading, "WHOLE_BYTES", small.size)
    with reading.keep_small_files():
        for _ in range(2):
            assert [row["offset"] for row in read(store, [Share((small,))])] == [1, 2]
            assert len(read(store, [Share((large,))])) == 30_000
            Path(store.uri, small.name).unlink(missing_ok=True)
        Path(store.uri, large.name).unlink()
        with pytest.raises(NeedsOperator, match="is missing"):
            read(store, [Share((large,))])
    with pytest.raises(NeedsOperator, match="is missing"):
        read(store, [Share((small,))])


def test_not_more_is_kept_than_there_is_room_for(store, monkeypatch):
    first, second = file_of(store, batch(1)), file_of(store, batch(2))
    monkeypatch.setattr(reading, "_KEPT_BYTES", first.size)
    with reading.keep_small_files():
        for file in (first, second):
            read(store, [Share((file,))])
            Path(store.uri, file.name).unlink()
        assert len(read(store, [Share((first,))])) == 1
        with pytest.raises(NeedsOperator, match="is missing"):
            read(store, [Share((second,))])


# Portions


def known(rows, size=1):
    return DataFile(f"{rows}-{size}", size, rows)


@pytest.mark.parametrize(
    ("files", "portions"),
    [
        ([], []),
        ([known(0)], [[0]]),
        ([known(1), known(2), known(3)], [[0, 1, 2]]),
        ([known(ROWS - 1), known(1)], [[0, 1]]),
        ([known(ROWS - 1), known(2)], [[0], [1]]),
        ([known(1, BYTES - 1), known(1, 1)], [[0, 1]]),
        ([known(1, BYTES - 1), known(1, 2)], [[0], [1]]),
        ([known(ROWS), known(ROWS)], [[0], [1]]),
        ([known(1, BYTES)], [[0]]),
    ],
)
def test_small_files_are_together(files, portions):
    assert shares(files) == [Share(tuple(files[number] for number in portion)) for portion in portions]


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        (known(ROWS + 1), 2),
        (known(2 * ROWS), 2),
        (known(2 * ROWS + 1), 3),
        (known(1, BYTES + 1), 2),
        (known(2 * ROWS + 1, 7 * BYTES), 7),
        # Whoever else wrote it did not say how many rows it has.
        (known(0, 3 * BYTES), 3),
    ],
)
def test_a_large_file_is_in_parts_and_the_small_ones_about_it_are_together(file, parts):
    before, behind = known(1), known(2)
    found = shares([before, file, behind])
    assert [share for share in found if share.files == (file,)] == [Share((file,), part, parts) for part in range(parts)]
    assert [share for share in found if share.files != (file,)] == [Share((before, behind))]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 9])
def test_of_a_file_in_parts_every_row_is_read_once(parts, store):
    # Four row groups, one of them empty.
    batches = [batch(*range(0, 10)), batch(*range(10, 11)), batch(), batch(*range(11, 40)), batch(*range(40, 50))]
    file = file_of(store, *batches)
    each = [Counter(row["offset"] for row in read(store, [Share((file,), part, parts)])) for part in range(parts)]
    assert sum(each, Counter()) == Counter(range(50))
    assert sum(map(bool, each)) == min(parts, 4)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_of_a_file_in_parts_the_rows_that_fit_are_shared_out_and_each_is_read_once(parts, store):
    # Every other row group has such rows.
    file = file_of(store, *(batch(*range(10 * n, 10 * n + 10), batch_id=n % 2) for n in range(8)))
    each = [read(store, [Share((file,), part, parts)], where=pc.field("batch_id") == 1) for part in range(parts)]
    assert Counter(row["offset"] for rows in each for row in rows) == Counter(n for n in range(80) if n // 10 % 2)
    assert [len(rows) for rows in each] == [40 // parts] * parts


def test_all_files_of_a_share_are_read(store):
    files = [file_of(store, batch(*range(start, start + 5))) for start in (0, 5, 10)]
    assert [row["offset"] for row in read(store, shares(files))] == list(range(15))


# Rows


def test_rows_come_as_they_were_written_in_the_order_that_is_asked_for(store):
    rows = batch(1, 2, 3, 300)
    share = [Share((file_of(store, rows),))]
    assert read(store, share) == rows.to_pylist()
    assert read(store, share, ["payload", "offset"]) == [
        {"payload": row["payload"], "offset": row["offset"]} for row in rows.to_pylist()
    ]


def test_types_are_those_that_are_asked_for(store):
    share = Share((file_of(store, batch(1, 2)),))
    narrow = pa.schema([("offset", pa.int64()), ("payload", pa.large_string())])
    (piece,) = read_share(store, share, narrow, None)
    assert piece.schema == narrow


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        (pc.field("batch_id") == 2, [4, 5, 6, 7]),
        (pc.field("batch_id") == 9, []),
        (pc.field("offset").isin([1, 6, 99]), [1, 6]),
        (pc.field("payload").is_null(), [1, 2, 4, 5, 7]),
        ((pc.field("batch_id") == 1) & pc.field("payload").is_valid(), [0, 3]),
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [SCHEMA.names, ["offset"]], ids=["with the columns of it", "without"])
def test_only_rows_that_fit_come(where, offsets, columns, store):
    file = file_of(store, batch(0, 1, 2, 3), batch(4, 5, 6, 7, batch_id=2))
    assert [row["offset"] for row in read(store, [Share((file,))], columns, where)] == offsets


def test_texts_of_a_file_that_a_delete_rewrote_are_compared(tmp_path):
    rows = pa.table({"user": ["a", None, "b", "a"], "offset": [0, 1, 2, 3], "value": [b"v", None, b"w", b"x"]})
    # Arrow has statistics for a column without nulls, and compares these first.
    rows = rows.append_column("kind", pa.array(["p", "q", "p", "q"]))
    rows = rows.append_column("headers", pa.array([[{"key": "k", "value": b"v"}]] * 4))
    write_deltalake(tmp_path, rows)
    DeltaTable(tmp_path).delete("offset = 0")
    (name,) = (Path(each).name for each in DeltaTable(tmp_path).file_uris())
    assert pa.string_view() in pq.read_schema(tmp_path / name).types
    file, wanted = (
        DataFile(name, (tmp_path / name).stat().st_size, 3),
        pa.schema({"offset": pa.int64(), "value": pa.binary()}),
    )
    texts = ((ds.field("user") == "a", [3]), (ds.field("user") == "c", []), (ds.field("kind") == "q", [1, 3]))
    for where, found in (*texts, (ds.field("value") != b"x", [2])):
        pieces = read_share(Store(str(tmp_path)), Share((file,)), wanted, where)
        assert [offset for piece in pieces for offset in piece["offset"].to_pylist()] == found


def test_row_groups_that_cannot_have_such_rows_are_not_fetched(store):
    file = file_of(store, batch(*range(100)), batch(*range(100, 200), batch_id=2))
    path = Path(store.uri, file.name)
    groups = pq.read_metadata(path)
    first = [groups.row_group(0).column(number) for number in range(groups.num_columns)]
    content = bytearray(path.read_bytes())
    start, size = groups.row_group(0).column(0).file_offset or 4, sum(column.total_compressed_size for column in first)
    content[4 : 4 + size] = os.urandom(size)
    path.write_bytes(content)
    assert start < 4 + size
    assert len(read(store, [Share((file,))], where=pc.field("batch_id") == 2)) == 100
    with pytest.raises(NeedsOperator, match=f"{path} is cut off or overwritten"):
        read(store, [Share((file,))])


def test_large_rows_come_in_pieces(store, monkeypatch):
    monkeypatch.setattr(reading, "_BYTES_AT_ONCE", 10_000)
    rows = pa.record_batch({"batch_id": [1] * 100, "payload": [str(n).ljust(1_000) for n in range(100)]})
    file = file_of(store, rows)
    schema = pa.schema([("payload", pa.string())])
    found = list(read_share(store, Share((file,)), schema, None))
    assert max(piece.num_rows for piece in found) < 20 and sum(piece.num_rows for piece in found) == 100
    assert [row["payload"].strip() for piece in found for row in piece.to_pylist()] == [str(n) for n in range(100)]


# Damage


def test_a_file_that_is_missing_is_named(store):
    files = (file_of(store, batch(1)), file_of(store, batch(2)))
    Path(store.uri, files[1].name).unlink()
    line = f"^{store.uri}/{files[1].name} is missing: the table is damaged, put all tables of the pipeline back from one backup$"
    with pytest.raises(NeedsOperator, match=line):
        read(store, [Share(files)])


def overwritten(start, size):
    return lambda whole: whole[:start] + b"\xff" * size + whole[start + size :]


DAMAGES = {
    "cut": lambda whole: whole[:-10],
    "cut to half": lambda whole: whole[: len(whole) // 2],
    "one byte": lambda whole: whole[:1],
    "empty": lambda whole: b"",
    "nothing of it": lambda whole: b"\0" * len(whole),
    # The first page, its header, and what is said of all of them.
    "page": overwritten(60, 40),
    "header of a page": overwritten(4, 20),
    "footer": lambda whole: whole[:-60] + b"\xff" * 52 + whole[-8:],
}


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_a_file_that_is_cut_off_or_overwritten_is_named(content, store):
    file = file_of(store, batch(*range(100)))
    path = Path(store.uri, file.name)
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(NeedsOperator, match=f"^{path} is cut off or overwritten: the table is damaged"):
        read(store, [Share((file,))])


def saying(text):
    def pieces(*_, **__):
        raise OSError(text)
        yield

    return pieces


def test_what_the_store_says_is_told_with_the_place(store, monkeypatch):
    monkeypatch.setattr(
        reading, "_pieces", saying("Generic S3 error\n  \x1b[31m↳\x1b[0m Error performing GET: AccessDenied")
    )
    with pytest.raises(OSError, match=r"Generic S3 error : Error performing GET: AccessDenied: '.*/a table'$") as raised:
        read(store, [Share((file_of(store, batch(1)),))])
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, store.uri)


def test_a_store_that_has_less_of_a_file_than_there_should_be_says_so(store, monkeypatch):
    said = "Generic S3 error: Server returned non-2xx status code: 416 Requested Range Not Satisfiable: <Code>InvalidRange</Code>"
    monkeypatch.setattr(reading, "_pieces", saying(said))
    file = file_of(store, batch(1))
    with pytest.raises(NeedsOperator, match=f"^{store.uri}/{file.name} is cut off or overwritten"):
        read(store, [Share((file,))])


# How long the texts are


def test_the_longest_texts_are_those_of_the_longest_row_of_all_files(store):
    files = [file_of(store, batch(3), batch(300)), file_of(store, batch(30))]
    # p300, and p30.
    assert [longest_texts(store, [file]) for file in files] == [4, 3]
    assert longest_texts(store, files) == longest_texts(store, files[::-1]) == 4
    assert longest_texts(store, []) == 0


@pytest.mark.parametrize("other", ["another writer's", "broken", "gone"])
def test_files_that_cannot_tell_do_not(other, store):
    ours = file_of(store, batch(3))
    path = Path(store.uri, other)
    if other == "another writer's":
        pq.write_table(pa.table({"payload": ["x"]}), path)
        assert pq.read_metadata(path).num_rows == 1
    elif other == "broken":
        path.write_bytes(b"PAR1")
    file = DataFile(other, path.stat().st_size if path.exists() else 4, 1)
    assert longest_texts(store, [ours, file]) is longest_texts(store, [file, ours]) is None
