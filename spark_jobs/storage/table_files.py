"""Parquet files that a worker writes into the folder of a Delta table; they are in the table once they are committed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from include.local_machine import CODEC, REPEATED
from include.warehouse_folder import local_folder

# What rows are looked for by. Statistics of the other columns would help nobody and take a third of the time of a write.
SEARCHED = ("batch_id", "ts", "partition", "offset")
_LONGEST_TEXTS = b"longest texts"


class FilePlace(NamedTuple):
    """Where files of a table are written, and with which columns. `folder`: as the workers see it."""

    folder: str
    schema: pa.Schema


class NewFile(NamedTuple):
    """A file that is complete. `name`: below the table's folder; `stats`: its statistics in Delta's JSON."""

    name: str
    size: int
    stats: str


class FileWriter:
    """Writes rows into one new file of the table in a folder; it is made with the first of them, and gone after an error.

    A file that was finished but is never committed, because the job died, stays behind until maintenance deletes it, as Spark's own do.
    Raises OSError with the folder's name.
    """

    def __init__(self, folder: str) -> None:
        self.folder, self.name = folder, f"part-{uuid.uuid4()}.{CODEC}.parquet"
        self.rows = 0
        self.least: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.nulls: dict[str, int] = {}
        self.longest_texts = 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: type[BaseException] | None, *rest: object) -> None:
        if problem is None:
            return
        # A disk that is full can use what the file took; it may be there without a writer, if not even its begin could be written.
        with suppress(OSError):
            if self._writer:
                self._writer.close()
        with suppress(OSError):
            os.unlink(self._path)

    @property
    def _path(self) -> str:
        return os.path.join(self.folder, self.name)

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds the rows, as a row group of their own."""
        if not rows.num_rows:
            return
        with self._folder_named():
            self._writer = self._writer or self._begun(rows.schema)
            self._writer.write_batch(rows)
        self.rows += rows.num_rows
        for name in rows.schema.names:
            if name in SEARCHED:
                self._count(name, rows.column(name))
        texts = [pc.max(pc.binary_length(column)).as_py() or 0 for column in rows.columns if pa.types.is_string(column.type)]
        self.longest_texts = max(self.longest_texts, sum(texts))

    def _begun(self, schema: pa.Schema) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._path,
            schema,
            compression=CODEC,
            compression_level=1,
            use_dictionary=[name for name in schema.names if name in REPEATED],
            write_statistics=[name for name in schema.names if name in SEARCHED],
            store_schema=False,
        )

    @contextmanager
    def _folder_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Arrow does not say what it was writing to, and of an error in a worker only the text arrives.
            raise OSError(error.errno, os.strerror(error.errno or 0), self.folder) from error

    def _count(self, name: str, column: pa.Array) -> None:
        self.nulls[name] = self.nulls.get(name, 0) + column.null_count
        if column.null_count < len(column):
            found = pc.min_max(column).as_py()
            self.least[name] = min(found["min"], self.least.get(name, found["min"]))
            self.most[name] = max(found["max"], self.most.get(name, found["max"]))

    def finish(self) -> NewFile | None:
        """Completes the file; None if there were no rows."""
        if self._writer is None:
            return None
        with self._folder_named():
            self._writer.add_key_value_metadata({_LONGEST_TEXTS: str(self.longest_texts)})
            self._writer.close()
            size = os.path.getsize(self._path)
        stats = {"numRecords": self.rows, "minValues": self.least, "maxValues": self.most, "nullCount": self.nulls}
        return NewFile(self.name, size, json.dumps(stats))


def longest_texts(files: Iterable[str]) -> int | None:
    """No row of the files (URIs) has texts of more bytes than this together; None if a file does not tell, as those of Spark do not."""
    longest = 0
    for file in files:
        place = local_folder(file)
        try:
            told = None if place is None else (pq.read_metadata(place).metadata or {}).get(_LONGEST_TEXTS)
        except (OSError, pa.ArrowException):
            # Whoever reads its rows says what is wrong with it.
            return None
        if told is None:
            return None
        longest = max(longest, int(told))
    return longest
