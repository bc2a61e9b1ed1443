"""What was published of a pair: every row of its compounds, and where it is on the output topic."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from confluent_kafka import KafkaException

from spark_jobs.faults.problems import JobProblem
from spark_jobs.kafka.messages import output_key, partitions_of
from spark_jobs.kafka.offsets import TopicsNow, ask_broker
from spark_jobs.kafka.settings import kafka_settings
from spark_jobs.story.batches import History
from spark_jobs.story.on_topic import Id, Stretch, find
from spark_jobs.tables.ledger import PAIRED, PUBLISHED, Ledger, LedgerRow
from spark_jobs.tables.warehouse import Warehouse

Row = dict[str, Any]


class Compounds:
    """Sentences about the rows of `compound_events` of one key."""

    def __init__(self, warehouse: Warehouse, key: tuple[str, ...], history: History) -> None:
        self.warehouse, self.history = warehouse, history
        self.key, self.topic = output_key(warehouse.pipeline, key), warehouse.pipeline.output_topic
        self.steps: dict[tuple[int, str], LedgerRow] = {}
        self.now: TopicsNow | None = None
        self.found: dict[Id, list[int]] = {}

    def told(self, rows: list[Row]) -> Iterator[str]:
        """A headline for each pair_id, and a sentence for each of its revisions."""
        if not rows:
            return
        batches = sorted({row["batch_id"] for row in rows})
        known = Ledger(self.warehouse).where(
            lambda column: column("batch_id").isin(batches) & column("step").isin([PAIRED, PUBLISHED])
        )
        self.steps = {(row.batch_id, row.step): row for row in known}
        unread = self._read(rows)
        for pair_id in dict.fromkeys(row["pair_id"] for row in rows):
            yield from ("", f"compound {pair_id}")
            for row in sorted((row for row in rows if row["pair_id"] == pair_id), key=lambda row: int(row["revision"])):
                what = "taken back" if row["op"] == "retract" else row["kind"]
                yield f"  revision {row['revision']}, {what}, by {self.history.kind(row['batch_id'])}: {self._where(row)}"
        if unread:
            yield from ("", f"{self.topic} was not read, so offsets are not told: {unread}")

    def _read(self, rows: list[Row]) -> str | None:
        """Looks the rows up on the topic; gives why that is not possible."""
        try:
            settings = kafka_settings()
            self.now = now = ask_broker(settings, [self.topic])
            wanted: dict[Stretch, list[Id]] = {}
            for row in rows:
                paired = self.steps.get((row["batch_id"], PAIRED))
                published = self.steps.get((row["batch_id"], PUBLISHED))
                if paired and not (published and self._is_elsewhere(published)):
                    stretch = Stretch(
                        self._partition(published),
                        _ms(paired.finished_at),
                        _ms(published.finished_at if published else None),
                    )
                    wanted.setdefault(stretch, []).append((row["pair_id"], row["revision"]))
            self.found = find(settings, self.topic, now, wanted)
        except JobProblem as problem:
            self.now = None
            return str(problem)
        except KafkaException as error:
            self.now = None
            return str(error.args[0].str())
        return None

    def _where(self, row: Row) -> str:
        published = self.steps.get((row["batch_id"], PUBLISHED))
        offsets = self.found.get((row["pair_id"], row["revision"]), [])
        if offsets:
            at = ", ".join(map(str, offsets))
            return f"on {self.topic}-{self._partition(published)} at offset{'s' if len(offsets) > 1 else ''} {at}"
        if published is None:
            return "not published yet"
        if self.now is None:
            return f"published to {self.topic}-{self._partition(published)}"
        if self._is_elsewhere(published):
            return f"published to {self.topic} before that was deleted and created again"
        place = (self.topic, self._partition(published))
        if published.published.refused:
            return f"not on {self.topic}-{place[1]}: its batch left out what was larger than the topic takes"
        if self.now.written.get(place, 0) > self.now.end[place]:
            return f"not to be seen on {self.topic}-{place[1]}: from offset {self.now.end[place]} on an open transaction holds everything back"
        return f"not on {self.topic}-{place[1]}" + (" any more, whose beginning is gone" if self.now.earliest[place] else "")

    def _partition(self, published: LedgerRow | None) -> int:
        partitions = published.output_state.partitions if published else None
        if partitions is None:
            partitions = 1 if self.now is None else len(self.now.end)
        return int(partitions_of([self.key], partitions)[0])

    def _is_elsewhere(self, published: LedgerRow) -> bool:
        """Whether it went to a topic that is no more."""
        return self.now is not None and published.output_state.topic_id != self.now.ids[self.topic]


def _ms(at: datetime | None) -> Any:
    return None if at is None else int(at.timestamp() * 1000)
