"""Explains one pair from the tables: what became of each of its messages and why, and where its compounds are on the topic.

    explain_pair --pipeline include/pipelines/calls.yaml VALUE … [--around TIME] [--html FILE] [--warehouse URI]

Takes one VALUE for each key field, in order. --around shows and reads only what lies about TIME (ISO 8601, UTC if it names no zone,
or epoch ms), which is faster where a key has many events. The command only reads, takes no lock and needs no Spark. It reads the output
topic if PAIRING_KAFKA is set and Kafka answers. It ends with status 1 if the key has no messages.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from spark_jobs.job.arguments import fail, time_argument
from spark_jobs.job.run import job_parser, reading_tables
from spark_jobs.story.from_tables import explain
from spark_jobs.story.history import UnknownKey
from spark_jobs.story.page import page
from spark_jobs.tables.tables import Tables


def main(warehouse: Tables, key: tuple[str, ...], around: int | None, file: Path | None) -> None:
    """Prints the story; `file`: where to write it as a page, too. Raises UnknownKey."""
    lines = []
    for line in explain(warehouse, key, around):
        lines.append(line)
        print(line, flush=True)
    if file is not None:
        file.write_text(page(lines), encoding="utf-8")


if __name__ == "__main__":
    parser = job_parser("explain_pair", __doc__)
    parser.add_argument("key", nargs="+", metavar="VALUE", help="the key: one value for each key field, in order")
    parser.add_argument("--around", type=time_argument, metavar="TIME", help="show only what lies about this point in time")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the story as a page, too")
    given = parser.parse_args()
    if len(given.key) != len(given.pipeline.key):
        fail(f"the key is one value for each of {', '.join(given.pipeline.key)}, in this order; {len(given.key)} given")
    # A reader like head may close the pipe early.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with reading_tables(given) as tables:
        try:
            main(tables, tuple(given.key), given.around, given.html)
        except UnknownKey as unknown:
            sys.exit(str(unknown))
