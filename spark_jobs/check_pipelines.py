"""Compares pipeline files with the tables of a warehouse: what would change, and what is forbidden. Only reads, without lock and Spark.

    python -m include.check_pipelines --against WAREHOUSE [--pipeline NAME] [--json] [FILE ...]

Takes all of include/pipelines/ unless files are given; --pipeline takes one of them. Asks the topics, too, if PAIRING_KAFKA is set. Ends with
status 0: nothing would change, 3: something would, 4: something is forbidden; 1: a file is refused, or tables or topics cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline
from include.config.secret_values import without_secrets
from spark_jobs.changes.plan import CHANGED, FORBIDDEN, NEW, UNCHANGED, plan_changes
from spark_jobs.changes.text import plan_lines
from spark_jobs.faults.problems import JobProblem
from spark_jobs.formats.decoding import check_schema_files
from spark_jobs.job.arguments import OneLineParser
from spark_jobs.job.run import errors_in_one_line, exit_without_cleanup, warehouse_folder
from spark_jobs.tables.diagnose import translate_file_errors

STATUS, FAILED = {UNCHANGED: 0, CHANGED: 3, NEW: 3, FORBIDDEN: 4}, 1


def main(root: str, files: list[Path], as_json: bool) -> int:
    """Prints the plan of each file; returns the exit status of the worst: forbidden, failed, changed, unchanged."""
    found = {0}
    for file in files:
        try:
            pipeline = load_pipeline(file)
            check_schema_files(pipeline)
            with translate_file_errors(f"{root}/{pipeline.name}"):
                plan = plan_changes(root, pipeline)
        except (JobProblem, PipelineError) as error:
            print(f"error: {without_secrets(' '.join(str(error).split()))}", file=sys.stderr)
            found.add(FAILED)
        else:
            print(json.dumps(plan.as_json()) if as_json else "\n".join(plan_lines(plan)))
            found.add(STATUS[plan.state])
    return next(status for status in (STATUS[FORBIDDEN], FAILED, STATUS[CHANGED], 0) if status in found)


if __name__ == "__main__":
    parser = OneLineParser(prog="check_pipelines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", required=True, metavar="WAREHOUSE", help="folder or URI above the pipelines' tables")
    parser.add_argument("--pipeline", metavar="NAME", help="only the pipeline of this name")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    given = parser.parse_args()
    chosen = [file for file in given.files or sorted(PIPELINES.glob("*.yaml")) if given.pipeline in (None, file.stem)]
    if not chosen:
        parser.error(f"there is no file of pipeline {given.pipeline or 'any name'} in {PIPELINES}")
    with exit_without_cleanup(), errors_in_one_line():
        sys.exit(main(warehouse_folder(given.against), chosen, given.json))
