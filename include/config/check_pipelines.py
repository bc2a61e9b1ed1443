"""Checks pipeline files by themselves; needs neither Airflow nor Kafka nor Spark. `python -m include.check_pipelines` is the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from include.config.pipeline import PIPELINES, Pipeline, PipelineError, Side
from include.config.pipeline_file import load_pipeline
from include.config.time_text import setting


def main(files: list[Path]) -> int:
    """Prints a line for each file, and one for each chain of them that would go wrong; returns the exit status: 0, or 1 if a file is refused."""
    status, accepted = 0, dict[Path, Pipeline]()
    for file in files:
        try:
            pipeline = load_pipeline(file)
        except PipelineError as refusal:
            print(f"refused: {refusal}")
            status = 1
        else:
            left, right = (side.input for side in pipeline.sides)
            print(f"accepted: {file}: {left} + {right} -> {pipeline.output_topic}")
            accepted[file] = pipeline
    for warning in _doubts_of_chains(accepted):
        print(f"warning: {warning}")
    if not files:
        print(f"{PIPELINES} has no pipeline: write one as README.md describes")
    return status


def _doubts_of_chains(pipelines: Mapping[Path, Pipeline]) -> Iterator[str]:
    """What is doubtful about sides that other pipelines publish."""
    for file, pipeline in pipelines.items():
        for name, side in zip(("left", "right"), pipeline.sides, strict=True):
            for first in pipelines.values():
                for topic in _published_to(first, side):
                    yield from (f"{file}: {doubt}" for doubt in _doubts_of_side(pipeline, name, topic, first))


def _published_to(first: Pipeline, side: Side) -> list[str]:
    """The topics of a side that have the compounds of a pipeline."""
    topics = first.compound_topics if side.connection == first.output_connection else ()
    return list(filter(side.has, topics))


def _doubts_of_side(pipeline: Pipeline, name: str, topic: str, first: Pipeline) -> Iterator[str]:
    side = pipeline.left if name == "left" else pipeline.right
    if not side.compounds:
        yield (
            f"{name}.compounds: {topic} has the compounds of {first.name}; without compounds: true their corrections would be second "
            "events, and their retractions malformed"
        )
        return
    waits = first.gap_ms + first.grace_ms
    if pipeline.clock == "lag_aware" and pipeline.grace_ms <= waits:
        yield (
            f"grace: compounds of {first.name} come later than {setting(waits)} after their sessions; with a grace of "
            f"{setting(pipeline.grace_ms)} many would be late, or alone because their other side is published by then"
        )
    if pipeline.clock == "lag_aware" and first.clock == "stream_time":
        yield (
            f"clock: in silence {first.name} publishes nothing (stream_time), and here silence closes sessions (lag_aware): the other side of "
            "its last compounds would be published alone; set clock: stream_time"
        )
    kept, correctable = pipeline.maintenance.raw_retention_ms, first.maintenance.raw_retention_ms
    if kept is not None and (correctable is None or correctable > kept):
        yield (
            f"maintenance.raw_retention: {first.name} can correct older compounds than those of which this pipeline keeps rows for {setting(kept)}; "
            "such a correction changes nothing here"
        )
