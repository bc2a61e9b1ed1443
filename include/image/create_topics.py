"""Creates the missing topics of all pipelines in include/pipelines/: `python -m include.image.create_topics kafka:19092`.

It does not change topics that exist; an operator may have added partitions.
"""

from __future__ import annotations

import sys

from confluent_kafka import KafkaException

from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline
from include.local.broker import admin_client, create_topics
from include.local.machine import SetupError

PARTITIONS = 4
TIMEOUT_SECONDS = 30


def pipeline_topics() -> list[str]:
    """Input and output topics of all pipelines, each once, in alphabetical order; raises PipelineError."""
    pipelines = [load_pipeline(path) for path in PIPELINES.glob("*.yaml")]
    return sorted({topic for pipeline in pipelines for topic in pipeline.topics})


def main(arguments: list[str]) -> int:
    """`arguments`: the broker's host:port. Returns the exit status: 0 if every topic exists, else 1 with one line."""
    (bootstrap,) = arguments
    try:
        existing = admin_client(bootstrap).list_topics(timeout=TIMEOUT_SECONDS).topics
        missing = [topic for topic in pipeline_topics() if topic not in existing]
        create_topics(bootstrap, dict.fromkeys(missing, PARTITIONS))
    except KafkaException as error:
        print(f"Kafka at {bootstrap}: {error.args[0].str()}: see docker compose logs kafka")
        return 1
    except (SetupError, PipelineError) as error:
        print(error)
        return 1
    print(f"Created: {', '.join(missing) or 'nothing, every topic exists'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
