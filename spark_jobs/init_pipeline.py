"""Proposes a pipeline file for two topics that nobody has described yet. It looks at their newest records, and changes nothing.

    python -m include.init_pipeline --left TOPIC --right TOPIC [--write PATH]

The proposal says in which formats the records are, which fields identify a pair, where the times and payloads are, and the durations, each
with its reason as a comment. It is played over the records by the rules of the jobs, so it also says what share of each side would pair.
PAIRING_KAFKA (or --bootstrap) says where the broker is, PAIRING_SCHEMA_REGISTRY where the schema registry is, if records need one.
Ends with status 0, with 1 and one line if the topics cannot be read or nothing pairs, and with 2 on bad arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from include.config.pipeline import KAFKA as DEFAULT
from include.config.setting_types import Connection, PipelineName, Topic
from spark_jobs.job.arguments import OneLineParser, count_argument, setting_argument
from spark_jobs.job.run import errors_in_one_line, exit_without_cleanup
from spark_jobs.joining.command import OUT, chosen_name, propose_file
from spark_jobs.joining.documents import NoProposal
from spark_jobs.kafka.settings import VARIABLE as KAFKA

if __name__ == "__main__":
    parser = OneLineParser(prog="init_pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    topic = setting_argument(Topic)
    parser.add_argument("--left", type=topic, required=True, metavar="TOPIC", help="the topic of the left side")
    parser.add_argument("--right", type=topic, required=True, metavar="TOPIC", help="the topic of the right side")
    parser.add_argument("--output", type=topic, metavar="TOPIC", help="the topic of the compounds (default: NAME-compounds)")
    parser.add_argument(
        "--name", type=setting_argument(PipelineName), help="the pipeline's name (default: that of the file)"
    )
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help=f"a broker that needs no login, instead of ${KAFKA}")
    for side in ("left", "right"):
        help_text = f"the connection of the {side} topic's cluster, where it is another one (default: %(default)s)"
        connection = setting_argument(Connection)
        parser.add_argument(f"--{side}-connection", type=connection, default=DEFAULT, metavar="NAME", help=help_text)
        of_plain = (
            f"schema of the {side} topic if it is plain Avro (.avsc) or Protobuf (.proto), which does not show in records"
        )
        parser.add_argument(f"--{side}-schema-file", type=Path, metavar="PATH", help=of_plain)
        parser.add_argument(f"--{side}-message", metavar="NAME", help="the message of a Protobuf schema file with several")
    number = "how many of the newest records of each topic to look at"
    parser.add_argument(
        "--sample", type=count_argument, default=20_000, metavar="N", help=f"{number} (default: %(default)s)"
    )
    parser.add_argument("--write", type=Path, default=OUT, metavar="PATH", help="the file to write; - (default): none")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    given = parser.parse_args()
    name = chosen_name(given)
    if given.bootstrap:
        os.environ[KAFKA] = json.dumps({"bootstrap.servers": given.bootstrap})
    with exit_without_cleanup(), errors_in_one_line():
        try:
            propose_file(given, name)
        except NoProposal as why:
            sys.exit(f"error: {why}")
