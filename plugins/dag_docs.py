"""What the DAGs' pages in Airflow say."""

from __future__ import annotations

from include.pipeline_config import BEFORE_PUBLISH, REPLAY_SUFFIX, Pipeline


def live_doc(pipeline: Pipeline) -> str:
    """Of the scheduled DAG."""
    left, right = pipeline.sides
    asks = f"""
5. **replay_late** starts a run of `{pipeline.name}{REPLAY_SUFFIX}` for each interval in which events came too late."""
    return f"""### {left.topic} + {right.topic} → {pipeline.output_topic}

1. **land_events** plans a batch and lands `{left.topic}` and `{right.topic}` into Delta tables.
2. **pair_events** pairs the two sides of each session, tolerance {pipeline.tolerance_ms / 1000:g} s.
{_last_two(pipeline, 3)}{asks if pipeline.late == "replay" else ""}
"""


def replay_doc(pipeline: Pipeline) -> str:
    """Of the replay DAG."""
    return f"""### {pipeline.output_topic}: an interval again

Pairs the landed events of an interval again, late ones included, and publishes only what differs from what was published: the
next revision of a compound, a retraction, a new one. The interval must be closed. Three ways to ask for it, all the same:

- **Backfill** in the UI, which gives one run for each interval of `{pipeline.replay_schedule}`;
- `airflow backfill create --dag-id {pipeline.name}{REPLAY_SUFFIX} --from-date … --to-date … [--reprocess-behavior completed]`;
- **Trigger** with `window_start` and `window_end`, for any interval.

With `late: replay` in the pipeline's file the live DAG starts the runs that late events need; their ids begin with `late__`.

1. **replay_interval** finishes what a live batch left unfinished, then pairs the interval and writes the difference.
{_last_two(pipeline, 2)}
"""


def _last_two(pipeline: Pipeline, first: int) -> str:
    """The tasks at the end in their order, numbered from `first`."""
    gate = pipeline.quality.gate == BEFORE_PUBLISH
    held = ", holding back what failed" if gate else ""
    told = [
        f"**publish_compounds** sends each compound exactly once to `{pipeline.output_topic}`{held}.",
        f"**report_quality** counts everything afresh, writes [the quality page](/quality/{pipeline.name}/index.html), and fails if\n"
        "   an event was lost.",
    ]
    return "\n".join(f"{first + n}. {text}" for n, text in enumerate(reversed(told) if gate else told))
