"""Reads a pipeline's YAML file and refuses what could not work.

Everything wrong with a file is raised as one `PipelineError`, one line that names the file, the key and the consequence.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from croniter import CroniterError, croniter

from include.config.pipeline import (
    AFTER_PUBLISH,
    AS_JSON,
    BEFORE_PUBLISH,
    ESCAPED,
    FEWEST_BATCHES,
    MAINTENANCE_SUFFIX,
    MS_PER_UNIT,
    ON_DATA,
    REPLAY_SUFFIX,
    Maintenance,
    Pipeline,
    PipelineError,
    Quality,
    Side,
    parse_duration,
)

# Columns the tables need for themselves, so no key or payload field may take their names.
RESERVED_COLUMNS = frozenset(
    "topic partition offset record_timestamp key value headers ts payload problem reason batch_id side kind op revision "
    "pair_id outcome is_open left_ts left_topic left_partition left_offset left_payload left_batch_id right_ts right_topic "
    "right_partition right_offset right_payload right_batch_id table batch source".split()
)
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PIPELINE_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Where one pipeline reads what another publishes, they would move each other's positions.
_PUBLISHER_GROUP = re.compile(rf"{_PIPELINE_NAME.pattern}\.publisher")
_MOST_MADS = 1_000
_RETENTIONS = ("raw_retention", "rejected_retention", "compound_retention", "ledger_retention")


class _EachKeyOnce(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.MarkedYAMLError(problem=f"{key} is there twice", problem_mark=node.value[number][0].start_mark)
        return super().construct_mapping(node, deep)


def load_pipeline(path: str | Path) -> Pipeline:
    """The pipeline in a YAML file, its name the file's stem; raises PipelineError."""
    path = Path(path)
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _EachKeyOnce)
    except FileNotFoundError:
        raise PipelineError(f"{path}: no such file; a pipeline is a YAML file like include/pipelines/calls.yaml") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PipelineError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    return _Reader(path, document).pipeline()


def _comes_round(cron: str) -> bool:
    try:
        croniter(cron).get_next()
    except CroniterError:
        return False
    # It knows @daily and a field of seconds, too.
    return len(cron.split()) == 5


class _Reader:
    """Takes keys out of the document one by one; what is left over at the end is unknown."""

    def __init__(self, path: Path, document: object) -> None:
        self.path = path
        if not isinstance(document, dict):
            raise PipelineError(f"{path}: holds no settings; start from include/pipelines/calls.yaml")
        self.rest: dict[Any, Any] = dict(document)

    def refuse(self, key: str, problem: str) -> PipelineError:
        return PipelineError(f"{self.path}: {key}: {' '.join(problem.split())}")

    def pipeline(self) -> Pipeline:
        if not _PIPELINE_NAME.fullmatch(self.path.stem):
            raise PipelineError(
                f"{self.path}: file name: a pipeline is named after its file, in lower-case letters, digits and underscores"
            )
        if self.path.stem.endswith(REPLAY_SUFFIX):
            raise PipelineError(
                f"{self.path}: file name: {self.path.stem} would be the name of another pipeline's replay DAG; name it otherwise"
            )
        if self.path.stem.endswith(MAINTENANCE_SUFFIX):
            raise PipelineError(
                f"{self.path}: file name: {self.path.stem} would be the name of another pipeline's maintenance DAG; name it otherwise"
            )
        output_topic, output_key = self.output()
        pipeline = Pipeline(
            name=self.path.stem,
            left=self.side("left"),
            right=self.side("right"),
            output_topic=output_topic,
            output_key=output_key,
            key=self.key_fields(),
            timestamp=self.field_name("timestamp", self.rest.pop("timestamp", "timestamp")),
            tolerance_ms=self.duration("tolerance", "without it nothing says how far apart two sides of one call may be"),
            gap_ms=self.duration("gap", "without it nothing says when a session ends", at_least=1),
            grace_ms=self.duration("grace", "without it nothing says how long to wait for late events"),
            max_future_ms=self.duration("max_future", default="5m"),
            max_session_ms=self.duration("max_session", default="1h"),
            matching=self.choice("matching", "one_to_one", "collapse"),
            late=self.choice("late", "dead_letter", "replay"),
            clock=self.choice("clock", "lag_aware", "stream_time"),
            drop_duplicates=self.flag("drop_duplicates", default=True),
            offset_gaps=self.choice("offset_gaps", "count", "fail"),
            schedule=self.schedule(),
            max_records_per_batch=self.whole_number("max_records_per_batch", default=5_000_000),
            consumer_group=self.consumer_group(),
            run_deadline_ms=self.duration("run_deadline", default="30m"),
            replay_schedule=self.cron("replay_schedule", self.rest.pop("replay_schedule", "0 * * * *")),
            quality=self.quality(),
            maintenance=self.maintenance(),
        )
        for unknown in self.rest:
            raise self.refuse(str(unknown), "unknown key; nothing reads it, so it would silently do nothing")
        self.check_together(pipeline)
        return pipeline

    def check_together(self, p: Pipeline) -> None:
        topics = {"left": p.left.topic, "right": p.right.topic, "output": p.output_topic}
        for first, second in (("left", "right"), ("left", "output"), ("right", "output")):
            if topics[first] == topics[second]:
                raise self.refuse(
                    f"{second}.topic", f"{topics[second]} is already the {first} topic; their events could not be told apart"
                )
        columns = [*p.key, p.left.payload, p.right.payload]
        lower = [name.lower() for name in columns]
        for name in columns:
            # Delta's columns do not differ by case alone.
            if lower.count(name.lower()) > 1:
                raise self.refuse(name, "used twice among key and payloads; one column of the tables would hide the other")
        if p.timestamp in columns:
            raise self.refuse("timestamp", f"{p.timestamp} is a key or payload field already")
        if p.max_session_ms < p.gap_ms:
            raise self.refuse("max_session", "must not be shorter than gap; sessions would be cut before they could end")
        if p.schedule == ON_DATA and p.consumer_group is None:
            raise self.refuse(
                "schedule", f"{ON_DATA} needs consumer_group; nobody would see what was landed, and what waits"
            )
        self.check_retention(p.maintenance)

    def check_retention(self, care: Maintenance) -> None:
        """Nothing may go before what says where it came from, or what became of it. None, for ever, is the longest."""
        raw, time_travel = ("raw_retention", care.raw_retention_ms), ("time_travel", care.time_travel_ms)
        rejected, compounds = (
            ("rejected_retention", care.rejected_retention_ms),
            ("compound_retention", care.compound_retention_ms),
        )
        ledger = ("ledger_retention", care.ledger_retention_ms)
        for (name, kept), (other, at_least), otherwise in (
            (raw, time_travel, "batches to go back to would lack their records"),
            (rejected, raw, "records that were rejected would look lost"),
            (compounds, raw, "a replay would publish again what it does not find"),
            (ledger, rejected, "rejected events would be left that no batch of the ledger explains"),
            (ledger, compounds, "compounds would be left of which nobody knows whether they are published"),
        ):
            if kept is not None and (at_least is None or kept < at_least):
                for_ever = f" (null: for ever; set {other}, too)" if at_least is None else ""
                raise self.refuse(f"maintenance.{name}", f"must not be shorter than {other}{for_ever}; {otherwise}")

    def mapping(self, key: str, missing: str) -> dict[Any, Any]:
        value = self.rest.pop(key, None)
        if not isinstance(value, dict):
            raise self.refuse(key, missing)
        return dict(value)

    def side(self, key: str) -> Side:
        value = self.mapping(key, "missing; write {topic: …, payload: …}, one side of the events would never be read")
        topic = self.topic(f"{key}.topic", value.pop("topic", None))
        payload = self.field_name(f"{key}.payload", value.pop("payload", None), reserved=True)
        self.nothing_left(key, value)
        return Side(topic, payload)

    def output(self) -> tuple[str, str]:
        value = self.mapping("output", "missing; write {topic: …}, compounds would have nowhere to go")
        topic = self.topic("output.topic", value.pop("topic", None))
        within = _Within(self.path, value, "output")
        spelling = within.choice("key", ESCAPED, AS_JSON)
        self.nothing_left("output", within.rest)
        return topic, spelling

    def nothing_left(self, key: str, rest: dict[Any, Any]) -> None:
        for unknown in rest:
            raise self.refuse(f"{key}.{unknown}", "unknown key; nothing reads it, so it would silently do nothing")

    def topic(self, key: str, value: object) -> str:
        if not isinstance(value, str) or not _TOPIC_NAME.fullmatch(value) or value in (".", ".."):
            raise self.refuse(key, f"{value!r} is no Kafka topic name (1 to 249 of letters, digits, '.', '_', '-')")
        if value.startswith("__"):
            raise self.refuse(key, f"{value!r} is a topic that Kafka keeps for itself; name one of your own")
        return value

    def field_name(self, key: str, value: object, reserved: bool = False) -> str:
        if not isinstance(value, str) or not _COLUMN_NAME.fullmatch(value):
            raise self.refuse(key, f"{value!r} cannot name a column (letters, digits, underscore; at most 64)")
        if reserved and value.lower() in RESERVED_COLUMNS:
            raise self.refuse(key, f"{value!r} is a column the tables need for themselves; rename the field at the producer")
        return value

    def key_fields(self) -> tuple[str, ...]:
        value = self.rest.pop("key", None)
        if not isinstance(value, list) or not value:
            raise self.refuse("key", "missing; list the body fields that identify a pair, or no two events could meet")
        return tuple(self.field_name("key", name, reserved=True) for name in value)

    def duration(self, key: str, missing: str = "", default: str | None = None, at_least: int = 0) -> int:
        value = self.rest.pop(key, default)
        if value is None:
            raise self.refuse(key, f"missing; {missing or f'leave the key out for the default, {default}'}")
        duration = self.milliseconds(key, value)
        if duration < at_least:
            raise self.refuse(key, f"must be at least {at_least} ms, or every event would be a session of its own")
        return duration

    def milliseconds(self, key: str, value: object) -> int:
        try:
            return parse_duration(value)
        except ValueError as error:
            raise self.refuse(key, str(error)) from None

    def choice(self, key: str, *allowed: str) -> str:
        value = self.rest.pop(key, allowed[0])
        if value not in allowed:
            raise self.refuse(key, f"{value!r} is none of {', '.join(allowed)}")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.rest.pop(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{value!r} is neither true nor false")
        return value

    def whole_number(self, key: str, default: int) -> int:
        value = self.rest.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(key, f"{value!r} is not a whole number from 1; no batch could read anything")
        return value

    def schedule(self) -> str | None:
        value = self.rest.pop("schedule", "*/5 * * * *")
        return ON_DATA if value == ON_DATA else self.cron_or_null("schedule", value, f"; {ON_DATA}: when there is data")

    def cron_or_null(self, key: str, value: object, more: str = "") -> str | None:
        return None if value is None else self.cron(key, value, f" (null: only by hand{more})")

    def cron(self, key: str, value: object, otherwise: str = "") -> str:
        if isinstance(value, str) and _comes_round(value):
            return value
        raise self.refuse(key, f"{value!r} is no cron expression of five fields that ever comes round{otherwise}")

    def consumer_group(self) -> str | None:
        value = self.rest.pop("consumer_group", None)
        if value is None or (
            isinstance(value, str) and _TOPIC_NAME.fullmatch(value) and not _PUBLISHER_GROUP.fullmatch(value)
        ):
            return value
        raise self.refuse(
            "consumer_group",
            f"{value!r} cannot show what was landed (1 to 249 of letters, digits, '.', '_', '-', and not the group of a publisher)",
        )

    def quality(self) -> Quality:
        value = self.rest.pop("quality", {})
        if not isinstance(value, dict):
            raise self.refuse("quality", "must be a mapping of thresholds")
        within = _Within(self.path, value, "quality")
        ratio, mads = within.rest.pop("max_orphan_ratio", 1.0), within.rest.pop("orphan_ratio_mads", 6.0)
        if not _is_number(ratio) or not 0 <= ratio <= 1:
            raise self.refuse("quality.max_orphan_ratio", f"{ratio!r} is not a number from 0 to 1")
        if not _is_number(mads) or not 1 <= mads <= _MOST_MADS:
            raise self.refuse(
                "quality.orphan_ratio_mads",
                f"{mads!r} is not a number from 1 to {_MOST_MADS}; below, every other batch would warn",
            )
        quality = Quality(
            max_orphan_ratio=float(ratio),
            orphan_ratio_mads=float(mads),
            history_batches=within.number_between("history_batches", 50, FEWEST_BATCHES, 5_000, "that few say nothing"),
            max_skew_drift_ms=within.duration("max_skew_drift", default="30s"),
            keep_pages=within.number_between("keep_pages", 2_000, 100, 1_000_000, "pages of recent runs would be gone"),
            gate=within.choice("gate", AFTER_PUBLISH, BEFORE_PUBLISH),
            silence_ms=within.silence(),
            silent_share=within.silent_share(),
        )
        self.nothing_left("quality", within.rest)
        return quality

    def maintenance(self) -> Maintenance:
        value = self.rest.pop("maintenance", {})
        if not isinstance(value, dict):
            raise self.refuse("maintenance", "must be a mapping of schedule, retentions, archive and time_travel")
        value, default = dict(value), Maintenance()
        schedule = self.cron_or_null("maintenance.schedule", value.pop("schedule", default.schedule))
        back, archive = value.pop("time_travel", None), self.archive(value.pop("archive", None))
        kept = {name: value.pop(name, None) for name in _RETENTIONS}
        self.nothing_left("maintenance", value)
        retention_ms = {
            f"{name}_ms": None if age is None else self.milliseconds(f"maintenance.{name}", age)
            for name, age in kept.items()
        }
        if archive is not None and not any(retention_ms.values()):
            raise self.refuse("maintenance.archive", f"nothing would come into it; set {_RETENTIONS[0]}, or leave it out")
        time_travel_ms = default.time_travel_ms if back is None else self.milliseconds("maintenance.time_travel", back)
        if time_travel_ms < MS_PER_UNIT["d"]:
            raise self.refuse(
                "maintenance.time_travel", "must be at least 1d; files would be deleted that somebody is reading"
            )
        return Maintenance(schedule=schedule, time_travel_ms=time_travel_ms, archive=archive, **retention_ms)

    def archive(self, value: object) -> str | None:
        if value is None or (isinstance(value, str) and value.startswith("/") and value.isprintable()):
            return value
        raise self.refuse(
            "maintenance.archive",
            f"{value!r} is no absolute path of a folder; files would go to wherever a job happens to run",
        )


class _Within(_Reader):
    """Reads the keys of a mapping inside the document."""

    def __init__(self, path: Path, document: dict[Any, Any], name: str) -> None:
        super().__init__(path, document)
        self.name = name

    def refuse(self, key: str, problem: str) -> PipelineError:
        return super().refuse(f"{self.name}.{key}", problem)

    def number_between(self, key: str, default: int, least: int, most: int, otherwise: str) -> int:
        value = self.rest.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"{value!r} is not a whole number from {least} to {most}; {otherwise}")
        return value

    def silence(self) -> int | None:
        value = self.rest.pop("silence", "30m")
        if value is None:
            return None
        silence = self.milliseconds("silence", value)
        if silence < MS_PER_UNIT["m"]:
            raise self.refuse("silence", "must be at least 1m (null: never warn); topics that take turns would seem silent")
        return silence

    def silent_share(self) -> float:
        value = self.rest.pop("silent_share", 0.95)
        if not _is_number(value) or not 0.5 <= value <= 1:
            raise self.refuse(
                "silent_share", f"{value!r} is not a number from 0.5 to 1; below, pairs that do come would not count"
            )
        return float(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
