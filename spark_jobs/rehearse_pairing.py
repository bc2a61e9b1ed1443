"""Rehearse the pairing rules on files: no Kafka, no Delta, no Airflow.

    python -m spark_jobs.rehearse_pairing --pipeline include/pipelines/calls.yaml --batch FILE@CLOCK [--batch FILE@CLOCK …]

FILE holds what `kcat -C -J` prints, one object a line (topic, partition, offset, ts, key, payload); topics tell the side.
CLOCK is the batch's clock in epoch ms and its wall time, too; each batch continues from the one before, whose clock it
never falls behind. Prints JSON lines: `compound_events` and `rejected_events` of each batch, then `open_events` after the
last batch, then one `batch_ledger` line of counts a batch. The functions that decide are those of the Spark jobs.

With `--explain VALUE …`, one value for each key field in order, prints the story of that pair in words instead.
"""

from __future__ import annotations

import signal
import sys

from spark_jobs.job.arguments import OneLineParser, fail, pipeline_argument
from spark_jobs.story.record_files import read_records
from spark_jobs.story.rehearsal import batch_argument
from spark_jobs.story.rehearsal import rehearse as main
from spark_jobs.story.rehearsed import UnknownKey, explain

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
    if given.explain is None:
        printed = main(given.pipeline, given.batch)
    elif len(given.explain) != len(given.pipeline.key):
        fail(
            f"--explain takes one value for each of {', '.join(given.pipeline.key)}, in this order; {len(given.explain)} given"
        )
    else:
        read = [(read_records(batch.path, given.pipeline), batch.clock) for batch in given.batch]
        printed = explain(given.pipeline, tuple(given.explain), read)
    # Whoever reads may have had enough, as head has.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        for line in printed:
            print(line)
    except UnknownKey as unknown:
        sys.exit(str(unknown))
