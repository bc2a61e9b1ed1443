"""Changes of a table's rows by other programs: commits of its log without a transaction of the pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from include.config.store import Store, read_text


class ForeignCommit(NamedTuple):
    """A commit that changed rows of a table and is not of its pipeline. `operation`: as the other program calls it."""

    version: int
    operation: str


def foreign_commits(place: Store, pipeline: str, after: int, until: int) -> Iterator[ForeignCommit]:
    """Yields those of the versions (`after`, `until`], by version. A version whose commit is no longer in the log is skipped.

    Compaction, VACUUM and changed properties change no row, whoever does them.
    """
    for version in range(after + 1, until + 1):
        text = read_text(place, f"_delta_log/{version:020}.json")
        actions = [json.loads(line) for line in (text or "").splitlines() if line]
        if _changes_rows(actions) and not _is_of(actions, pipeline):
            info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
            yield ForeignCommit(version, str(info.get("operation", "?")))


def _changes_rows(actions: list[dict[str, Any]]) -> bool:
    files = (action.get("add") or action.get("remove") for action in actions)
    return any(file["dataChange"] for file in files if file)


def _is_of(actions: list[dict[str, Any]], pipeline: str) -> bool:
    return any(action["txn"]["appId"].startswith(f"{pipeline}.") for action in actions if "txn" in action)
