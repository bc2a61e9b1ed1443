"""Rehearses the pairing rules on files or on the newest records of the topics: no Delta, no Airflow, and nothing is written.

    python -m spark_jobs.rehearse_pairing --pipeline include/pipelines/calls.yaml --batch FILE@CLOCK [--batch FILE@CLOCK …]
    python -m spark_jobs.rehearse_pairing --pipeline include/pipelines/calls.yaml --from-topics [--newest N] [--since TIME]

FILE holds what `kcat -C -J` prints, one object a line (topic, partition, offset, ts, key, payload); topics tell the side.
CLOCK is the batch's clock and its wall time, in epoch ms; each batch continues from the one before, whose clock it
never falls behind. Records of topics are one batch, whose clock is now. Prints JSON lines: `compound_events` and
`rejected_events` of each batch, then `open_events` after the last one, then a `batch_ledger` line of counts a batch. The
functions are those of the Spark jobs. PAIRING_KAFKA and PAIRING_SCHEMA_REGISTRY say where topics and schemas are.

With `--explain VALUE …`, one value for each key field in order, it prints the story of that pair in words instead.
"""

from __future__ import annotations

import argparse
import signal
import sys

from include.config.pipeline import PipelineError
from spark_jobs.faults.problems import JobProblem
from spark_jobs.job.arguments import OneLineParser, count_argument, end_with, fail, pipeline_argument, time_argument
from spark_jobs.story.from_files import batch_argument, explain, read_batches, rehearse
from spark_jobs.story.history import UnknownKey

_NEWEST = 20_000

if __name__ == "__main__":
    parser = OneLineParser(prog="rehearse_pairing", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pipeline", type=pipeline_argument, required=True, help="the pipeline's YAML file")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--batch", type=batch_argument, action="append", metavar="FILE@CLOCK", help="a batch; repeat it")
    source.add_argument("--from-topics", action="store_true", help="the newest records of both topics; nothing is committed")
    parser.add_argument("--newest", type=count_argument, metavar="N", help=f"so many of each topic (default: {_NEWEST})")
    parser.add_argument("--since", type=time_argument, metavar="TIME", help="no records of topics that are older")
    story = "one value for each key field in order: tell the story of that pair instead of the JSON lines"
    parser.add_argument("--explain", nargs="+", metavar="VALUE", help=story)
    given = parser.parse_args()
    if not given.from_topics and (given.newest, given.since) != (None, None):
        fail("--newest and --since go with --from-topics; files are played as they are")
    key, fields = tuple(given.explain or ()), given.pipeline.key
    if key and len(key) != len(fields):
        fail(f"--explain takes one value for each of {', '.join(fields)}, in this order; {len(key)} given")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader like head may close the pipe early
    try:
        if given.from_topics:
            # Files need none of what reads topics, which takes long to import.
            from spark_jobs.story.from_topics import read_topics

            batches = read_topics(given.pipeline, given.newest or _NEWEST, given.since)
        else:
            batches = read_batches(given.pipeline, given.batch)
        for line in explain(given.pipeline, key, batches) if key else rehearse(given.pipeline, batches):
            print(line)
    except UnknownKey as unknown:
        sys.exit(str(unknown))
    except (JobProblem, PipelineError, OSError) as problem:
        end_with(" ".join(str(problem).split()), 1, retry=False)
