"""Acknowledges a problem of a pipeline: who has taken it over, and what they say of it. It then no longer counts for the pipeline's state.

    python -m spark_jobs.acknowledge --pipeline include/pipelines/calls.yaml --list
    python -m spark_jobs.acknowledge --pipeline include/pipelines/calls.yaml --problem orphan_ratio --by ann --note "the producer is being mended"

The acknowledgement ends with the problem, or when it gets worse. It needs neither Spark nor the writer's lock. Status 1 with one line if there is
no such problem.
"""

from __future__ import annotations

import argparse

from include.config.health import State, acknowledge, read_state
from include.config.store import Store, pages_store
from include.config.time_text import utc
from spark_jobs.faults.problems import NeedsOperator
from spark_jobs.job.run import errors_in_one_line, job_parser, warehouse_folder
from spark_jobs.quality.current_pages import write_current


def main(pages: Store, given: argparse.Namespace) -> list[str]:
    """The lines to print. Raises NeedsOperator."""
    if not given.problem:
        state = read_state(pages)
        return _listed(state) if state else ["no batch has been reported yet, so there is no state"]
    try:
        problem = acknowledge(pages, given.problem, given.by or "", given.note or "")
    except ValueError as refused:
        raise NeedsOperator(str(refused)) from None
    write_current(pages)
    return [f"{problem.name} of batch {problem.batch} is acknowledged by {given.by}: {problem.text}"]


def _listed(state: State) -> list[str]:
    lines = [f"{state.pipeline}: {state.verdict} after batch {state.batch}"]
    for each in state.problems:
        said = f" (acknowledged by {each.acknowledged.by}: {each.acknowledged.note})" if each.acknowledged else ""
        lines.append(
            f"{each.name}: {each.severity} since batch {each.batch}, {utc(round(each.since * 1000))}: {each.text}{said}"
        )
    return lines


if __name__ == "__main__":
    parser = job_parser("acknowledge", __doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--list", action="store_true", help="print the state and all problems")
    which.add_argument("--problem", metavar="NAME", help="the problem, as --list names it")
    parser.add_argument("--by", metavar="PERSON", help="who has taken it over")
    parser.add_argument("--note", help="what they say of it")
    arguments = parser.parse_args()
    with errors_in_one_line():
        print(*main(pages_store(arguments.pipeline.name, warehouse_folder(arguments.warehouse)), arguments), sep="\n")
