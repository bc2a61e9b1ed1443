"""Writes Parquet files into the place of a Delta table, mostly in workers. A commit then makes them part of the table."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from obstore import open_writer

from include.config.store import Store

# How files of the tables are compressed.
CODEC = "zstd"
# Columns with few different values. For most others Parquet would fill a dictionary in vain, which takes time; files without one are
# larger, but zstd more than makes up for it.
REPEATED = (
    *("topic", "partition", "problem", "reason", "side", "kind", "op", "revision", "batch_id"),
    *("left_topic", "left_partition", "right_topic", "right_partition"),
)
# Columns by which rows are searched. Statistics of the other columns would be of no use and take a third of the time of a write.
SEARCHED = ("batch_id", "ts", "partition", "offset")
LONGEST_TEXTS = b"longest texts"
_ROWS_A_GROUP = 65_536
_BYTES_A_GROUP = 64_000_000
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class FilePlace(NamedTuple):
    """Where files of a table are written, and with which columns."""

    store: Store
    schema: pa.Schema


# The fields of NewFile, as workers hand them over.
NEW_FILE = pa.schema([("name", pa.string()), ("size", pa.int64()), ("stats", pa.string())])


class NewFile(NamedTuple):
    """A complete file."""

    name: str  # below the table's place
    size: int  # bytes
    stats: str  # statistics in Delta's JSON

    @classmethod
    def all_of(cls, rows: pa.Table) -> list[NewFile]:
        """The files in rows of NEW_FILE."""
        return [cls(**row) for row in rows.to_pylist()]

    def as_row(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([self._asdict()], NEW_FILE)


class _Sink(io.RawIOBase):
    """The file object that Arrow writes to. Arrow closes it after errors, too; only `complete` completes the upload, so a file that failed
    half-way never becomes visible.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._upload = open_writer(store.client, name, max_concurrency=2)
        self.size = 0

    def write(self, data: Any) -> int:
        count = self._upload.write(data)
        self.size += count
        return count

    def writable(self) -> bool:
        return True

    def complete(self) -> None:
        self._upload.close()


class FileWriter:
    """Writes rows into one new file at a table's place; the upload begins with the first row, and is dropped after an error.

    A finished file that is never committed, because the job died, stays until maintenance deletes it.
    Raises OSError with the table's place.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.name = store, f"part-{uuid.uuid4()}.{CODEC}.parquet"
        self.rows = 0
        self.least: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.nulls: Counter[str] = Counter()
        self.longest_texts = 0
        self._sink: _Sink | None = None
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *rest: object) -> None:
        # An upload that is not completed leaves nothing visible.
        self._sink = self._writer = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds the rows as one row group."""
        if not rows.num_rows:
            return
        with name_place_in_errors(self.store):
            self._writer = self._writer or self._open_writer(rows.schema)
            self._writer.write_batch(rows)
        self.rows += rows.num_rows
        for name in [name for name in rows.schema.names if name in SEARCHED]:
            column = rows.column(name)
            self.nulls[name] += column.null_count
            if column.null_count < len(column):
                edges = pc.min_max(column).as_py()
                self.least[name] = min(edges["min"], self.least.get(name, edges["min"]))
                self.most[name] = max(edges["max"], self.most.get(name, edges["max"]))
        texts = [pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns if pa.types.is_string(column.type)]
        self.longest_texts = max(self.longest_texts, sum(texts))

    def _open_writer(self, schema: pa.Schema) -> pq.ParquetWriter:
        self._sink = _Sink(self.store, self.name)
        return pq.ParquetWriter(
            self._sink,
            schema,
            compression=CODEC,
            compression_level=1,
            use_dictionary=[name for name in schema.names if name in REPEATED],
            write_statistics=[name for name in schema.names if name in SEARCHED],
            store_schema=False,
        )

    def finish(self) -> NewFile | None:
        """Completes the file and returns it; None if there were no rows."""
        if self._writer is None or self._sink is None:
            return None
        with name_place_in_errors(self.store):
            self._writer.add_key_value_metadata({LONGEST_TEXTS: str(self.longest_texts)})
            self._writer.close()
            self._sink.complete()
        stats = {"numRecords": self.rows, "minValues": self.least, "maxValues": self.most, "nullCount": self.nulls}
        return NewFile(self.name, self._sink.size, json.dumps(stats))


def write_file(store: Store, pieces: Iterable[pa.RecordBatch]) -> NewFile | None:
    """Writes the pieces into one new file, each as a row group; None if they have no rows. Raises as `FileWriter`."""
    with FileWriter(store) as writer:
        for rows in pieces:
            writer.write(rows)
        return writer.finish()


def merge_into_row_groups(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows in batches of the size of a row group."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        waiting.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= _ROWS_A_GROUP or size >= _BYTES_A_GROUP:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


@contextmanager
def name_place_in_errors(store: Store) -> Iterator[None]:
    """Turns errors of the object-store client into an OSError with the place: only the text of an error in a worker reaches the driver."""
    try:
        yield
    except Exception as error:
        # delta-rs draws a tree with colours.
        text = str(error).partition("\n\nDebug source")[0].replace("\x1b[31m↳\x1b[0m", ":")
        # Errors of a store say more in their text than in the number: that no server answers at an address, say.
        found = _OS_ERROR.search(text) if store.folder is not None else None
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number) if found else " ".join(text.split()), store.uri) from error
