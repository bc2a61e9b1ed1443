"""Parquet files of a Delta table: workers write them into the table's place; they are in the table once they are committed."""

from __future__ import annotations

import errno
import json
import os
import re
import uuid
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
# Columns of the tables that say the same again and again. Of most others Parquet would fill a dictionary in vain, which takes time; what
# files gain in size without, zstd more than makes up for.
REPEATED = (
    *("topic", "partition", "problem", "reason", "side", "kind", "op", "revision", "batch_id"),
    *("left_topic", "left_partition", "right_topic", "right_partition"),
)
# What rows are looked for by. Statistics of the other columns would help nobody and take a third of the time of a write.
SEARCHED = ("batch_id", "ts", "partition", "offset")
LONGEST_TEXTS = b"longest texts"
_ROWS_A_GROUP = 65_536
_BYTES_A_GROUP = 64_000_000
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class FilePlace(NamedTuple):
    """Where files of a table are written, and with which columns."""

    store: Store
    schema: pa.Schema


# The fields of NewFile, as workers hand them to Spark.
WRITTEN = "name string, size bigint, stats string"


class NewFile(NamedTuple):
    """A file that is complete. `name`: below the table's place; `stats`: its statistics in Delta's JSON."""

    name: str
    size: int
    stats: str


class _Sink:
    """What Arrow writes to. Arrow closes it however a file ends; whether the upload is completed is said by `complete` alone, so a file
    that failed half-way never becomes visible.
    """

    closed = False

    def __init__(self, store: Store, name: str) -> None:
        self._upload = open_writer(store.client, name, max_concurrency=2)
        self.size = 0

    def write(self, data: Any) -> int:
        count = self._upload.write(data)
        self.size += count
        return count

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """An upload has no half-written state that others could see."""

    def close(self) -> None:
        """See `complete`."""

    def complete(self) -> None:
        self._upload.close()


class FileWriter:
    """Writes rows into one new file of the table at a place; the upload begins with the first of them, and is dropped after an error.

    A file that was finished but is never committed, because the job died, stays behind until maintenance deletes it.
    Raises OSError with the table's place.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.name = store, f"part-{uuid.uuid4()}.{CODEC}.parquet"
        self.rows = 0
        self.least: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.nulls: dict[str, int] = {}
        self.longest_texts = 0
        self._sink: _Sink | None = None
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *rest: object) -> None:
        # Not completed, an upload leaves nothing that anybody sees.
        self._sink = self._writer = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds the rows, as a row group of their own."""
        if not rows.num_rows:
            return
        with place_named(self.store):
            self._writer = self._writer or self._begun(rows.schema)
            self._writer.write_batch(rows)
        self.rows += rows.num_rows
        for name in rows.schema.names:
            if name in SEARCHED:
                self._count(name, rows.column(name))
        texts = [pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns if pa.types.is_string(column.type)]
        self.longest_texts = max(self.longest_texts, sum(texts))

    def _begun(self, schema: pa.Schema) -> pq.ParquetWriter:
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

    def _count(self, name: str, column: pa.Array) -> None:
        self.nulls[name] = self.nulls.get(name, 0) + column.null_count
        if column.null_count < len(column):
            found = pc.min_max(column).as_py()
            self.least[name] = min(found["min"], self.least.get(name, found["min"]))
            self.most[name] = max(found["max"], self.most.get(name, found["max"]))

    def finish(self) -> NewFile | None:
        """Completes the file; None if there were no rows."""
        if self._writer is None or self._sink is None:
            return None
        with place_named(self.store):
            self._writer.add_key_value_metadata({LONGEST_TEXTS: str(self.longest_texts)})
            self._writer.close()
            self._sink.complete()
        stats = {"numRecords": self.rows, "minValues": self.least, "maxValues": self.most, "nullCount": self.nulls}
        return NewFile(self.name, self._sink.size, json.dumps(stats))


def worth_row_groups(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches worth a row group."""
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
def place_named(store: Store) -> Iterator[None]:
    """Raises what the object-store client raises as an OSError with the place: of an error in a worker only the text arrives."""
    try:
        yield
    except Exception as error:
        # delta-rs draws a tree in colours.
        text = str(error).partition("\n\nDebug source")[0].replace("\x1b[31m↳\x1b[0m", ":")
        # Of a store what the text says is more than the number: that nobody answers at an address, say.
        found = _OS_ERROR.search(text) if store.folder is not None else None
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number) if found else " ".join(text.split()), store.uri) from error
