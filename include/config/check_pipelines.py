"""Checks pipeline files before they are deployed; needs neither Airflow nor Kafka nor Spark.

    python -m include.config.check_pipelines [FILE ...]

Without files it checks all of include/pipelines/. It prints a line for each file and ends with status 1 if one is refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline


def main(files: list[Path]) -> int:
    """The exit status: 0, or 1 if a file is refused."""
    status = 0
    for file in files:
        try:
            pipeline = load_pipeline(file)
        except PipelineError as refusal:
            print(f"refused: {refusal}")
            status = 1
        else:
            left, right, output = pipeline.topics
            print(f"accepted: {file}: {left} + {right} -> {output}")
    if not files:
        print(f"{PIPELINES} has no pipeline: write one as README.md describes")
    return status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.prog = "python -m include.config.check_pipelines"
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    sys.exit(main(parser.parse_args().files or sorted(PIPELINES.glob("*.yaml"))))
