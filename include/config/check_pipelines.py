"""Tells what is wrong in pipeline files before they are deployed; needs neither Airflow nor Kafka nor Spark.

    python -m include.config.check_pipelines [FILE ...]

Without files: all of include/pipelines/. One line a file; exit status 1 if one of them is refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline


def main(files: list[Path]) -> int:
    """Exit status. Raises nothing."""
    status = 0
    for file in files:
        try:
            pipeline = load_pipeline(file)
        except PipelineError as refusal:
            print(f"refused: {refusal}")
            status = 1
        else:
            left, right = pipeline.sides
            print(f"accepted: {file}: {left.topic} + {right.topic} -> {pipeline.output_topic}")
    if not files:
        print(f"there is no pipeline in {PIPELINES}: write one like README.md says")
    return status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m include.config.check_pipelines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE")
    sys.exit(main(parser.parse_args().files or sorted(PIPELINES.glob("*.yaml"))))
