"""What the DAGs' pages in Airflow say.

Without code in a line: Airflow's frame around it covers the underscores of the line above. Links have no slash in front: Airflow may be
served below a path.
"""

from __future__ import annotations

import re

from include.config.pipeline import BEFORE_PUBLISH, REPLAY_SUFFIX, Pipeline


def live_doc(pipeline: Pipeline) -> str:
    """Of the scheduled DAG."""
    left, right = pipeline.sides
    asks = f"""
5. **replay_late** starts a run of {_replays(pipeline)} for each interval in which events came too late."""
    return f"""### {left.topic} + {right.topic} → {pipeline.output_topic}

1. **land_events** plans a batch and lands both topics into Delta tables.
2. **pair_events** pairs the two sides of each session, tolerance {pipeline.tolerance_ms / 1000:g} s.
{_last_two(pipeline, 3)}{asks if pipeline.late == "replay" else ""}

A run lands what is there now, whatever its date. To pair a past interval again, backfill {_replays(pipeline)}.
"""


def replay_doc(pipeline: Pipeline) -> str:
    """Of the replay DAG."""
    return f"""### {pipeline.output_topic}: an interval again

Pairs the landed events of an interval again, late ones included, and publishes only what differs from what was published: the
next revision of a compound, a retraction, a new one. The interval must be over. Three ways to ask for it, all the same:

- **Trigger**, *Backfill*: a run for each interval of the schedule between two dates;
- **Trigger**, *Single Run*, with the begin and end of any interval as parameters;
- on the command line, airflow backfill create; with --reprocess-behavior completed also intervals that were replayed before.

The schedule is {_literal(pipeline.replay_schedule)}; nothing runs by it. With late: replay in the pipeline's file the live DAG starts the
runs that late events need; their ids begin with "late".

1. **replay_interval** finishes what a live batch left unfinished, then pairs the interval and writes the difference.
{_last_two(pipeline, 2)}
"""


def _replays(pipeline: Pipeline) -> str:
    """A link to the replay DAG."""
    return f"[{pipeline.name}{REPLAY_SUFFIX}](dags/{pipeline.name}{REPLAY_SUFFIX})"


def refused_doc(refusal: Exception) -> str:
    """Of the DAG in the place of a file that cannot be used."""
    return f"### Configuration refused\n\n{_literal(str(refusal))}"


def _literal(text: str) -> str:
    """Markdown that shows the text as it is: a cron expression is full of asterisks, a file's path of underscores."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)


def _last_two(pipeline: Pipeline, first: int) -> str:
    """The tasks at the end in their order, numbered from `first`."""
    gate = pipeline.quality.gate == BEFORE_PUBLISH
    held = ", holding back what failed" if gate else ""
    told = [
        f"**publish_compounds** sends each compound exactly once to {pipeline.output_topic}{held}.",
        f"**report_quality** counts everything afresh, writes [the quality page](quality/{pipeline.name}/index.html), and fails if\n"
        "   an event was lost.",
    ]
    return "\n".join(f"{first + n}. {text}" for n, text in enumerate(reversed(told) if gate else told))
