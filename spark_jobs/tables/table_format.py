"""The format of tables, ledger rows and positions: a number in the properties of each table, so that a version refuses what it would misread.

Versions with the same format read each other's tables. A version that writes anything which others of its format would not understand (a
column, a count, a step, a value of a setting, another text of a position) has the next format.
"""

from __future__ import annotations

from collections.abc import Mapping

from include.config.project import VERSION
from spark_jobs.faults.problems import NeedsOperator

FORMAT = 2
_FORMAT, _MADE_BY = "eventPairing.format", "eventPairing.version"
# The properties of each table that this version creates, and of a ledger that has what older formats lack: erasures, and dead letters.
MARK = {_FORMAT: str(FORMAT), _MADE_BY: VERSION}


def check_format(table: str, properties: Mapping[str, str | None]) -> None:
    """Raises NeedsOperator if the table at this place has a newer format. Tables that 1.0 created have no mark: theirs is format 1."""
    found = properties.get(_FORMAT) or "1"
    if not found.isdecimal() or int(found) > FORMAT:
        newer = properties.get(_MADE_BY) or "unknown"
        raise NeedsOperator(
            f"{table} has format {found}, written by version {newer}; this is version {VERSION}, which reads formats up to {FORMAT}: run "
            f"version {newer} or a later one, or put all tables of the pipeline back from a backup made before the upgrade"
        )
