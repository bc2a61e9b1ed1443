"""The assets of a pipeline, for DAGs that are to run when they change; events carry the counts of the job that changed them."""

from __future__ import annotations

from airflow.sdk import Asset

from include.config.pipeline import Pipeline

GROUP = "event-pairing"


def raw_assets(pipeline: Pipeline) -> list[Asset]:
    """The raw tables, changed by live runs."""
    return [Asset(f"{pipeline.name}/raw_{side.payload}", group=GROUP) for side in pipeline.sides]


def compounds_asset(pipeline: Pipeline) -> Asset:
    """The table of compounds, changed by live runs and by replays."""
    return Asset(f"{pipeline.name}/compound_events", group=GROUP)


def topic_asset(pipeline: Pipeline) -> Asset:
    """The output topic."""
    # A topic may be named like a table, or like the records that a live DAG waits for.
    return Asset(f"{pipeline.name}/topic/{pipeline.output_topic}", group=GROUP)
