"""Files written as workers write them, and the action that adds one to a table."""

from __future__ import annotations

from deltalake.transaction import AddAction

from spark_jobs.tables.parquet_files import FileWriter


def written(store, *batches):
    """The new file with the batches, each a row group; None if there are no rows."""
    with FileWriter(store) as writer:
        for each in batches:
            writer.write(each)
        return writer.finish()


def add_of(file):
    """What adds the file to a table."""
    return AddAction(file.name, file.size, {}, 0, True, file.stats)
