"""Publishes: sends the compounds of every paired batch beyond the position to the output topic, exactly once.

    publish_compounds --pipeline include/pipelines/calls.yaml [--warehouse URI] [--accept-recreated-topic TOPIC-ID]
                      [--release-batch BATCH] [--accept-lost-positions]

Records and position go out in one Kafka transaction an output partition; see spark_jobs/kafka/publisher.py.
"""

from __future__ import annotations

from spark_jobs.job.run import job_parser, run_job
from spark_jobs.stages.publish import publish_batches as main

if __name__ == "__main__":
    parser = job_parser("publish_compounds", __doc__)
    parser.add_argument(
        "--accept-recreated-topic",
        metavar="TOPIC-ID",
        help="go on with the output topic of this id (of several, with commas between), although it is not the one that earlier batches "
        "were published to",
    )
    parser.add_argument(
        "--release-batch",
        type=int,
        default=0,
        metavar="BATCH",
        help="with quality.gate: before_publish, let batches up to this one go although they failed their checks",
    )
    parser.add_argument(
        "--accept-lost-positions",
        action="store_true",
        help="where positions have expired in the middle of a publication and it is not known what was sent, send it again",
    )
    given = parser.parse_args()
    run_job(
        "publish_compounds",
        given,
        lambda warehouse: main(warehouse, given.accept_recreated_topic, given.release_batch, given.accept_lost_positions),
        own_workers=True,
    )
