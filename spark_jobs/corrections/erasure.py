"""Erases what names somebody from the tables, their time travel, the quality pages and a compacted output topic."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from include.config.pipeline import BEFORE_PUBLISH
from include.config.store import Store, pages_store, read_text, write_text
from spark_jobs.corrections.erasure_batch import finish_erasure, plan_erasure
from spark_jobs.corrections.erasure_end import dead_letters_text, finish_erasures, undecodable_text
from spark_jobs.corrections.erasure_list import ErasureList, write_list
from spark_jobs.corrections.erasure_search import Person, PersonalData, nameless, of_pipeline, search
from spark_jobs.corrections.unfinished import finish_batch
from spark_jobs.faults.fault_points import between_fault_points
from spark_jobs.job.run import Counts
from spark_jobs.stages.publish import publish_batches
from spark_jobs.stages.report import report_batches
from spark_jobs.tables.delta_log import mark_format
from spark_jobs.tables.integrity import check_ledger, table_versions
from spark_jobs.tables.ledger import Ledger
from spark_jobs.tables.ledger_rows import ERASED, PAIRED, REPORTED
from spark_jobs.tables.schemas import LEDGER, schemas
from spark_jobs.tables.warehouse import Warehouse


def erase(warehouse: Warehouse, person: Person, asked_by: str | None = None) -> Counts:
    """Erases everything that names them; returns the counts, none if nothing does. Prints the certificate.

    First finishes, publishes and reports what is unfinished: a compound has to be sent before its row is emptied. `asked_by`: whom the certificate
    names; None: the user of the process.
    """
    ledger = Ledger(warehouse)
    last = finish_batch(warehouse, ledger)
    _settle(warehouse, ledger)
    finish_erasures(warehouse)
    person, pages = of_pipeline(warehouse, person), pages_store(warehouse.pipeline.name, warehouse.root)
    found = search(warehouse, person, pages)
    print(_text(warehouse, ledger, found))
    if last is None or found.is_empty:
        return {}
    _take_from_pages(pages, found, person)
    check_ledger(warehouse, last)
    planned, asked_at = plan_erasure(warehouse, last), datetime.now(UTC).isoformat(timespec="seconds")
    versions = table_versions(warehouse, schemas(warehouse.pipeline))
    chosen = ErasureList.of(found, person, versions, asked_by or getpass.getuser(), asked_at)
    mark_format(warehouse.store(LEDGER))
    write_list(warehouse, planned, chosen)
    finish_erasure(warehouse, ledger, ledger.plan(planned))
    _settle(warehouse, ledger)
    finish_erasures(warehouse)
    done = next(row for row in ledger.rows(planned.batch_id, planned.batch_id) if row.step == ERASED)
    return {"batch_id": planned.batch_id, **done.counts.flat()}


def preview(warehouse: Warehouse, person: Person) -> str:
    """What an erasure would find now, in words."""
    found = search(warehouse, of_pipeline(warehouse, person), pages_store(warehouse.pipeline.name, warehouse.root))
    text = _text(warehouse, Ledger(warehouse), found)
    return text if found.is_empty else f"{text}\nnothing was changed; --yes erases it"


def _settle(warehouse: Warehouse, ledger: Ledger) -> None:
    """Publishes and reports what is paired, in the pipeline's order."""
    steps: list[Callable[[], Any]] = [lambda: publish_batches(warehouse), lambda: _report(warehouse, ledger)]
    for step in steps[::-1] if warehouse.pipeline.quality.gate == BEFORE_PUBLISH else steps:
        step()


def _report(warehouse: Warehouse, ledger: Ledger) -> None:
    last = ledger.last_ids()
    # An older verdict is no matter of this command.
    if last[PAIRED] > last[REPORTED]:
        report_batches(warehouse)


def _text(warehouse: Warehouse, ledger: Ledger, found: PersonalData) -> str:
    archive = warehouse.pipeline.maintenance.archive
    said = [f"rows archived in {archive} are not searched: delete or rewrite their files yourself"] if archive else []
    said += [undecodable_text(found.undecodable)] if found.undecodable else []
    said += dead_letters_text(ledger)
    if found.is_empty:
        return "\n".join([f"pipeline {warehouse.pipeline.name} has nothing that names this key", *said])
    lines = {f"rows of {table}": len(rows) for table, rows in found.rows.items()}
    lines |= {"compounds to retract": len(found.retract), "names in quality_metrics": len(found.breakdowns)}
    lines |= {"quality pages": len(found.pages)}
    width = max(map(len, lines))
    return "\n".join([*(f"{what:<{width}}  {number:>12,}" for what, number in lines.items()), *said])


@between_fault_points("pages_erased")
def _take_from_pages(pages: Store, found: PersonalData, person: Person) -> None:
    """Before the plan, because what finishes the erasure knows no name. A name on a page counts in no law."""
    for name in found.pages:
        if (text := nameless(read_text(pages, name) or "", person)) is not None:
            write_text(pages, name, text)
