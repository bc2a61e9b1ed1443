"""Positions that Kafka has forgotten in the middle of a publication, read off the output topic itself.

A broker forgets the offsets of a group that is idle for `offsets.retention.minutes`. The ledger's copy is from before the publication, so
whoever went on from it would send again what some partitions have already. Before a batch's first message is sent, the ledger gets
a row `publishing` with the end of every output partition; what lies behind these ends is what was sent since.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource
from pyspark.sql import functions as F

from include.config.pipeline import Pipeline
from spark_jobs.faults.problems import JobProblem, NeedsOperator
from spark_jobs.kafka.acls import Right, granting
from spark_jobs.kafka.cleanup_policy import cleanup_of
from spark_jobs.kafka.message_rows import header
from spark_jobs.kafka.offsets import Partition, TopicsNow, ask_broker, ends_written, wait_for_markers
from spark_jobs.kafka.positions import Leg, Position
from spark_jobs.kafka.records import Span, allowed, read_records
from spark_jobs.kafka.settings import ANSWER_WITHIN_S, Settings, admin_settings
from spark_jobs.tables.ledger import LedgerRow
from spark_jobs.tables.schemas import COMPOUNDS
from spark_jobs.tables.warehouse import Warehouse

# Below a day, a night's standstill is enough to lose them.
_DAY_MINUTES = 24 * 60


class Begun:
    """How a publication beyond the ledger's copy was begun: `slots`, and the ends (by partition) that the topic had then."""

    def __init__(self, rows: Iterable[LedgerRow]) -> None:
        found = list(rows)
        # With another number nothing was sent: it would have been finished with that.
        self.slots = max((row.output_state.slots for row in found), default=0)
        same = [row for row in found if row.output_state.slots == self.slots]
        self.batch_ids = {row.batch_id for row in same}
        self.since = min((row.finished_at for row in found if row.finished_at), default=None)
        self.ends: dict[int, int] = {}
        for row in same:
            for number, end in row.output_state.ends.items():
                self.ends[number] = min(end, self.ends.get(number, end))

    def age_ms(self) -> float:
        """How long ago it was."""
        return 0.0 if self.since is None else (datetime.now(UTC) - self.since.astimezone(UTC)).total_seconds() * 1000


def find_positions(
    warehouse: Warehouse, settings: Settings, whole: Leg, begun: Begun, forgotten: list[int], accepted: bool
) -> dict[int, Position]:
    """Partition -> position, of those that something was sent to since it was begun. The predecessors must be fenced.

    `accepted`: the operator knows that nobody can tell what was sent to a partition, and wants it sent again. Raises NeedsOperator
    where he does not, and JobProblem where the topic cannot be read to its end yet.
    """
    wait_for_markers(settings, whole.topic)
    topics, written = ask_broker(settings, [whole.topic]), ends_written(settings, whole.topic)
    spans = {(whole.topic, number): Span(begun.ends.get(number, 0), written[number]) for number in forgotten}
    spans = {place: span for place, span in spans.items() if span.first < span.until}
    if not spans:
        return {}
    for (_, number), span in spans.items():
        if (end := topics.end[whole.topic, number]) < span.until:
            raise JobProblem(
                f"{whole.topic}-{number} can be read up to offset {end} only, but is written up to {span.until}: another producer's "
                "transaction is open there; publishing waits for its end, to see what it has sent itself"
            )
    unknown, reason = _unknown(warehouse, settings, whole, begun, spans, topics)
    if unknown and not accepted:
        numbers = ", ".join(str(number) for _, number in sorted(unknown))
        raise NeedsOperator(
            f"the positions of group {whole.group} on partitions {numbers} of {whole.topic} have expired in the middle of a publication, "
            f"and nobody can tell what was sent: {reason}; to send all behind batch {whole.copy} again, run publish_compounds "
            "once with --accept-lost-positions"
        )
    spans = {place: span for place, span in spans.items() if place not in unknown}
    sent = allowed(lambda: _sent(warehouse, whole, spans), [whole.topic])
    return {number: _position(whole, begun.slots, batches) for number, batches in sent.items()}


def _unknown(
    warehouse: Warehouse, settings: Settings, whole: Leg, begun: Begun, spans: Mapping[Partition, Span], topics: TopicsNow
) -> tuple[set[Partition], str]:
    """The partitions from which messages that were sent may be gone by now, and why."""
    if cut := {place for place, span in spans.items() if topics.earliest[place] > span.first}:
        return cut, "retention has removed messages since"
    cleanup = cleanup_of(settings, whole.topic)
    if cleanup.compacted is False:
        return set(), ""
    reason = "the topic is compacted" if cleanup.compacted else "the topic may be compacted"
    if begun.age_ms() >= cleanup.tombstones_ms:
        return set(spans), reason
    # The last record of a partition stays, if it is no old tombstone: where there is none, none was sent.
    records = allowed(lambda: read_records(warehouse.spark, spans, False, ["partition"]).distinct().collect(), [whole.topic])
    return {(whole.topic, row["partition"]) for row in records}, reason


def _sent(warehouse: Warehouse, whole: Leg, spans: Mapping[Partition, Span]) -> dict[int, dict[int, int]]:
    """Partition -> batch_id -> messages of the leg in the spans."""
    records = read_records(warehouse.spark, spans, False, ["partition", "headers"])
    messages = records.select("partition", header("pair-id").alias("pair_id"), header("revision").alias("revision"))
    batches = range(whole.copy + 1, whole.target + 1)
    beyond = warehouse.read(COMPOUNDS, ["pair_id", "revision", "batch_id"], batches=batches)
    compounds = beyond.select("pair_id", F.col("revision").cast("string").alias("revision"), "batch_id")
    rows = messages.join(compounds, ["pair_id", "revision"]).groupBy("partition", "batch_id").count().collect()
    found: dict[int, dict[int, int]] = {}
    for row in rows:
        found.setdefault(row["partition"], {})[row["batch_id"]] = row["count"]
    return found


def _position(whole: Leg, slots: int, batches: dict[int, int]) -> Position:
    """Of the last batch that is there: a transaction has whole batches, in their order. What is not among them was too large."""
    limits = dict.fromkeys(range(whole.copy + 1, max(batches) + 1), whole.largest)
    return Position(max(batches), whole.table_id, slots, whole.topic_id, batches, limits)


def tell_short_retention(settings: Settings, pipeline: Pipeline) -> int | None:
    """For how many minutes the broker keeps positions, for the ledger; None if nobody may see it.

    The task's log has a warning where that is short: less than a day, or than one can go back, for a publication that was broken off
    may have to wait as long for an operator.
    """
    admin = AdminClient(admin_settings(settings))
    try:
        number = min(admin.list_topics(timeout=ANSWER_WITHIN_S).brokers)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
        configured = admin.describe_configs([resource], request_timeout=ANSWER_WITHIN_S)[resource].result()
        minutes = int(configured["offsets.retention.minutes"].value)
    except KafkaException as error:
        remedy = granting(settings, Right("DescribeConfigs", "--cluster"))
        print(
            f"warning: for how long the broker keeps positions is not known ({error.args[0].str()}); for the user to see it: {remedy}",
            file=sys.stderr,
        )
        return None
    if minutes < (wanted := max(_DAY_MINUTES, pipeline.maintenance.time_travel_ms // 60_000)):
        print(
            f"warning: the broker forgets the positions of a publisher that stands still for {minutes:,} minutes "
            f"(offsets.retention.minutes), and it may have to for {wanted:,} (maintenance.time_travel, or a day); a publication that is "
            "broken off for longer is read back from the topic, where nothing was removed from it since",
            file=sys.stderr,
        )
    return minutes
