"""Where the retractions of an erasure are looked for."""

from __future__ import annotations

from dataclasses import replace

from include.config.pipeline import PIPELINES
from include.config.pipeline_file import load_pipeline
from spark_jobs.corrections.erasure_end import _sent
from spark_jobs.kafka.records import Span
from spark_jobs.tables.ledger_rows import PUBLISHED, PUBLISHED_ORPHANS, PUBLISHED_REJECTED, PUBLISHING
from tests.helpers.ledger_rows import ledger_row

PIPELINE = replace(
    load_pipeline(PIPELINES / "calls.yaml"), output_topic="out", output_orphans_topic="alone", output_rejected_topic="dead"
)


def row(step, topic_id, end):
    return ledger_row(7, step, pipeline=PIPELINE, topic_id=topic_id, ends={0: end})


def test_each_output_topic_is_read_from_its_own_end_before_the_publication():
    begun = [row(PUBLISHING, topic_id, end) for topic_id, end in (("o", 900), ("a", 70), ("d", 3), ("o", 950))]
    sent = [row(PUBLISHED_REJECTED, "d", 3), row(PUBLISHED_ORPHANS, "a", 72), row(PUBLISHED, "o", 990)]
    assert _sent([*begun, *sent]) == {("alone", 0): Span(70, 72), ("out", 0): Span(900, 990)}
