"""The schemas by which compounds were published, kept beside the tables: a batch is sent by one schema, also after a kill, and compared by it.

Batches are published in the order of their ids. So each file names the first batch that was sent by its schema, and holds until the next file.
Output keys have one schema for ever, and its id is in their bytes. So that id is kept, too: a pair's messages would have two keys by two ids.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable

from include.config.store import list_names, read_text, write_text
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.output_schema import OutputSchema
from spark_jobs.formats.registry import HIGHEST_ID, registry_settings
from spark_jobs.tables.known_schemas import SCHEMAS
from spark_jobs.tables.tables import Tables
from spark_jobs.tables.warehouse import Warehouse

_BEGIN, _END = "output-from-", ".json"
_KEY = "output-key.json"


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


def known_key_schema(warehouse: Tables, was_sent: bool) -> OutputSchema | None:
    """The schema of output keys; None: they are texts, or nothing was sent yet.

    `was_sent`: something may have been. Raises NeedsOperator if what is kept of it is gone then, or damaged.
    """
    if not warehouse.pipeline.key_has_schema:
        return None
    # Most keys are texts, and their jobs do without what this imports.
    from spark_jobs.formats.output_key import key_schema

    place = warehouse.store(SCHEMAS)
    text = read_text(place, _KEY)
    if text is None and not was_sent:
        return None
    try:
        schema_id = int(json.loads(text or "")["id"])
        if not 0 <= schema_id <= HIGHEST_ID:
            raise ValueError(schema_id)
    except (ValueError, TypeError, KeyError):
        raise NeedsOperator(
            f"{place.uri}/{_KEY} is gone or damaged, which has the schema id in published keys: put that folder back from a backup, or write "
            f'{{"id": N}} into that file, N being the number in bytes 2 to 5 of any key on {warehouse.pipeline.output_topic}'
        ) from None
    return key_schema(warehouse.pipeline, schema_id)


def keep_key_schema(warehouse: Tables, was_sent: bool) -> None:
    """Registers the schema of output keys, once, and keeps its id. Call before the first message of all.

    `was_sent` and errors: as of `known_key_schema` and `register_key`.
    """
    if not warehouse.pipeline.key_has_schema or known_key_schema(warehouse, was_sent):
        return
    from spark_jobs.formats.registration import register_key

    schema = register_key(warehouse.pipeline, registry_settings())
    write_text(warehouse.store(SCHEMAS), _KEY, json.dumps({"id": schema.id}))
