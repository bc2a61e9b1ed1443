"""Named points at which a test can stop a job: to kill it there, or to let it continue later, as a zombie would.

If PAIRING_FAULT_DIR has a file `<name>.armed`, a process that reaches the point writes its id to `<name>.reached` and waits until there
is a file `<name>.released`. Without the variable, as in production, a point does nothing.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _around(*steps: str) -> tuple[str, ...]:
    return tuple(f"{moment}_{step}" for step in steps for moment in ("before", "after"))


# Every durable step of every job, in order; steps that a job takes in parallel are neighbours. `commit` has the points of the steps that
# change a table.
FAULT_POINTS: dict[str, tuple[str, ...]] = {
    "land_events": (
        *_around("ledger_created", "planned"),
        *("records_read", "raw_file_complete"),
        *_around("raw_left", "raw_right", "landed"),
    ),
    "pair_events": (
        *("paired_file_begun", "paired_files_complete"),
        *_around("compound_events", "rejected_events", "open_events", "paired"),
    ),
    "publish_compounds": (
        *_around("publishing"),
        "publisher_fenced",
        "transaction_begun",
        "transaction_half_sent",
        "transaction_all_sent",
        "transaction_offsets_sent",
        "transaction_committed",
        *_around("published"),
    ),
    "report_quality": _around("quality_metrics", "pages", "reported"),
    "maintain_tables": _around(
        *("removed_raw", "archived", "removed_raw_left", "removed_raw_right"),
        *("removed_rejected", "removed_rejected_events", "removed_compounds", "removed_compound_events"),
        *("removed_ledger", "removed_quality_metrics", "removed_batch_ledger"),
        *("compacted", "vacuumed", "checkpoint"),
    ),
    # Besides those of the steps that other jobs have, too.
    "erase_key": _around(
        *("pages_erased", "erasure_listed"),
        *("erased_compound_events", "erased_quality_metrics", "erased_files", "certificate", "erased"),
    ),
}
_KNOWN = frozenset(point for points in FAULT_POINTS.values() for point in points)


def fault_point(name: str) -> None:
    """Waits here if the point is armed. Raises ValueError for a name that FAULT_POINTS does not have."""
    if name not in _KNOWN:
        raise ValueError(f"{name} is not in FAULT_POINTS: add it there, so that tests kill jobs at it, too")
    folder = os.environ.get("PAIRING_FAULT_DIR")
    if not folder or not Path(folder, f"{name}.armed").exists():
        return
    draft = Path(folder, f"{name}.{os.getpid()}.{threading.get_ident()}")
    draft.write_text(str(os.getpid()))
    draft.rename(Path(folder, f"{name}.reached"))
    while not Path(folder, f"{name}.released").exists():
        time.sleep(0.05)


@contextmanager
def between_fault_points(step: str) -> Iterator[None]:
    """The points before and after a step, around a block or a function; after an error none."""
    fault_point(f"before_{step}")
    yield
    fault_point(f"after_{step}")
