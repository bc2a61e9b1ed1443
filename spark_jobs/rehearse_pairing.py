"""Rehearses the pairing rules on files: no Kafka, no Delta, no Airflow.

    python -m spark_jobs.rehearse_pairing --pipeline include/pipelines/calls.yaml --batch FILE@CLOCK [--batch FILE@CLOCK …]

FILE holds what `kcat -C -J` prints, one object a line (topic, partition, offset, ts, key, payload); topics tell the side.
CLOCK is the batch's clock and its wall time, in epoch ms; each batch continues from the one before, whose clock it
never falls behind. The command prints JSON lines: `compound_events` and `rejected_events` of each batch, then `open_events`
after the last batch, then one `batch_ledger` line of counts a batch. The functions that decide are those of the Spark jobs.

With `--explain VALUE …`, one value for each key field in order, it prints the story of that pair in words instead.
"""

from __future__ import annotations

import signal
import sys

from include.config.pipeline import JSON
from spark_jobs.job.arguments import OneLineParser, fail, pipeline_argument
from spark_jobs.story.from_files import batch_argument, explain, read_batches, rehearse
from spark_jobs.story.history import UnknownKey

if __name__ == "__main__":
    parser = OneLineParser(
        prog="rehearse_pairing", description="Rehearse the pairing rules on files, without Kafka, Delta or Airflow."
    )
    parser.add_argument("--pipeline", type=pipeline_argument, required=True, help="the pipeline's YAML file")
    parser.add_argument(
        "--batch",
        type=batch_argument,
        action="append",
        required=True,
        metavar="FILE@CLOCK",
        help="records as `kcat -C -J` prints them, and the batch's clock in epoch ms; repeat for further batches",
    )
    parser.add_argument(
        "--explain",
        nargs="+",
        metavar="VALUE",
        help="tell the story of the pair with this key, one value for each key field in order, instead of the JSON lines",
    )
    given = parser.parse_args()
    if others := [side.topic for side in given.pipeline.sides if side.format != JSON or side.key_format != JSON]:
        fail(f"--pipeline: records of {others[0]} are no JSON, and kcat prints only texts; land them, and use explain_pair")
    if given.explain is not None and len(given.explain) != len(given.pipeline.key):
        fail(
            f"--explain takes one value for each of {', '.join(given.pipeline.key)}, in this order; {len(given.explain)} given"
        )
    # A reader like head may close the pipe early.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        if given.explain is None:
            lines = rehearse(given.pipeline, given.batch)
        else:
            lines = explain(given.pipeline, tuple(given.explain), read_batches(given.pipeline, given.batch))
        for line in lines:
            print(line)
    except UnknownKey as unknown:
        sys.exit(str(unknown))
