"""Creates the missing topics of all pipelines in include/pipelines/: `python -m include.image.create_topics kafka:19092`.

It does not change topics that exist; an operator may have added partitions.
"""

from __future__ import annotations

import sys

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from include.config.pipeline import PIPELINES, PipelineError
from include.config.pipeline_file import load_pipeline

PARTITIONS = 4
TIMEOUT_SECONDS = 30


def pipeline_topics() -> list[str]:
    """Input and output topics of all pipelines, each once, in alphabetical order; raises PipelineError."""
    pipelines = [load_pipeline(path) for path in PIPELINES.glob("*.yaml")]
    return sorted({topic for pipeline in pipelines for topic in (*pipeline.input_topics, *pipeline.output_topics)})


def create_missing(admin: AdminClient, topics: list[str]) -> list[str]:
    """Returns the topics that did not exist; raises KafkaException."""
    existing = admin.list_topics(timeout=TIMEOUT_SECONDS).topics
    missing = [topic for topic in topics if topic not in existing]
    new = [NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1) for topic in missing]
    for answer in admin.create_topics(new).values() if new else ():
        try:
            answer.result(timeout=TIMEOUT_SECONDS)
        except KafkaException as error:
            # Another program may have created it meanwhile.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return missing


def main(arguments: list[str]) -> int:
    """`arguments`: the broker's host:port. Returns the exit status: 0 if every topic exists, else 1 with one line."""
    (bootstrap,) = arguments
    try:
        created = create_missing(AdminClient({"bootstrap.servers": bootstrap}), pipeline_topics())
    except KafkaException as error:
        print(f"Kafka at {bootstrap}: {error.args[0].str()}: see docker compose logs kafka")
        return 1
    except PipelineError as error:
        print(error)
        return 1
    print(f"Created: {', '.join(created) or 'nothing, every topic exists'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
