"""The schemas by which compounds were published, kept beside the tables: a batch is sent by one schema, also after a kill, and compared by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.formats.output_schema import OutputSchema
from spark_jobs.tables.known_schemas import SCHEMAS, KnownSchemas
from spark_jobs.tables.warehouse import Warehouse

# The ledger's counts are integers of 64 bits with a sign, from 0 on.
_DIGITS = 15


class OutputSchemas:
    """Schemas by numbers that follow from their content: ids belong to a registry, which may be another one tomorrow."""

    def __init__(self, warehouse: Warehouse) -> None:
        store = warehouse.store(SCHEMAS)
        self._uri, self._kept = store.uri, KnownSchemas(store)

    def keep(self, schema: OutputSchema) -> int:
        """Keeps the schema; returns its number, which is not 0."""
        content = json.dumps(schema._asdict(), sort_keys=True)
        number = int(hashlib.sha256(content.encode()).hexdigest()[:_DIGITS], 16)
        if self._kept.read(_name(number)) is None:
            self._kept.write(_name(number), content.encode())
        return number

    def of(self, number: int) -> OutputSchema:
        """The schema of a number. Raises NeedsOperator if it is not there."""
        try:
            found = json.loads(self._kept.read(_name(number)) or b"")
            pairs = {name: tuple(map(tuple, found[name])) for name in ("references", "fields")}
            return OutputSchema(**found | pairs)
        except (ValueError, TypeError, KeyError):
            raise NeedsOperator(
                f"{self._uri}/{_name(number)} is missing or damaged, by which compounds were published: put that folder back from a backup"
            ) from None

    def by_batch(self, numbers: Iterable[tuple[int, int]]) -> dict[int, OutputSchema]:
        """The schemas of batches, given each batch_id with the number of its schema; batches that were published as JSON (0) are left out."""
        known: dict[int, OutputSchema] = {}
        found = {}
        for batch_id, number in numbers:
            if number:
                known[number] = found[batch_id] = known.get(number) or self.of(number)
        return found


def _name(number: int) -> str:
    return f"output-{number:0{_DIGITS}x}.json"
