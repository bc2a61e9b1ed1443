"""Writes rows into Parquet files before they are removed, and reads them back, if `maintenance.archive` names a folder.

`<archive>/<pipeline>/<table>/batches-<first>-<last>.parquet`: the ledger's row of the removal names the batches, so a repetition writes the
same rows into the same file. A file gets its name only when it is complete.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from include.config.store import warehouse_store
from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.rules.conservation import BrokenInvariant
from spark_jobs.tables.parquet_files import CODEC
from spark_jobs.tables.tables import Tables


class Archive(NamedTuple):
    """The folder of one pipeline's files."""

    folder: Path

    @classmethod
    def of(cls, warehouse: Tables) -> Self | None:
        """The pipeline's archive; None if rows are not archived. Raises NeedsOperator if they cannot be."""
        given, name = warehouse.pipeline.maintenance.archive, warehouse.pipeline.name
        if given is None:
            return None
        folder, tables = Path(given), warehouse_store(warehouse.root).folder
        if not folder.is_dir():
            raise NeedsOperator(
                f"the archive {folder} is no folder: mount it or make it, or set maintenance.archive to another one; nothing was deleted"
            )
        if tables is not None and folder.resolve().is_relative_to((tables / name).resolve()):
            raise NeedsOperator(
                f"the archive {folder} lies among the tables of pipeline {name}, which are vacuumed: set maintenance.archive to a folder "
                "elsewhere; nothing was deleted"
            )
        archive = cls(folder / name)
        with _archive_errors(archive.folder):
            archive.folder.mkdir(exist_ok=True)
            probe = archive.folder / ".probe"
            probe.write_bytes(bytes(4096))
            probe.unlink()
        return archive

    def put(self, warehouse: Tables, table: str, first: int, last: int) -> None:
        """Writes the rows of the batches first..last, both inclusive, reads them back, and gives the file its name.

        Raises JobProblem if they cannot be written, BrokenInvariant if other rows come back.
        """
        schema, rows = warehouse.stream_rows(table, first, last)
        folder = self.folder / table
        file = folder / f"batches-{first:010d}-{last:010d}.parquet"
        draft = file.with_suffix(".draft")
        with between_fault_points("archived"), _archive_errors(folder):
            folder.mkdir(exist_ok=True)
            written = _write(draft, schema, rows)
            read = _read(draft)
            if read != written:
                raise BrokenInvariant(
                    f"{draft} has {read.total()} of the {written.total()} rows that were written into it: the archive's disk cannot be "
                    "trusted; nothing was deleted"
                )
            draft.replace(file)
            _sync(folder)


def _write(file: Path, schema: pa.Schema, rows: Iterator[pa.RecordBatch]) -> Counter[int]:
    """Writes the rows and returns how many there are of each batch."""
    counts: Counter[int] = Counter()
    try:
        with pq.ParquetWriter(file, schema, compression=CODEC) as writer:
            for piece in rows:
                writer.write_batch(piece)
                counts.update(_by_batch(piece))
        _sync(file)
    except BaseException:
        # Frees a full disk of the draft.
        file.unlink(missing_ok=True)
        raise
    return counts


def _read(file: Path) -> Counter[int]:
    counts: Counter[int] = Counter()
    with pq.ParquetFile(file) as parquet:
        # All columns must be readable.
        for piece in parquet.iter_batches():
            counts.update(_by_batch(piece))
    return counts


def _by_batch(rows: pa.RecordBatch) -> dict[int, int]:
    return {each["values"]: each["counts"] for each in rows.column("batch_id").value_counts().to_pylist()}


def _sync(path: Path) -> None:
    """Makes the file survive a power cut: its rows are deleted from their table next."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _archive_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the folder's disk into a JobProblem. Those of a table are JobProblems already, and pass."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise JobProblem(
            f"the archive {folder} cannot be written ({reason}): free space there and let the user of the jobs write, or set "
            "maintenance.archive to another folder; nothing was deleted"
        ) from None
