"""The list of what an erasure erases, in a file beside the tables from before its plan until its end.

It has places and numbers, no name, so whichever job finishes the erasure needs to know none. It is known by batch_id and wall time: a planner
that another was faster than leaves a list that no plan has.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import obstore

from include.config.store import Store, list_names, read_text, warehouse_store, write_text
from spark_jobs.corrections.erasure_search import Person, PersonalData
from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.tables.erased_rows import RowId
from spark_jobs.tables.ledger_rows import LedgerRow
from spark_jobs.tables.tables import Tables

_BEGIN, _END = "rows-", ".json"


@dataclass(frozen=True, kw_only=True)
class ErasureList:
    """`rows`, `retract`, `breakdowns`, `pages`, `undecodable`: as in `PersonalData`. `key_sha256`: of `salt` and the key's JSON. `versions`: of the
    tables before.
    """

    asked_by: str
    asked_at: str
    fields: list[str]
    salt: str
    key_sha256: str
    versions: dict[str, int]
    rows: dict[str, list[RowId]]
    retract: list[RowId]
    breakdowns: list[RowId]
    pages: list[str]
    undecodable: int = 0

    @classmethod
    def of(cls, found: PersonalData, person: Person, versions: dict[str, int], asked_by: str, asked_at: str) -> Self:
        salt = secrets.token_hex(16)
        return cls(
            asked_by=asked_by,
            asked_at=asked_at,
            fields=list(person.fields),
            salt=salt,
            key_sha256=key_hash(salt, person),
            versions=versions,
            **found._asdict(),
        )


def key_hash(salt: str, person: Person) -> str:
    """SHA-256 of the salt and the values' JSON array, in hex: whoever knows the key can tell that a certificate is of it.

    >>> key_hash("00", Person(("user1", "user2"), ("ann", "bob"), True))[:12]
    '058f335f43df'
    """
    return hashlib.sha256(f"{salt}{json.dumps(person.values)}".encode()).hexdigest()


def erasures_place(warehouse: Tables) -> Store:
    """Where lists and certificates of a pipeline are."""
    return warehouse_store(warehouse.root).at(warehouse.pipeline.name, "erasures")


def _name(batch_id: int, wall_time: int) -> str:
    return f"{_BEGIN}{batch_id}-{wall_time}{_END}"


@between_fault_points("erasure_listed")
def write_list(warehouse: Tables, planned: LedgerRow, chosen: ErasureList) -> None:
    """Call before the plan is written."""
    write_text(erasures_place(warehouse), _name(planned.batch_id, planned.wall_time), json.dumps(asdict(chosen)))


def read_list(warehouse: Tables, planned: LedgerRow) -> ErasureList:
    """The list of a planned erasure. Raises NeedsOperator if it is gone."""
    place, name = erasures_place(warehouse).made(), _name(planned.batch_id, planned.wall_time)
    if (text := read_text(place, name)) is None:
        raise NeedsOperator(
            f"{place.uri}/{name} is gone, so erasure {planned.batch_id} cannot be finished: put it back, or put all tables of the pipeline back from "
            "one backup"
        )
    found: dict[str, Any] = json.loads(text)
    # JSON has no tuples.
    found["rows"] = {table: [*map(tuple, ids)] for table, ids in found["rows"].items()}
    return ErasureList(**found | {name: [*map(tuple, found[name])] for name in ("retract", "breakdowns")})


def listed(warehouse: Tables) -> Iterator[tuple[int, int]]:
    """batch_id and wall time of each list that is there."""
    for name in list_names(erasures_place(warehouse)):
        if name.startswith(_BEGIN) and name.endswith(_END):
            batch_id, wall_time = name.removeprefix(_BEGIN).removesuffix(_END).split("-")
            yield int(batch_id), int(wall_time)


def delete_list(warehouse: Tables, batch_id: int, wall_time: int) -> None:
    obstore.delete(erasures_place(warehouse).client, _name(batch_id, wall_time))
