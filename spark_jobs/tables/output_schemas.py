"""The schemas by which compounds were published, kept beside the tables: a batch is sent by one schema, also after a kill, and compared by it.

Batches are published in the order of their ids. So each file names the first batch that was sent by its schema, and holds until the next file.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable

from include.config.store import list_names, read_text, write_text
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.output_schema import OutputSchema
from spark_jobs.tables.known_schemas import SCHEMAS
from spark_jobs.tables.warehouse import Warehouse

_BEGIN, _END = "output-from-", ".json"


class OutputSchemas:
    """What is kept; None is JSON, by which everything before the first file was sent."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._place = warehouse.store(SCHEMAS)
        ids = (name.removeprefix(_BEGIN).removesuffix(_END) for name in list_names(self._place) if name.startswith(_BEGIN))
        self._first = sorted(int(batch_id) for batch_id in ids if batch_id.isdecimal())
        self._known: dict[int, OutputSchema | None] = {}

    def note(self, batch_id: int, schema: OutputSchema | None) -> None:
        """Keeps that this batch and those after it are sent by the schema. Call before the first message of the batch."""
        if self._of(batch_id) == schema:
            return
        write_text(self._place, _name(batch_id), json.dumps(schema and schema._asdict()))
        self._first = sorted({*self._first, batch_id})
        self._known[batch_id] = schema

    def of(self, batch_ids: Iterable[int]) -> dict[int, OutputSchema]:
        """The schema of each of these batches that was not sent as JSON. Raises NeedsOperator if a file is damaged."""
        found = {batch_id: self._of(batch_id) for batch_id in batch_ids}
        return {batch_id: schema for batch_id, schema in found.items() if schema}

    def _of(self, batch_id: int) -> OutputSchema | None:
        rank = bisect_right(self._first, batch_id)
        if not rank:
            return None
        first = self._first[rank - 1]
        if first not in self._known:
            self._known[first] = self._read(first)
        return self._known[first]

    def _read(self, first: int) -> OutputSchema | None:
        try:
            found = json.loads(read_text(self._place, _name(first)) or "")
            if found is None:
                return None
            return OutputSchema(**found | {name: tuple(map(tuple, found[name])) for name in ("references", "fields")})
        except (ValueError, TypeError, KeyError):
            raise NeedsOperator(
                f"{self._place.uri}/{_name(first)} is damaged, by which compounds were published: put that folder back from a backup"
            ) from None


def _name(first: int) -> str:
    return f"{_BEGIN}{first}{_END}"
