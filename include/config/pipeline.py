"""The settings of a pipeline: frozen, every duration in epoch milliseconds. `include.config.pipeline_file` reads them from YAML.

DAG files and jobs both use them, so this module imports neither pyspark nor airflow. The type of a field is also its check in the file; a
pipeline that code makes is not checked.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import ConfigDict

from include.config import setting_types as kinds
from include.config.project import ROOT
from include.config.setting_types import MAINTENANCE_SUFFIX, MS_PER_UNIT, ON_DATA, REPLAY_SUFFIX
from include.config.times import Times, is_text
from include.config.topic_pattern import matches

# The Airflow connection of the Kafka cluster that has a topic, unless the pipeline names another one.
KAFKA: Final = "kafka_default"
# Each file here is a pipeline.
PIPELINES = Path(os.environ.get("PAIRING_PIPELINES") or ROOT / "include" / "pipelines")
# The quality report compares a batch only with at least so many batches before it.
FEWEST_BATCHES = 8
# Fewer orphans in a row may be chance.
FEWEST_ORPHANS = 10
BEFORE_PUBLISH: Final = "before_publish"
AFTER_PUBLISH: Final = "after_publish"
# How the fields of an output key become one text. It may also be a record, in AVRO or PROTOBUF.
ESCAPED: Final = "escaped"
AS_JSON: Final = "json"
# Whether the pair (a, b) is the pair (b, a).
AS_IS: Final = "as_is"
ANY_ORDER: Final = "any"
# What the bytes of records are. All but JSON come with a schema.
JSON: Final = "json"
JSON_SCHEMA: Final = "json_schema"
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
Format = Literal["json", "json_schema", "avro", "protobuf"]
_KEYS = ConfigDict(alias_generator=kinds.file_key, extra="forbid")


def pipeline_of(dag_id: str) -> str:
    """The name of a pipeline, given that of one of its DAGs."""
    return dag_id.removesuffix(REPLAY_SUFFIX).removesuffix(MAINTENANCE_SUFFIX)


class PipelineError(ValueError):
    """A pipeline file that cannot work; the text is one line: file, key, consequence."""


@dataclass(frozen=True)
class Side:
    """The topics of one side, the name of the payload in which its events differ, and where everything is in their records.

    `topic`: one name, or several; None: those whose whole name `topic_pattern`, a regular expression, matches.
    `payload_from`: None is the body field `payload`. `key`: (key field, source); those it does not name are body fields of the same name.
    `timestamp…`: None is what the pipeline says. `only`: (source, texts of which it has to have one); other records are filtered out.
    `schema`: the content of a schema file, None: from the registry, if the format has one. `message`: of a Protobuf schema file.
    `compounds`: whether the topic is the output topic of another pipeline: records then name a compound and its revision in their headers.
    """

    __pydantic_config__ = _KEYS
    topic: kinds.Topics
    payload: kinds.Column
    connection: kinds.Connection = KAFKA
    payload_from: kinds.Source = None
    key: kinds.KeySources = ()
    timestamp: kinds.OwnTimeSource = None
    timestamp_format: kinds.TimeFormat = None
    timestamp_zone: kinds.TimeZone = None
    only: kinds.Only = ()
    format: Format = JSON
    schema: str | None = None
    message: kinds.MessageName = None
    key_format: Format = JSON
    compounds: kinds.Flag = False
    topic_pattern: kinds.TopicPattern = None

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics that the settings name, by name; none of a pattern."""
        return tuple(sorted((self.topic,) if isinstance(self.topic, str) else self.topic or ()))

    @property
    def single_topic(self) -> str:
        """The topic of a side that has only one. Raises PipelineError if it may have several."""
        if not isinstance(self.topic, str):
            raise PipelineError(f"{self.input}: this works with one topic a side only")
        return self.topic

    @property
    def input(self) -> str:
        """What lines for people call the topics: `calls`, `calls-eu and calls-us`, `topics like calls-.*`."""
        *others, last = self.named_topics or (f"topics like {self.topic_pattern}",)
        return f"{', '.join(others)} and {last}" if others else last

    def has(self, topic: str) -> bool:
        """Whether a topic is of this side. Topics that Kafka keeps for itself match no pattern."""
        if self.topic_pattern is None:
            return topic in self.named_topics
        return matches(self.topic_pattern, topic)

    def includes(self, earlier: Side) -> bool:
        """Whether every topic that a side with the earlier settings can have read is of this one."""
        if earlier.topic_pattern is not None:
            return self.topic_pattern == earlier.topic_pattern
        return all(map(self.has, earlier.named_topics))

    @property
    def needs_registry(self) -> bool:
        """Whether records name schemas by their ids in a registry."""
        return (self.format != JSON and self.schema is None) or self.key_format != JSON


@dataclass(frozen=True)
class Quality:
    """Thresholds of the quality report, all inclusive. `max_orphan_ratio`: orphans / compounds of a batch.

    `orphan_ratio_mads`: how many median absolute deviations the ratio may be off the median of the comparable ones among the last
    `history_batches`. `max_skew_drift_ms`: how far the sides' clocks may move against each other in that time. `keep_pages`: the report
    keeps the pages of so many newest batches. `gate`: whether a batch is judged before or after it is published. `silence_ms`: how long one
    side may send alone, or nearly nothing pair (None: for ever); `silent_share`: from this share of orphans on nearly nothing pairs.
    `severities`: (check, `warn` or `fail`) of those that are not laws; one that is not named warns.
    """

    __pydantic_config__ = _KEYS
    max_orphan_ratio: Annotated[float, kinds.number(float, 0, 1)] = 1.0
    orphan_ratio_mads: Annotated[float, kinds.number(float, 1, 1_000, "; below, every other batch would warn")] = 6.0
    history_batches: Annotated[int, kinds.number(int, FEWEST_BATCHES, 5_000, "; that few say nothing")] = 50
    max_skew_drift_ms: kinds.Duration = 30_000
    keep_pages: Annotated[int, kinds.number(int, 100, 1_000_000, "; pages of recent runs would be gone")] = 2_000
    gate: Literal["after_publish", "before_publish"] = AFTER_PUBLISH
    silence_ms: Annotated[
        int | None, kinds.duration(None, 60_000, "1m (null: never warn); topics that take turns would seem silent")
    ] = 1_800_000
    silent_share: Annotated[float, kinds.number(float, 0.5, 1, "; below, pairs that do come would not count")] = 0.95
    severities: kinds.Severities = ()


@dataclass(frozen=True)
class Maintenance:
    """The care of the tables. `schedule`: cron, None: only by hand. `…_retention_ms`: age from which rows are deleted, None: never; that of
    the ledger also holds for `quality_metrics`. `archive`: folder into which rows are written before they are deleted, None: nowhere.
    `time_travel_ms`: how long an old version of `open_events` stays readable, so that a rewind can return to it. `reconcile`: whether the
    maintenance DAG also compares everything that was published.
    """

    __pydantic_config__ = _KEYS
    schedule: Annotated[str | None, kinds.cron(" (null: only by hand)", None)] = "30 3 * * *"
    raw_retention_ms: kinds.Age = None
    time_travel_ms: Annotated[
        int,
        kinds.duration(kinds.DEFAULT, MS_PER_UNIT["d"], "1d; files would be deleted that somebody is reading"),
    ] = 3 * MS_PER_UNIT["d"]
    rejected_retention_ms: kinds.Age = None
    compound_retention_ms: kinds.Age = None
    ledger_retention_ms: kinds.Age = None
    archive: kinds.Folder = None
    reconcile: kinds.Flag = True


_SIDE = kinds.mapping(Side, "missing; write {topic: …, payload: …}, one side of the events would never be read")
_BY_HAND_OR_DATA = f" (null: only by hand; {ON_DATA}: when there is data)"


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """All settings of one pipeline. Durations in ms; `key` in the order in which the output key has its fields.

    `output_key`: how these become one text, `escaped` or `json`, or a record behind a registry's frame. `output_format`: what values of messages
    are. `output_fields`: (name in a message's value, its source), in their order; None: as `value_fields` has them. `output_orphans_topic`: where
    compounds of one side go; None: to `output_topic`. `output_rejected_topic`: where a copy of each rejected record goes; None: nowhere.
    `key_text`: what is done to key fields before they are compared. `key_order`: with `any`, two events with the same two key fields have the
    same key, in whatever order the fields are.
    """

    __pydantic_config__ = _KEYS
    name: kinds.PipelineName
    left: Annotated[Side, _SIDE]
    right: Annotated[Side, _SIDE]
    output_topic: kinds.Topic
    output_connection: kinds.Connection = KAFKA
    output_key: Literal["escaped", "json", "avro", "protobuf"] = ESCAPED
    output_fields: kinds.OutputFields = None
    output_orphans_topic: kinds.OtherTopic = None
    output_rejected_topic: kinds.OtherTopic = None
    output_format: Literal["json", "avro", "protobuf"] = JSON
    key: kinds.Columns
    key_text: kinds.KeyText = ()
    key_order: Literal["as_is", "any"] = AS_IS
    timestamp: kinds.TimeSource = "timestamp"
    timestamp_format: kinds.TimeFormat = None
    timestamp_zone: kinds.TimeZone = None
    tolerance_ms: Annotated[int, kinds.duration("without it nothing says how far apart two sides of one call may be")]
    gap_ms: Annotated[
        int,
        kinds.duration(
            "without it nothing says when a session ends", 1, "1 ms, or every event would be a session of its own"
        ),
    ]
    grace_ms: Annotated[int, kinds.duration("without it nothing says how long to wait for late events")]
    max_future_ms: kinds.Duration = 300_000
    max_session_ms: kinds.Duration = 3_600_000
    matching: Literal["one_to_one", "collapse"] = "one_to_one"
    late: Literal["dead_letter", "replay"] = "dead_letter"
    clock: Literal["lag_aware", "stream_time"] = "lag_aware"
    drop_duplicates: kinds.Flag = True
    offset_gaps: Literal["count", "fail"] = "count"
    schedule: Annotated[str | None, kinds.cron(_BY_HAND_OR_DATA, ON_DATA, None)] = "*/5 * * * *"
    max_records_per_batch: Annotated[int, kinds.number(int, 1, None, "; no batch could read anything")] = 5_000_000
    consumer_group: kinds.Group = None
    run_deadline_ms: kinds.Duration = 1_800_000
    replay_schedule: Annotated[str, kinds.cron()] = "0 * * * *"
    quality: Annotated[Quality, kinds.mapping(Quality, "must be a mapping of thresholds")] = field(default_factory=Quality)
    maintenance: Annotated[
        Maintenance, kinds.mapping(Maintenance, "must be a mapping of schedule, retentions, archive and time_travel")
    ] = field(default_factory=Maintenance)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left, right."""
        return self.left, self.right

    @property
    def input_topics(self) -> tuple[str, ...]:
        """Those that the settings name, the left ones first."""
        return *self.left.named_topics, *self.right.named_topics

    def connection(self, topic: str) -> str:
        """The Airflow connection of the cluster that has this input or output topic."""
        return next((side.connection for side in self.sides if side.has(topic)), self.output_connection)

    @property
    def connections(self) -> tuple[str, ...]:
        """Of all its clusters, each once."""
        return tuple(dict.fromkeys((self.left.connection, self.right.connection, self.output_connection)))

    @property
    def key_has_schema(self) -> bool:
        """Whether output keys name a schema of a registry."""
        return self.output_key in (AVRO, PROTOBUF)

    @property
    def is_unordered(self) -> bool:
        """Whether the pair (a, b) is the pair (b, a). Then tables and messages say of each event which of the two it is."""
        return self.key_order == ANY_ORDER

    @property
    def has_compounds(self) -> bool:
        """Whether a side has compounds of another pipeline. Then tables say of each event which revision of which compound it is."""
        return any(side.compounds for side in self.sides)

    @property
    def reversed_fields(self) -> tuple[str, ...]:
        """Left, right: the fields of a message that say so; none if the order of the key fields matters."""
        return tuple(f"{side.payload}_reversed" for side in self.sides) if self.is_unordered else ()

    @property
    def compound_topics(self) -> tuple[str, ...]:
        """Every topic that compounds are published to, the output topic first."""
        return tuple(filter(None, (self.output_topic, self.output_orphans_topic)))

    @property
    def output_topics(self) -> tuple[str, ...]:
        """Every topic that something is published to, the output topic first."""
        return tuple(filter(None, (*self.compound_topics, self.output_rejected_topic)))

    @property
    def value_fields(self) -> tuple[tuple[str, str], ...]:
        """The fields of a message's value in their order: (name, one of `value_sources`)."""
        if self.output_fields is not None:
            return self.output_fields
        payloads = ((self.left.payload, "left.payload"), (self.right.payload, "right.payload"))
        directions = zip(self.reversed_fields, ("left.reversed", "right.reversed"), strict=False)
        return *((name, name) for name in self.key), ("ts", "ts"), *payloads, *directions

    @property
    def value_sources(self) -> dict[str, str]:
        """What a field of a message's value can be -> the column of compound_events that has it."""
        payloads = {"left.payload": self.left.payload, "right.payload": self.right.payload}
        times = {"ts": "ts", "left.ts": "left_ts", "right.ts": "right_ts"}
        directions = {"left.reversed": "left_reversed", "right.reversed": "right_reversed"} if self.is_unordered else {}
        return {name: name for name in (*self.key, "kind", "pair_id", "revision")} | times | payloads | directions

    def times(self, side: Side) -> Times:
        """What the time of an event of this side looks like."""
        if side.compounds:
            # Whatever the pipeline says, another one has written these: `ts` in ms, unless its `output.fields` has another name.
            return Times(side.timestamp or "ts", side.timestamp_format, side.timestamp_zone)
        form = side.timestamp_format or self.timestamp_format
        # One side may have texts, and the other numbers, which have no zone.
        zone = side.timestamp_zone or (self.timestamp_zone if is_text(form) else None)
        return Times(side.timestamp or self.timestamp, form, zone)

    def to_json(self) -> str:
        """Canonical text: equal settings give equal bytes."""
        return msgspec.json.encode(self, order="sorted").decode()

    @staticmethod
    def from_json(text: str) -> Pipeline:
        """Inverse of `to_json`."""
        return msgspec.json.decode(text, type=Pipeline)

    @property
    def config_hash(self) -> str:
        """Sixteen hex digits that change with any setting."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def identity(self) -> tuple[Any, ...]:
        """What the tables are made of: it may not change once a pipeline has run, but for topics that are added."""
        sides = ((side.topic or side.topic_pattern, side.payload, *["compounds"] * side.compounds) for side in self.sides)
        return *sides, self.output_topic, self.key, self.output_key, self.key_order

    def goes_on_from(self, earlier: Pipeline) -> bool:
        """Whether the tables of a pipeline with the earlier settings can be continued with these."""
        sides = zip(self.sides, earlier.sides, strict=True)
        if not all(side.includes(old) for side, old in sides):
            return False
        left, right = (
            replace(side, topic=old.topic, topic_pattern=old.topic_pattern)
            for side, old in zip(self.sides, earlier.sides, strict=True)
        )
        return replace(self, left=left, right=right).identity == earlier.identity
