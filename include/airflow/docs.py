"""The texts of the DAGs' pages in Airflow.

No `code` in them: its frame in Airflow covers the underscores of the line above. Links are relative: Airflow may be served below a path.
"""

from __future__ import annotations

import re

from include.config.pipeline import BEFORE_PUBLISH, REPLAY_SUFFIX, Pipeline


def live_doc(pipeline: Pipeline) -> str:
    """The text of the live DAG."""
    left, right = pipeline.sides
    replay = f"[{pipeline.name}{REPLAY_SUFFIX}](dags/{pipeline.name}{REPLAY_SUFFIX})"
    starts = f"\n5. **replay_late** starts a run of {replay} for each interval in which events came too late."
    return f"""### {_literal(left.input)} + {_literal(right.input)} → {pipeline.output_topic}

1. **land_events** plans a batch and lands both sides into Delta tables.
2. **pair_events** pairs the two sides of each session, tolerance {pipeline.tolerance_ms / 1000:g} s.
{_last_two(pipeline, 3)}{starts if pipeline.late == "replay" else ""}

[The state of the pipeline](quality/{pipeline.name}/index.html), with what is wrong now, is at the top of its newest quality page.

A run lands what is there now, whatever its date. To pair a past interval again, backfill {replay}.
"""


def replay_doc(pipeline: Pipeline) -> str:
    """The text of the replay DAG."""
    return f"""### {pipeline.output_topic}: an interval again

Pairs the landed events of an interval again, late ones included, and publishes only the differences to what was published: the
next revision of a compound, a retraction, a new one. The interval must be over. Start it in one of three ways, all with the same result:

- **Trigger**, *Backfill*: a run for each interval of the schedule between two dates;
- **Trigger**, *Single Run*, with the begin and end of any interval as parameters;
- on the command line, airflow backfill create; with --reprocess-behavior completed also intervals that were replayed before.

The schedule is {_literal(pipeline.replay_schedule)}; nothing runs by it. With late: replay in the pipeline's file the live DAG starts the
runs that late events need; their ids begin with "late".

1. **replay_interval** finishes what a live batch left unfinished, then pairs the interval and writes the differences.
{_last_two(pipeline, 2)}
"""


_RECONCILE = """2. **reconcile** reads topics and tables again, beside the live runs, and fails if a record is lost, or is there twice.
"""


def maintenance_doc(pipeline: Pipeline) -> str:
    """The text of the maintenance DAG."""
    return f"""### The tables of {pipeline.name}

1. **maintain_tables** removes rows that are older than the retention settings, if any is set, after writing them into the archive, if
   that is set; compacts small files; deletes files and log entries that no reader, retry or rewind can need any more.
{_RECONCILE if pipeline.maintenance.reconcile else ""}"""


def refused_doc(refusal: Exception) -> str:
    """The text of the DAG that stands for a refused file."""
    return f"### Configuration refused\n\n{_literal(str(refusal))}"


def _literal(text: str) -> str:
    """Markdown that shows the text unchanged: cron expressions are full of asterisks, paths of underscores."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)


def _last_two(pipeline: Pipeline, first: int) -> str:
    """The last two tasks in their order, numbered from `first`."""
    is_gate = pipeline.quality.gate == BEFORE_PUBLISH
    held = ", holding back what failed" if is_gate else ""
    orphans = f", those of one side to {pipeline.output_orphans_topic}" if pipeline.output_orphans_topic else ""
    rejected = (
        f" It sends a copy of each rejected record to {pipeline.output_rejected_topic}."
        if pipeline.output_rejected_topic
        else ""
    )
    tasks = [
        f"**publish_compounds** sends each compound exactly once to {pipeline.output_topic}{orphans}{held}.{rejected}",
        f"**report_quality** counts everything afresh, writes [the quality page](quality/{pipeline.name}/index.html), and fails if\n"
        "   an event was lost.",
    ]
    return "\n".join(f"{first + n}. {text}" for n, text in enumerate(reversed(tasks) if is_gate else tasks))
