"""Erases a person's data: from every table and its time travel, from the quality pages, and, by tombstones, from a compacted output topic.

    erase_key --pipeline include/pipelines/calls.yaml VALUE … [--field NAME] [--yes] [--by WHO] [--warehouse URI]

As many VALUEs as the key has fields are one key: the pair. One VALUE alone stands in any field of the key, or in the one that --field names.
Without --yes it only prints what it finds. Rows are emptied and keep what is counted: places, times, outcomes. Open events are removed.
Compounds are retracted. An erasure is a batch; land_events or the same command finishes a killed one. A certificate is printed and kept in
<warehouse>/<pipeline>/erasures. Nothing can go back behind it: rewinds to earlier batches are refused. It erases what is there; what comes
later is landed as new. See docs/erasure.md.
"""

from __future__ import annotations

from spark_jobs.corrections.erasure import erase as main
from spark_jobs.corrections.erasure import preview
from spark_jobs.corrections.erasure_search import person
from spark_jobs.job.arguments import fail, write_outcome
from spark_jobs.job.run import job_parser, reading_job, run_job

_LOCK_WAIT_S = 20.0

if __name__ == "__main__":
    parser = job_parser("erase_key", __doc__)
    parser.add_argument("values", nargs="+", metavar="VALUE", help="one value for each key field, in order; or one alone")
    parser.add_argument("--field", metavar="NAME", help="the key field that one VALUE alone stands in (default: any)")
    parser.add_argument("--yes", action="store_true", help="do it; without this nothing is changed")
    parser.add_argument(
        "--by", metavar="WHO", help="who asks for it, for the certificate (default: the user of this process)"
    )
    given = parser.parse_args()
    try:
        whose = person(given.pipeline, given.values, given.field)
    except ValueError as error:
        fail(str(error))
    if given.yes:
        run_job("erase_key", given, lambda warehouse: main(warehouse, whose, given.by), _LOCK_WAIT_S)
    else:
        with reading_job("erase_key", given) as reading:
            print(preview(reading, whose))
            write_outcome({"ok": True, "counts": {}})
