"""Checks pipeline files by themselves; needs neither Airflow nor Kafka nor Spark. `python -m include.check_pipelines` is the command."""

from __future__ import annotations

from pathlib import Path

from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline


def main(files: list[Path]) -> int:
    """Prints a line for each file; returns the exit status: 0, or 1 if a file is refused."""
    status = 0
    for file in files:
        try:
            pipeline = load_pipeline(file)
        except PipelineError as refusal:
            print(f"refused: {refusal}")
            status = 1
        else:
            left, right = (side.input for side in pipeline.sides)
            print(f"accepted: {file}: {left} + {right} -> {pipeline.output_topic}")
    if not files:
        print(f"{PIPELINES} has no pipeline: write one as README.md describes")
    return status
